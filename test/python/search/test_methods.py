"""Every named method runs, with the numbers of plain `jax.jit` and the shardings it promises."""

from __future__ import annotations

import functools

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.compiler import sharding_methods
from alpa_mlir.errors import InfeasiblePlanError, MethodError
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from test_equality import CLUSTER, relative_difference, run

MODELS = {
    "gpt": lambda: zoo.make_gpt(zoo.GPTConfig(layers=1, optimizer="sgd", learning_rate=0.1)),
    "moe": lambda: zoo.get("moe"),
}


@functools.cache
def model_and_reference(name):
    model = MODELS[name]()
    return model, run(jax.jit(model.step), *model.init())


def state_specs(plan):
    """Specs of parameters by name; one stage."""
    (stage,) = plan.stages
    return {item.name: [list(dim) for dim in item.spec] for item in stage.weights}


def axes_used(spec):
    return sorted(axis for dim in spec for axis in dim)


CASES = [("gpt", m) for m in sharding_methods() if m not in ("auto", "manual")]
CASES += [("moe", m) for m in ("zero-3", "expert-parallel", "expert-zero-2", "heuristic")]


@pytest.mark.sweep(8)
@pytest.mark.parametrize(("model", "name"), CASES)
def test_numbers(model, name):
    made, expected = model_and_reference(model)
    state, batch = made.init()
    step = alpa_mlir.compile(
        made.step,
        state,
        batch,
        cluster=CLUSTER,
        method=ShardParallel(mesh_shape=(2, 2), method=name),
    )
    found = run(step, state, batch)
    assert relative_difference(found, expected) < 2e-4
    specs = state_specs(step.plan)
    assert specs
    if name in ("data-parallel", "zero-2"):
        assert all(axes_used(spec) == [] for spec in specs.values())
    if name in ("zero-3", "megatron-zero-3"):
        assert all(axes_used(spec) == ["x", "y"] for spec in specs.values())
    if name == "hybrid-zero-3":
        assert all(axes_used(spec) == ["y"] for spec in specs.values())
    if name in ("megatron", "megatron-sequence", "megatron-zero-1"):
        assert all(axes_used(spec) in ([], ["y"]) for spec in specs.values())
        assert any(axes_used(spec) for spec in specs.values())
    if name in ("expert-parallel", "expert-zero-2"):
        for path, spec in specs.items():
            is_expert = "'up'" in path or "'down'" in path
            assert spec[0] == (["x", "y"] if is_expert and model == "moe" else []), path


def test_two_micro_batches_and_zero():
    model, expected = model_and_reference("gpt")
    state, batch = model.init()
    method = ShardParallel(mesh_shape=(4,), method="zero-2", num_micro_batches=2)
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    assert relative_difference(run(step, state, batch), expected) < 2e-4


@pytest.mark.parametrize("count", [1, 4])
def test_rows_that_a_step_draws_are_rows_of_its_batch(count):
    """What a generator makes of noise is split as its examples are."""

    def step(weights, key, batch, noise=None):
        key, used = jax.random.split(key)
        drawn = jax.random.normal(used, batch.shape)

        def loss(weights):
            x = drawn if noise is None else noise
            for weight in weights:
                x = jnp.tanh(x @ weight)
            return jnp.mean((x - batch) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return [w - g for w, g in zip(weights, gradients, strict=True)], key, value

    def seconds(*arguments):
        method = ShardParallel(method="data-parallel", num_micro_batches=count)
        made = alpa_mlir.parallelize(step, cluster="dgx-a100", method=method, cache=False)
        return made.plan(*arguments).predicted_seconds

    rows = jax.ShapeDtypeStruct((8192, 1024), jnp.float32)
    weights = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 8
    key = jax.eval_shape(lambda: jax.random.key(0))
    assert seconds(weights, key, rows) < 1.2 * seconds(weights, key, rows, rows)


def rows_of(weight, batch):
    return jnp.mean((batch["x"] @ weight) ** 2) + jnp.mean(jnp.sin(weight[batch["i"]]))


def recurrent(weight, batch):
    def cell(hidden, x):
        return jnp.tanh(hidden @ weight + x), None

    last, _ = jax.lax.scan(cell, batch["x"], jnp.stack([batch["x"]] * 3))
    return jnp.mean(last**2)


def branched(weight, batch):
    penalty = jax.lax.cond(batch["i"][0] > 3, jnp.sin, lambda w: 2 * w, weight)
    return jnp.mean((batch["x"] @ weight) ** 2) + jnp.sum(penalty)


def gated(weight, batch):
    h = batch["x"] @ weight
    return jnp.mean((h[:, :8] * jax.nn.silu(h[:, 8:]) @ weight[:8]) ** 2)


def in_blocks(weight, batch):
    return jnp.mean((jnp.tanh(batch["x"][:, :8] @ weight[:8, :8]) @ weight[:8, 8:]) ** 2)


def spectral(weight, batch):
    return jnp.mean((batch["x"] @ (weight / jnp.linalg.norm(weight @ weight.T) + weight.T)) ** 2)


def permuted(weight, batch):
    y = (batch["x"] @ weight)[jnp.argsort(batch["x"][:, 0])]
    return jnp.mean((y - batch["x"]) ** 2)


WAYS = [(name, shape) for name in ("zero-2", "zero-3", "auto") for shape in ((2, 4), (8,))]


# Tensors need an axis of their own.
@pytest.mark.parametrize(("method", "mesh_shape"), [*WAYS, ("megatron-zero-1", (2, 4))])
@pytest.mark.parametrize(
    "loss", [rows_of, recurrent, branched, gated, in_blocks, spectral, permuted]
)
@pytest.mark.sweep(24)
def test_gradients_that_ops_cannot_make_split_are_split_behind_them(loss, method, mesh_shape):
    def step(weight, batch):
        value, gradient = jax.value_and_grad(loss)(weight, batch)
        return weight - gradient, value

    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    weight = 0.3 * jax.random.normal(keys[0], (16, 16))
    batch = {"x": jax.random.normal(keys[1], (16, 16)), "i": jnp.arange(16)[::-1]}
    expected = jax.jit(step)(weight, batch)
    found = alpa_mlir.parallelize(
        step, cluster=CLUSTER, method=ShardParallel(mesh_shape=mesh_shape, method=method)
    )(weight, batch)
    for got, wanted in zip(jax.device_get(found), expected, strict=True):
        assert jnp.abs(got - wanted).max() < 1e-6 * max(1, jnp.abs(wanted).max())


MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def pinned_step(state, batch):
    def loss(params):
        hidden = jnp.tanh(batch["x"] @ params["up"])
        hidden = jax.lax.with_sharding_constraint(
            hidden, NamedSharding(MESH, P(P.UNCONSTRAINED, "model"))
        )
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state)
    return optax.apply_updates(state, jax.tree.map(lambda g: -0.1 * g, grads)), {"loss": value}


def pinned_example():
    key = jax.random.PRNGKey(0)
    state = {"up": jax.random.normal(key, (32, 64)), "down": jax.random.normal(key, (64, 32))}
    return state, {"x": jnp.ones((8, 32)), "y": jnp.zeros((8, 32))}


def test_pins_behind_places_that_hold_nothing():
    state, batch = pinned_example()
    method = ShardParallel(
        method="manual", mesh_shape=(2, 4), in_shardings=(None, P("y")), mesh_axes=("x", "y")
    )
    state = {"a": None, "p": state}

    def step(state, batch):
        p, metrics = pinned_step(state["p"], batch)
        return {"a": None, "p": p}, metrics

    compiled = alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method)
    specs = compiled.get_input_placement_specs()[1]
    assert all(found.sharding_specs[0][0] == "y" for found in specs.values())


def test_pins_that_differ_from_how_the_batch_is_held():
    """The batch keeps its sharding, and its constrained copy is made of it."""

    def step(state, batch):
        def loss(params):
            x = jax.lax.with_sharding_constraint(batch["x"], NamedSharding(MESH, P(None, "model")))
            return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    state, batch = pinned_example()
    expected = jax.jit(step)(state, batch)
    method = ShardParallel(
        method="manual", mesh_shape=(2, 4), mesh_axes=MESH.axis_names,
        in_shardings=(None, {"x": P("data"), "y": P("data")}), num_micro_batches=1,
    )  # fmt: skip
    found = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)(state, batch)
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["zero-2", "zero-3", "megatron-zero-1", "auto"])
def test_values_that_two_states_become(method):
    """New weights are the reference of the next step too, which ZeRO holds otherwise."""

    def step(state, batch):
        value, gradient = jax.value_and_grad(rows_of)(state["weight"], batch)
        new = state["weight"] - gradient + 0.1 * (state["weight"] - state["before"])
        return {"weight": new, "before": new, "older": state["before"]}, value

    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    weight = 0.3 * jax.random.normal(keys[0], (16, 16))
    state = {"weight": weight, "before": 0.9 * weight, "older": 0.8 * weight}
    batch = {"x": jax.random.normal(keys[1], (16, 16)), "i": jnp.arange(16)}
    method = ShardParallel(method=method, mesh_shape=(2, 4))
    planned = alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method)
    found, wanted = state, state
    for _ in range(3):
        found, value = planned(found, batch)
        wanted, reference = jax.jit(step)(wanted, batch)
        np.testing.assert_allclose(value, reference, rtol=1e-5)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_manual_keeps_what_is_pinned():
    expected = run(jax.jit(pinned_step), *pinned_example())
    method = ShardParallel(
        method="manual",
        mesh_shape=(2, 4),
        mesh_axes=("data", "model"),
        in_shardings=({"up": P(None, "model"), "down": P(("data", "model"))}, P("data")),
    )
    state, batch = pinned_example()
    step = alpa_mlir.compile(pinned_step, state, batch, cluster=CLUSTER, method=method)
    assert relative_difference(run(step, state, batch), expected) < 1e-5
    specs = {name.rsplit("'")[1]: spec for name, spec in state_specs(step.plan).items()}
    assert specs == {"up": [[], ["y"]], "down": [["x", "y"], []]}
    text = "".join(step.plan.modules.values())
    assert "optimization_barrier" not in text
    assert "alpa.pin" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "zero-4"}, "unknown method 'zero-4'; fix: use one of auto, data-parallel,"),
        ({"in_shardings": P("x")}, "in_shardings with method 'auto'"),
    ],
)
def test_bad_methods(options, message):
    with pytest.raises(MethodError, match=message):
        ShardParallel(**options)


@pytest.mark.parametrize(
    ("shardings", "mesh_shape", "message"),
    [
        ((P("z"), None), (2, 4), "names the axis 'z'; fix: use axes of mesh_axes: x, y"),
        (({"up": P()}, None), (2, 4), "fix: follow the arguments' tree"),
        ((P("x", None, None), None), (2, 4), "a sharding of 3 dimensions for 2"),
        (("x", None), (2, 4), "'x' is no sharding"),
        ((P("y", "x"), None), (4, 2), "are for a mesh of .2, 4., but this one is .4, 2."),
        (
            (None, P("x", "x")),
            (2, 4),
            r"^batch\['x'\]: is pinned to the axis 'x' twice; fix: use each axis",
        ),
        (
            (None, P(("y", "x"))),
            None,
            r"^batch\['x'\]: dimension 0 is pinned to 'y', 'x', which .* as in mesh",
        ),
        (
            (None, P("y")),
            (8,),
            r"^batch\['x'\]: is pinned to 'y', axis 1 of a mesh of 1; fix: give mesh_axes",
        ),
        (
            (None, P("x")),
            (3, 1),
            r"^batch\['x'\]: dimension 0 of \[.*\] is pinned to 'x', 3 parts, which do",
        ),
    ],
)
def test_bad_pins(shardings, mesh_shape, message):
    method = ShardParallel(
        method="manual", mesh_shape=mesh_shape, in_shardings=shardings, mesh_axes=("x", "y")
    )
    with pytest.raises(MethodError, match=message):
        alpa_mlir.compile(pinned_step, *pinned_example(), cluster=CLUSTER, method=method)


# -- device types -----------------------------------------------------------------------------


MIXED = {
    "name": "mixed",
    "device_types": {
        name: {"memory_bytes": "1GiB", "memory_bandwidth": 1e10, "peak_flops": {"float32": flops}}
        for name, flops in (("quick", 4e10), ("model 2", 1e10))
    },
    "hosts": [
        {"count": 1, "devices": 2, "device_type": "quick"},
        {"count": 2, "devices": 2, "device_type": "model 2"},
    ],
    "links": {
        "intra_host": {"bandwidth": 4e9, "latency": 2e-5},
        "inter_host": {"bandwidth": 1e9, "latency": 1e-4},
    },
}


def mixed_plan(method):
    def step(w, x):
        value, grads = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w[0]) @ w[1]) ** 2))(w)
        return [p - 0.1 * g for p, g in zip(w, grads, strict=True)], value

    shape = jax.ShapeDtypeStruct((256, 256), "float32")
    function = alpa_mlir.parallelize(step, cluster=MIXED, method=method, cache=False)
    return function.plan([shape] * 2, shape).plan


@pytest.mark.parametrize(
    ("method", "devices"),
    [
        (PipeshardParallel(submeshes=[(1, 1, "model 2"), (1, 1, "quick")]), [{2, 3, 4, 5}, {0, 1}]),
        (PipeshardParallel(submeshes=[(1, 2, "quick"), (2, 2, "model 2")]), [{0, 1}, {2, 3, 4, 5}]),
        (ShardParallel(device_type="quick"), [{0, 1}]),
        (ShardParallel(device_type="model 2"), [{2, 3, 4, 5}]),
        (ShardParallel(device_type="model 2", mesh_shape=(2,)), [{2, 3, 4, 5}]),
    ],
)
def test_stages_lie_on_hosts_of_the_type_that_is_named(method, devices):
    plan = mixed_plan(method)
    found = [set(plan.meshes[stage.mesh].devices) for stage in plan.stages]
    assert all(own <= allowed for own, allowed in zip(found, devices, strict=True)), found


def test_a_quicker_type_is_foreseen_to_be_quicker():
    quick, slow = (
        mixed_plan(PipeshardParallel(submeshes=[(1, 1, name)])).stages[0].predicted
        for name in ("quick", "model 2")
    )
    assert slow["forward_seconds"] > 2 * quick["forward_seconds"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            lambda: PipeshardParallel(submeshes=[(1, 1, "v100")]),
            "'1x1@v100' names no device type of cluster 'mixed': quick, model 2",
        ),
        (
            lambda: ShardParallel(device_type="v100"),
            "cluster 'mixed' has no hosts of device type 'v100'; fix: use one of model 2, quick",
        ),
        (lambda: PipeshardParallel(submeshes=[(2, 2, "quick")]), "is no part of cluster 'mixed'"),
        (lambda: PipeshardParallel(submeshes=[(1, "quick")]), r"submesh \(1, 'quick'\); fix: use"),
        (lambda: PipeshardParallel(submeshes=[(1, 1, 1)]), r"submesh \(1, 1, 1\)"),
        (lambda: PipeshardParallel(submeshes=[(0, 1)]), r"submesh \(0, 1\)"),
        (lambda: PipeshardParallel(submeshes=["1x2"]), "submesh '1x2'"),
        (lambda: PipeshardParallel(submeshes=[(1, 1, "a,b")]), "device type 'a,b'; fix: give the"),
    ],
)
def test_bad_submeshes(method, message):
    with pytest.raises(MethodError, match=message):
        mixed_plan(method())


def test_a_method_that_does_not_fit_says_so():
    model, _ = model_and_reference("gpt")

    def plan(name, cluster):
        method = ShardParallel(mesh_shape=(2, 4), method=name, memory_fraction=1)
        fn = alpa_mlir.parallelize(model.step, cluster=cluster, method=method)
        return fn.plan(*model.init()).plan

    def peak(name):
        return plan(name, CLUSTER).stages[0].predicted["peak_bytes"]

    least, most = peak("zero-3"), peak("data-parallel")
    assert least < most
    device = {**CLUSTER["device_types"]["small"], "memory_bytes": int((least + most) / 2)}
    small = {**CLUSTER, "device_types": {"small": device}}
    plan("zero-3", small)
    with pytest.raises(InfeasiblePlanError, match="no plan fits into memory"):
        plan("data-parallel", small)


@pytest.mark.sample(2)
@pytest.mark.parametrize("pipeline", ["intra-only", "inter-only", "equal-layer", "uniform"])
def test_numbers_of_pipelines(pipeline):
    model, expected = model_and_reference("gpt")
    state, batch = model.init()
    hosts = {**CLUSTER, "hosts": {"count": 2, "devices": 2, "device_type": "small"}}
    method = AutoParallel(pipeline=pipeline, num_micro_batches=2, layers=4)
    step = alpa_mlir.compile(model.step, state, batch, cluster=hosts, method=method)
    assert relative_difference(run(step, state, batch), expected) < 2e-4
    sizes = [len(mesh.devices) for mesh in step.plan.meshes]
    layers = [stage.layers[1] - stage.layers[0] for stage in step.plan.stages]
    assert sum(sizes) == 4
    if pipeline == "intra-only":
        assert sizes == [4]
    if pipeline == "inter-only":
        assert sizes == [1, 1, 1, 1]
    if pipeline in ("equal-layer", "uniform"):
        assert len(set(layers)) == 1
    if pipeline == "uniform":
        assert len(set(sizes)) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["gpt", "moe", "vit"])
def test_auto_is_behind_no_pipeline_method(name):
    """On links so slow that updates, which sum gradients, are long beside a micro-batch."""
    model = zoo.get(name)
    slow = {
        **CLUSTER,
        "hosts": {"count": 4, "devices": 2, "device_type": "small"},
        "links": {
            "intra_host": {"bandwidth": 1e9, "latency": 1e-6},
            "inter_host": {"bandwidth": 1e8, "latency": 1e-5},
        },
    }
    seconds = {}
    for pipeline in ("auto", "intra-only", "equal-layer", "equal-mesh", "uniform"):
        method = AutoParallel(num_micro_batches=4, layers=4, pipeline=pipeline, remat="none")
        fn = alpa_mlir.parallelize(model.step, cluster=slow, method=method)
        seconds[pipeline] = fn.plan(*model.init(8)).plan.predicted["step_seconds"]
    assert seconds["auto"] <= 1.01 * min(seconds.values()), seconds
    assert len({round(x, 9) for x in seconds.values()}) > 1


@pytest.mark.parametrize("num_micro_batches", [1, 4])
@pytest.mark.parametrize("scan", [False, True])
def test_every_new_weight_is_gathered(scan, num_micro_batches):
    """ZeRO-2 updates parts of weights that each device has whole."""
    sizes = zoo.GPTConfig(layers=6, hidden=256, heads=4, vocab=512, seq=64, scan=scan)
    model = zoo.make_gpt(sizes)
    state, batch = jax.eval_shape(functools.partial(model.init, 32))
    method = ShardParallel(method="zero-2", num_micro_batches=num_micro_batches)
    step = alpa_mlir.parallelize(model.step, cluster="dgx-a100", method=method, cache=False)
    moved = step.plan(state, batch).plan.explanation(0)["communication"]
    gathered = sum(row["bytes"] for row in moved if row["collective"] == "all_gather")
    assert gathered > 0.99 * sum(4 * leaf.size for leaf in jax.tree.leaves(state.params))
