"""Rematerialized layers give the numbers of plain `jax.jit`, and keep less between the phases."""

from __future__ import annotations

import functools
import itertools
import json

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from published_models import Transformer
from test_equality import CLUSTER, relative_difference


def compile_both(model, **options):
    """The step and its twin that computes every layer again, and their arguments."""
    state, batch = model.init()
    steps = [
        alpa_mlir.compile(
            model.step,
            state,
            batch,
            cluster=CLUSTER,
            method=PipeshardParallel(submeshes=[(1, 2), (1, 1)], remat=remat, **options),
        )
        for remat in ("none", "all")
    ]
    return steps, state, batch


def params_of(state):
    return state.params if hasattr(state, "params") else state


def activation_bytes(step) -> int:
    return sum(stage.predicted["activation_bytes"] for stage in step.plan.stages)


def gpt(**options):
    """With plain SGD: Adam makes full steps of gradients that are rounding noise."""
    return zoo.make_gpt(zoo.GPTConfig(optimizer="sgd", learning_rate=0.1, **options))


MODELS = {
    "gpt": gpt,
    "gpt with jax.checkpoint": functools.partial(gpt, remat=True),
    "moe": functools.partial(zoo.get, "moe"),
    "checkpoint": functools.partial(zoo.get, "checkpoint"),
}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt", 2),
        pytest.param("gpt with jax.checkpoint", 1, marks=pytest.mark.slow),
        ("moe", 1),
        ("checkpoint", 1),
    ],
)
def test_numbers_stay(name, count):
    model = MODELS[name]()
    (_, again), state, batch = compile_both(model, num_micro_batches=count)
    new_state, metrics = again(state, batch)
    expected_state, expected = jax.jit(model.step)(state, batch)
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-5
    assert relative_difference(params_of(new_state), params_of(expected_state)) < 1e-4


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "count"), [("gpt with jax.checkpoint", 2), ("checkpoint", 1)])
def test_numbers_stay_with_the_newer_checkpoint(name, count, newer_checkpoint):
    test_numbers_stay(name, count)


@pytest.mark.parametrize("name", ["dropout", "wide_resnet", "while_cond"])
def test_numbers_stay_on_one_mesh(name):
    """Random bits are the same bits; running statistics are updated once."""
    model = zoo.get(name)
    state, batch = model.init()
    step = alpa_mlir.compile(
        model.step,
        state,
        batch,
        cluster=CLUSTER,
        method=ShardParallel(mesh_shape=(1, 2), remat="all"),
    )
    expected_state, expected = jax.jit(model.step)(state, batch)
    new_state, metrics = step(state, batch)
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-5
    assert relative_difference(new_state, expected_state) < 1e-4


@pytest.mark.slow
def test_less_is_kept():
    model = gpt(layers=4)
    (kept, again), *_ = compile_both(model, layers=4)
    assert activation_bytes(again) < 0.5 * activation_bytes(kept)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["gpt", "moe", "checkpoint", "gpt with jax.checkpoint"])
def test_numbers_stay_where_products_are_kept(name):
    model = MODELS[name]()
    (_, again), state, batch = compile_both(model, num_micro_batches=1, remat_keeps="products")
    new_state, metrics = again(state, batch)
    expected_state, expected = jax.jit(model.step)(state, batch)
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-5
    assert relative_difference(params_of(new_state), params_of(expected_state)) < 1e-4


SMALL = {
    "device_types": {"small": {"peak_flops": {"float32": 2e11}}},
    "hosts": {"devices": 2, "device_type": "small"},
    "links": {
        "intra_host": {"bandwidth": 4e9, "latency": 2e-6},
        "inter_host": {"bandwidth": 1e8, "latency": 5e-5},
    },
}


def parallel_on(kib, bandwidth, keeps):
    """A GPT on two devices with such memory, its arguments, and its plan."""
    cluster = json.loads(json.dumps(SMALL))
    cluster["device_types"]["small"] |= {
        "memory_bytes": f"{kib}KiB",
        "memory_bandwidth": bandwidth,
    }
    model = gpt(layers=4)
    method = AutoParallel(remat_keeps=keeps, num_micro_batches=2, schedule="1f1b", layers=4)
    step = alpa_mlir.parallelize(model.step, cluster=cluster, method=method, cache=False)
    return model, step, step.plan(*model.init()).plan


# From memory in which products may be kept to little more than for what comes into layers.
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kib", "bandwidth", "fastest"),
    [(680, 1e10, "products"), (640, 4e10, "cut"), (540, 1e10, "nothing")],
)
def test_what_layers_keep_is_searched(kib, bandwidth, fastest):
    seconds = {}
    for keeps in ("nothing", "products"):
        try:
            seconds[keeps] = parallel_on(kib, bandwidth, keeps)[2].predicted["step_seconds"]
        except alpa_mlir.InfeasiblePlanError:
            assert fastest != keeps
    model, step, plan = parallel_on(kib, bandwidth, "auto")
    assert sum(stage.predicted["rematerialized_layers"] for stage in plan.stages) == 4
    if fastest == "cut":
        assert plan.predicted["step_seconds"] < 0.997 * min(seconds.values())
    else:
        assert plan.predicted["step_seconds"] == pytest.approx(seconds[fastest], rel=2e-3)
    state, batch = model.init()
    new_state, metrics = step(state, batch)
    expected_state, expected = jax.jit(model.step)(*model.init())
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-5
    assert relative_difference(params_of(new_state), params_of(expected_state)) < 1e-4


@pytest.mark.parametrize("scan", [False, True])
def test_memory_between_two_cuts_is_used(scan):
    """On one mesh: of products of one depth some are kept, as many as fit."""
    model = gpt(layers=4, hidden=64, seq=64, scan=scan)
    init = functools.partial(model.init, 8)

    def plan(memory=2**31, remat="auto"):
        options = {"mesh_shape": (1, 1), "offload": "none", "memory_fraction": 1.0}
        method = ShardParallel(remat=remat, **options)
        step = alpa_mlir.parallelize(
            model.step, cluster=limited(memory), method=method, cache=False
        )
        return step, step.plan(*jax.eval_shape(init)).plan

    most, least = (
        plan(remat=remat)[1].stages[0].predicted["peak_bytes"] for remat in ("none", "all")
    )
    steps, plans = zip(
        *(plan(least + part * (most - least)) for part in (0, 0.15, 0.3, 0.45, 0.6)), strict=True
    )
    seconds = [each.predicted["step_seconds"] for each in plans]
    assert all(less < 0.995 * more for more, less in itertools.pairwise(seconds))
    state, batch = init()
    new_state, metrics = steps[2](state, batch)
    expected_state, expected = jax.jit(model.step)(*init())
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-5
    assert relative_difference(params_of(new_state), params_of(expected_state)) < 1e-4


def again_of(keeps):
    """Predictions of four wide layers of attention over long sequences, all computed again."""
    model = Transformer(
        family="gpt",
        hidden=1024,
        layers=4,
        heads=16,
        kv_heads=16,
        ffn=4096,
        vocab=1024,
        seq=2048,
        dtype="bfloat16",
        remat="none",
    )
    step, state, batch = model.training_step(2)
    options = {"remat": "none"} if keeps is None else {"remat": "all", "remat_keeps": keeps}
    method = ShardParallel(mesh_shape=(1, 1), layers=4, **options)
    plan = alpa_mlir.parallelize(step, cluster="dgx-a100", method=method, cache=False)
    (stage,) = plan.plan(state, batch).plan.stages
    return stage.predicted


def test_products_are_kept_and_scores_of_attention_are_not():
    none, products, nothing = map(again_of, (None, "products", "nothing"))
    kept = [stage["activation_bytes"] for stage in (none, products, nothing)]
    assert kept[0] > 2 * kept[1] > 2 * kept[2]
    # Less than a half of a whole forward pass more.
    more = [stage["backward_seconds"] - none["backward_seconds"] for stage in (products, nothing)]
    assert 0 < more[0] < 0.7 * more[1]


@pytest.mark.slow
def test_one_layer_of_four():
    model = gpt(layers=4)
    state, batch = model.init()
    steps = [
        alpa_mlir.compile(
            model.step,
            state,
            batch,
            cluster=CLUSTER,
            method=ShardParallel(mesh_shape=(1, 1), layers=4, remat=remat),
        )
        for remat in ("none", [1], [1, 2], "all")
    ]
    found = [activation_bytes(step) for step in steps]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4


def limited(memory_bytes: float):
    """The cluster with so much memory a device."""
    fields = json.loads(json.dumps(CLUSTER))
    fields["device_types"]["small"]["memory_bytes"] = int(memory_bytes)
    return fields


def plan_stages(step, args, stages, memory_bytes=2**31, **options):
    method = PipeshardParallel(
        submeshes=[(1, 1)] * stages, num_micro_batches=4, memory_fraction=1.0, **options
    )
    function = alpa_mlir.parallelize(step, cluster=limited(memory_bytes), method=method)
    return function.trace(*args).plan(cache=False)


def rematerialized(planned) -> list[float]:
    return [stage.predicted["rematerialized_layers"] for stage in planned.plan.stages]


@pytest.mark.slow
def test_the_first_stage_alone_is_computed_again():
    """It keeps two micro-batches in flight, the last stage one."""
    model = gpt(layers=4)
    plan = functools.partial(
        plan_stages,
        model.step,
        jax.eval_shape(model.init),
        2,
        layer_ranges=[(0, 2), (2, 4)],
        layers=4,
    )
    first, last = (stage.predicted["peak_bytes"] for stage in plan().plan.stages)
    again = plan(remat="all").plan.stages[0].predicted["peak_bytes"]
    assert max(again, last) < first
    memory = (max(again, last) + first) // 2
    planned = plan(memory, remat="auto")
    assert [layers > 0 for layers in rematerialized(planned)] == [True, False]
    assert "all rematerialized" in planned.as_text()
    assert planned.predicted_seconds < plan(memory, remat="all").predicted_seconds
    with pytest.raises(alpa_mlir.InfeasiblePlanError):
        plan(memory, remat="none")
    state, batch = model.init()
    expected_state, expected = jax.jit(model.step)(state, batch)
    new_state, metrics = planned.load()(state, batch)
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-5
    assert relative_difference(params_of(new_state), params_of(expected_state)) < 1e-4


def test_the_choice_is_never_slower_than_one_for_all():
    """At any memory; between the two kinds, it is faster than both."""

    def step(weights, x):
        def loss(weights):
            h = x
            for w in weights:
                h = jnp.sin(jnp.tanh(h @ w))
            return jnp.mean(h**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    args = ([jax.ShapeDtypeStruct((64, 64), "float32")] * 6, jax.ShapeDtypeStruct((512, 64), "f4"))

    def seconds(kib, remat):
        try:
            return plan_stages(step, args, 3, kib * 1024, layers=6, remat=remat).predicted_seconds
        except alpa_mlir.InfeasiblePlanError:
            return float("inf")

    gains = []
    for kib in range(300, 601, 50):
        none, every, auto = (seconds(kib, remat) for remat in ("none", "all", "auto"))
        # The search's gap, and the DP's formula in place of the events.
        assert auto <= 1.03 * min(none, every)
        gains.append(min(none, every) / auto if auto < float("inf") else 0)
    assert max(gains) > 1.03
    assert min(gains) == 0


@pytest.mark.parametrize("remat", ["some", [-1], ["a"]])
def test_bad_remat_is_named(remat):
    with pytest.raises(alpa_mlir.MethodError, match="remat"):
        ShardParallel(remat=remat)
