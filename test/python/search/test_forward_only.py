"""Steps without gradients give what `jax.jit` does, in stages and micro-batches."""

from __future__ import annotations

import dataclasses
import functools

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import MicroBatchError
from alpa_mlir.simulator import simulate
from alpa_mlir.trace.tracing import trace
from test_equality import CLUSTER, relative_difference

MESHES = {
    "one mesh": functools.partial(ShardParallel, mesh_shape=(2, 2)),
    "two stages": functools.partial(PipeshardParallel, submeshes=[(1, 2), (1, 2)]),
    "unequal stages": functools.partial(PipeshardParallel, submeshes=[(1, 2), (1, 1)]),
}
FREE = {"bandwidth": 1e30, "latency": 0}


def check(fn, state, batch, method, tolerance=1e-5):
    """Plan, run twice, compare both with plain JAX."""
    step = alpa_mlir.compile(fn, state, batch, cluster=CLUSTER, method=method)
    expected = jax.jit(fn)(state, batch)
    for _ in range(2):
        found = step(state, batch)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert relative_difference(found, expected) < tolerance
    for stage in step.plan.stages:
        assert "backward" not in stage.functions
    return step


@pytest.mark.parametrize(
    ("name", "mesh", "count"),
    [
        ("gpt", "two stages", 4),
        ("moe", "unequal stages", 2),
        ("vit", "one mesh", 2),
        ("wide_resnet", "unequal stages", 4),
        ("gpt_scan", "two stages", 2),
        *(
            pytest.param(name, mesh, count, marks=pytest.mark.slow)
            for name in ("gpt", "moe", "vit", "wide_resnet", "deep_supervision", "gpt_nnx_scan")
            for mesh in MESHES
            for count in (1, 2, 4)
        ),
    ],
)
def test_models(name, mesh, count):
    """Logits are joined, mean losses made of sums."""
    model = zoo.get(name)
    step = check(model.forward, *model.init(), MESHES[mesh](num_micro_batches=count))
    assert step.plan.num_micro_batches == count
    runs = [op for p in step.plan.programs for op in p.instructions if "forward" in str(op)]
    assert len(runs) >= count * len(step.plan.stages)
    assert not any(info.carried_by for info in step.plan.inputs)
    if name == "gpt_scan":
        assert any(info.piece for info in step.plan.inputs)


def metrics(params, batch):
    """Results of every kind that may be split."""
    h = jnp.tanh(batch["x"] @ params["w0"])
    logits = h @ params["w1"] * params["scale"]
    rows = jnp.arange(len(logits))
    log_probs = jax.nn.log_softmax(logits)
    losses = -log_probs[rows, batch["label"]]
    right = logits.argmax(-1) == batch["label"]
    return {
        "logits": logits,
        "best": logits.argmax(-1),
        "right": right,
        "losses": losses,
        "top": jax.lax.top_k(logits, 2),
        "taken": jnp.take_along_axis(log_probs, batch["label"][:, None], 1)[:, 0],
        "embedded": params["w0"][batch["label"]],
        "given": batch["label"],
        "loss": losses.mean(),
        "loss_sum": losses.sum(),
        "accuracy": right.mean(),
        "correct": right.sum(),
        "perplexity": jnp.exp(losses.mean()),
        "penalized": losses.sum() + 0.1 * jnp.sum(params["w0"] ** 2),
        "ratio": losses.sum() / right.sum(),
        "share": losses.sum() / len(losses) + right.sum() % 3,
        "scaled": (losses / len(losses)).sum(),
        "counts": jnp.zeros(4, int).at[batch["label"]].add(1),
        "gram": h.T @ h,
        "means": h.mean(0),
        "norm": jnp.sqrt(jnp.sum(h.mean(0) ** 2)),
        "scale": params["scale"] * 2,
        "size": jnp.float32(1.0) / len(losses),
    }


@pytest.mark.parametrize(("mesh", "count"), [("one mesh", 4), ("two stages", 2)])
def test_results_of_all_kinds(mesh, count):
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "w0": jax.random.normal(keys[0], (6, 8)),
        "w1": jax.random.normal(keys[1], (8, 4)),
        "scale": jnp.float32(0.7),
    }
    batch = {
        "x": jax.random.normal(keys[2], (8, 6)),
        "label": jax.random.randint(keys[3], (8,), 0, 4),
    }
    check(metrics, params, batch, MESHES[mesh](num_micro_batches=count))


def test_what_is_added_up_in_a_scan():
    """Means of each layer, stacked and added up inside of the loop."""

    def step(weights, x):
        def layer(carry, weight):
            h, total, largest = carry
            h = h + jnp.tanh(h @ weight)
            return (h, total + jnp.mean(h**2), largest + jnp.sum(h)), jnp.mean(h, 0) * 2

        (h, total, sums), means = jax.lax.scan(layer, (x, 0.0, 0.0), weights)
        return h, total, jnp.exp(sums / x.shape[0]), means

    weights = 0.3 * jax.random.normal(jax.random.key(0), (3, 4, 4))
    x = jax.random.normal(jax.random.key(1), (8, 4))
    for method in (ShardParallel(num_micro_batches=2), MESHES["two stages"](num_micro_batches=4)):
        check(step, weights, x, method)


def test_a_state_that_counts():
    """Sums over all batches so far, next to weights that do not change."""

    def step(state, batch):
        loss = (batch @ state["w"]) ** 2
        new = {"total": state["total"] + loss.sum(), "steps": state["steps"] + 1, "w": state["w"]}
        return new, new["total"] / new["steps"]

    state = {"total": jnp.float32(0), "steps": jnp.int32(0), "w": jnp.arange(4.0)}
    batch = jax.random.normal(jax.random.key(0), (8, 4))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=4)
    planned = alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method)
    expected = state
    for _ in range(3):
        state, found = planned(state, batch)
        expected, mean = jax.jit(step)(expected, batch)
        assert relative_difference((state, found), (expected, mean)) < 1e-5


WHOLE = {
    "largest": lambda w, x: jnp.max(x @ w),
    "normalized": lambda w, x: x @ w - jnp.mean(x @ w, 0),
    "gram": lambda w, x: x @ w @ w.T @ x.T,
    "numbers": lambda w, x: (x @ w, jnp.arange(x.shape[0])),
    "weighted by numbers": lambda w, x: (x @ w) * jnp.arange(x.shape[0])[:, None],
    "reversed": lambda w, x: (x @ w)[::-1],
    "running sums": lambda w, x: jnp.cumsum(x @ w, 0),
    "sorted": lambda w, x: jnp.sort(x @ w, 0),
    "first of the largest": lambda w, x: jnp.argmax(x @ w, 0),
    "half": lambda w, x: (x @ w)[: x.shape[0] // 2],
    "second": lambda w, x: (x @ w)[1:2],
    "twice": lambda w, x: jnp.concatenate([x @ w, x @ w]),
    "padded": lambda w, x: jnp.pad(x @ w, ((1, 1), (0, 0))),
    "weight of each example": lambda w, x: (x @ w[:, :1])[:, 0] + w[0, : x.shape[0]],
    "picked": lambda w, x: (x @ w)[x[:, 0].astype(int)],
    "repeated": lambda w, x: jnp.repeat(x @ w, 2, 0)[jnp.arange(x.shape[0])],
    "every second": lambda w, x: (x @ w)[jnp.arange(2 * x.shape[0]).reshape(-1, 2)[:, 0]],
    "transposed": lambda w, x: (x @ w).T,
    "flattened": lambda w, x: (x @ w).T.reshape(-1),
    "loop until": lambda w, x: jax.lax.while_loop(
        lambda c: jnp.all(jnp.sum(c) < 9), lambda c: c + 1.0, x @ w
    ),
    "branch": lambda w, x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x @ w),
    "loop of means": lambda w, x: jax.lax.scan(
        lambda c, _: (c + jnp.exp(jnp.mean(x)), None), 0.0, None, length=2
    )[0],
    "loop of sums": lambda w, x: jax.lax.scan(
        lambda c, _: (c + jnp.sum(x), None), 1.0, None, length=2
    )[0],
    "by the size": lambda w, x: x @ w if x.shape[0] > 4 else 2 * (x @ w),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_takes_the_whole_batch(name):
    """Examples are joined where something needs all of them."""
    w = jax.random.normal(jax.random.key(0), (4, 16))
    x = jax.random.normal(jax.random.key(1), (8, 4))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=2)
    step = alpa_mlir.compile(WHOLE[name], w, x, cluster=CLUSTER, method=method)
    assert relative_difference(step(w, x), jax.jit(WHOLE[name])(w, x)) < 1e-5


def test_examples_in_turn_are_refused():
    """A loop whose steps each take an example has nothing for a second micro-batch to do."""

    def step(w, x):
        return jax.lax.scan(lambda c, row: (c + row @ w, c), jnp.zeros(16), x)

    w, x = jnp.ones((4, 16)), jnp.ones((8, 4))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=2)
    with pytest.raises(MicroBatchError, match=r"couples examples.*use one micro-batch") as caught:
        alpa_mlir.compile(step, w, x, cluster=CLUSTER, method=method)
    assert "\n" not in str(caught.value)
    check(step, w, x, dataclasses.replace(method, num_micro_batches=1))


def test_a_square_weight_is_no_state_that_returns():
    def predict(w, x):
        return x @ w

    w = jnp.ones((4, 4))
    signature = trace(predict, w, w).signature
    assert [(item.kind, item.carried_by) for item in signature.inputs] == [
        ("state", None),
        ("batch", None),
    ]
    with pytest.raises(
        MicroBatchError, match=r"x: 4 rows cannot be split into 3 equal micro-batches"
    ):
        alpa_mlir.compile(predict, w, w, cluster=CLUSTER, method=ShardParallel(num_micro_batches=3))


def layers(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


@functools.cache
def layers_inputs(count=4, size=64):
    weights = [0.1 * jax.random.normal(jax.random.key(i), (size, size)) for i in range(count)]
    return weights, jax.random.normal(jax.random.key(99), (16, size))


def test_weights_are_placed_once(tmp_path):
    """A served plan: saved, loaded, called with the same weights again and again."""
    weights, batch = layers_inputs()
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=2, schedule="gpipe")
    planned = alpa_mlir.parallelize(layers, cluster=CLUSTER, method=method).plan(weights, batch)
    step = alpa_mlir.load(planned.save(tmp_path))
    expected = jax.jit(layers)(weights, batch)
    assert relative_difference(step(weights, batch), expected) < 1e-5
    placed = {value: array for value, (_, array) in step.loaded._placed.items()}
    assert len(placed) == len(weights)
    assert relative_difference(step(weights, batch), expected) < 1e-5
    assert all(step.loaded._placed[value][1] is array for value, array in placed.items())
    # Other weights are other ones, and arrays of NumPy may change.
    double = jax.tree.map(lambda w: 2 * w, weights)
    assert relative_difference(step(double, batch), jax.jit(layers)(double, batch)) < 1e-5
    host = jax.tree.map(np.array, double)
    step(host, batch)
    host[0][:] = 1
    assert relative_difference(step(host, batch), jax.jit(layers)(host, batch)) < 1e-5


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 8)])
def test_the_bubble_is_that_of_filling_the_pipeline(stages, count):
    """p stages of one second each and m micro-batches take m + p - 1 seconds."""
    weights, batch = layers_inputs()
    method = PipeshardParallel(submeshes=[(1, 1)] * stages, num_micro_batches=count, layers=stages)
    cluster = {**CLUSTER, "links": {k: FREE for k in CLUSTER["links"]}}
    plan = alpa_mlir.parallelize(layers, cluster=cluster, method=method).plan(weights, batch).plan
    second = [
        dataclasses.replace(stage, predicted={**stage.predicted, "forward_seconds": 1.0})
        for stage in plan.stages
    ]
    timeline = simulate(dataclasses.replace(plan, stages=tuple(second)))
    assert timeline.step_seconds == pytest.approx(count + stages - 1, rel=1e-6)
    bubble = (stages - 1) / (count + stages - 1)
    assert timeline.bubble_fraction == pytest.approx(bubble, rel=1e-6)


def test_the_number_of_micro_batches_is_searched():
    weights, batch = layers_inputs()

    def normalized(weights, x):
        x = layers(weights, x)
        return (x - x.mean(0)) / x.std(0)

    planned = alpa_mlir.parallelize(layers, cluster=CLUSTER).plan(weights, batch)
    assert len({tried.num_micro_batches for tried in planned.tried}) > 1
    expected = jax.jit(layers)(weights, batch)
    assert relative_difference(planned.load()(weights, batch), expected) < 1e-5
    # Statistics of the whole batch, at the end of the pipeline.
    for method in (
        AutoParallel(),
        PipeshardParallel(submeshes=[(1, 1), (1, 1)]),
        PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=4),
    ):
        check(normalized, weights, batch, method)


@pytest.mark.parametrize("memory", [1 << 30, 9 << 17])
@pytest.mark.parametrize("inter_host", [3e6, 1e8, 1e10])
def test_the_latency_of_a_request(memory, inter_host):
    """As simulated, and no plan in one piece, on one mesh or in uniform stages answers sooner."""
    weights, batch = layers_inputs(6, 256)
    cluster = {
        "name": "served",
        "device_types": {
            "d": {
                "memory_bytes": memory,
                "memory_bandwidth": 1e10,
                "peak_flops": {"float32": 2e10},
            }
        },
        "hosts": {"count": 4, "devices": 2, "device_type": "d"},
        "links": {
            "intra_host": {"bandwidth": 4e9, "latency": 2e-6},
            "inter_host": {"bandwidth": inter_host, "latency": 2e-5},
        },
    }

    def latency(**options):
        method = AutoParallel(layers=6, **options)
        function = alpa_mlir.parallelize(layers, cluster=cluster, method=method, cache=False)
        plan = function.plan(weights, batch).plan
        simulated = simulate(plan, share_links=False).step_seconds
        # Sends of several micro-batches follow each other.
        tolerance = 2e-5 if plan.num_micro_batches == 1 else 0.03
        assert simulated == pytest.approx(plan.predicted["step_seconds"], rel=tolerance)
        return plan.predicted["step_seconds"]

    best = latency()
    for options in ({"num_micro_batches": 1}, {"num_micro_batches": 4}, {"pipeline": "uniform"}):
        try:
            assert best <= 1.01 * latency(**options)
        except alpa_mlir.InfeasiblePlanError:
            assert memory < 1 << 30
