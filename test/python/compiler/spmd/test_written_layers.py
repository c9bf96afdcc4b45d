"""Layers with arrays of their own become a loop: what it computes, and what the caller sees."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json

import alpa_mlir
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa_mlir import (
    ArgumentMismatchError,
    MethodError,
    PipeshardParallel,
    ShardParallel,
    restore_checkpoint,
    save_checkpoint,
)
from alpa_runtime.arrays import RowArray
from alpa_runtime.errors import PlanFormatError
from alpa_runtime.hosts.threads import ThreadWorkers
from alpa_runtime.plan import Plan
from alpa_runtime.worker_group import Placement
from same_bits import check_same
from test_equality import CLUSTER, relative_difference

ONE_MESH = functools.partial(ShardParallel, mesh_shape=(2, 2), layer_loops="all")
STAGES = functools.partial(PipeshardParallel, submeshes=[(1, 2), (1, 2)], layer_loops="all")
METHODS = {
    "one mesh": ONE_MESH(num_micro_batches=2),
    "one mesh, one run": ONE_MESH(),
    "zero-3": ONE_MESH(num_micro_batches=2, method="zero-3"),
    "two stages": STAGES(num_micro_batches=2),
    "backward in two": STAGES(num_micro_batches=4, schedule="zb-h1"),
    "collectives": STAGES(num_micro_batches=2, export="collectives"),
}
WIDTH = 32


def normal(seed, *shape):
    return 0.2 * jax.random.normal(jax.random.key(seed), shape)


def make_layer(seed):
    return {
        "up": normal(seed, WIDTH, 2 * WIDTH),
        "bias": jnp.zeros(2 * WIDTH),
        "down": normal(seed + 100, 2 * WIDTH, WIDTH),
        "gain": jnp.asarray(1.0 + 0.1 * seed),  # A scalar is a row, too,
        "row": jnp.ones((1, WIDTH)),  # and what has one row itself.
    }


def block(layer, x):
    scale = jax.lax.rsqrt(1 + jnp.mean(x**2, -1, keepdims=True))
    hidden = jnp.tanh(x * scale @ layer["up"] + layer["bias"])
    return x + hidden @ layer["down"] * layer["row"] * layer["gain"]


def gated(layer, x):
    return x + jax.nn.sigmoid(x @ layer["gate"]) * (x @ layer["value"])


def list_of_dicts():
    return {"layers": [make_layer(i) for i in range(8)]}, lambda p, x: functools.reduce(
        lambda x, layer: block(layer, x), p["layers"], x
    )


def two_kinds():
    """Layers of two kinds take turns."""
    params = [
        make_layer(i)
        if i % 2 == 0
        else {"gate": normal(i, WIDTH, WIDTH), "value": normal(i + 50, WIDTH, WIDTH)}
        for i in range(12)
    ]
    return params, lambda p, x: functools.reduce(
        lambda x, layer: (block if "up" in layer else gated)(layer, x), p, x
    )


def shared_between_layers():
    params = {
        "layers": [{"up": normal(i, WIDTH, 2 * WIDTH)} for i in range(8)],
        "down": normal(40, 2 * WIDTH, WIDTH),
    }

    def apply(p, x):
        for layer in p["layers"]:
            x = x + jnp.tanh(x @ layer["up"]) @ p["down"] / (1 + jnp.mean(x**2, -1, keepdims=True))
        return x

    return params, apply


def shared_in_turns():
    """Eight layers with the weights of two."""
    params = [make_layer(i) for i in range(2)]
    return params, lambda p, x: functools.reduce(lambda x, i: block(p[i % 2], x), range(8), x)


def used_elsewhere():
    """Weights that are read beside their layers: a penalty of all, and the third as the head."""

    def apply(p, x):
        for layer in p:
            x = block(layer, x)
        return x @ p[2]["up"] + 0.01 * sum(jnp.sum(layer["down"] ** 2) for layer in p)

    return [make_layer(i) for i in range(8)], apply


def flax_modules():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))
            return x + nn.Dense(WIDTH)(nn.gelu(y))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(WIDTH, name="embed")(x)
            for _ in range(8):
                x = Block()(x)
            return nn.Dense(4, name="head")(x)

    net = Net()
    return net.init(jax.random.key(0), jnp.ones((1, WIDTH))), net.apply


def partly_frozen():
    """The gates have no gradients and come back as they were."""
    params = [make_layer(i) | {"gate": normal(i + 9, WIDTH, WIDTH)} for i in range(8)]

    def apply(p, x):
        for layer in p:
            x = block(layer, x) + 0.1 * x @ jax.lax.stop_gradient(layer["gate"])
        return x

    return params, apply


def beside_a_stack():
    """Behind a scan over layers that are dimension 1 of their stacks."""
    params = {
        "stack": {"up": normal(30, WIDTH, 4, 2 * WIDTH), "down": normal(31, 2 * WIDTH, 4, WIDTH)},
        "layers": [make_layer(i) for i in range(6)],
    }

    def apply(p, x):
        def body(x, layer):
            scale = jax.lax.rsqrt(1 + jnp.mean(x**2, -1, keepdims=True))
            return x + jnp.tanh(x * scale @ layer["up"]) @ layer["down"], None

        x, _ = jax.lax.scan(body, x, jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), p["stack"]))
        return functools.reduce(lambda x, layer: block(layer, x), p["layers"], x)

    return params, apply


MODELS = {
    f.__name__: f
    for f in (
        list_of_dicts,
        two_kinds,
        shared_between_layers,
        shared_in_turns,
        used_elsewhere,
        flax_modules,
        partly_frozen,
        beside_a_stack,
    )
}


def make_step(apply, optimizer):
    def step(state, batch):
        params, opt = state

        def loss(params):
            return jnp.mean((apply(params, jnp.tanh(batch["x"])) - batch["y"][:, :1]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    return step


BATCH = {"x": normal(1000, 16, WIDTH), "y": normal(1001, 16, 4)}


@functools.cache
def stepped(model, name="momentum"):
    """A state and a step."""
    params, apply = MODELS[model]()
    optimizer = {
        "momentum": optax.sgd(0.005, momentum=0.9),
        "clipped adam": optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2, eps=1e-2)),
    }[name]
    return (params, optimizer.init(params)), make_step(apply, optimizer)


def compiled(model, method, optimizer="momentum", **options):
    state, step = stepped(model, optimizer)
    planned = alpa_mlir.parallelize(step, cluster=CLUSTER, method=METHODS[method], **options)
    return state, step, planned.plan(state, BATCH)


def num_rows(plan):
    return [len(info.rows.of) for info in plan.inputs if info.rows is not None]


def is_fast(model, method, optimizer):
    """Two methods of each model, and each second model with moments and a norm of all gradients."""
    number = list(MODELS).index(model)
    if optimizer == "momentum":
        return list(METHODS).index(method) % 3 == number % 3
    return method == "one mesh" and number % 2 == 1


@pytest.mark.sweep(8)
@pytest.mark.parametrize(
    ("model", "method", "optimizer"),
    [
        pytest.param(*row, marks=() if is_fast(*row) else pytest.mark.slow)
        for row in itertools.product(MODELS, METHODS, ("momentum", "clipped adam"))
    ],
)
def test_loops_compute_what_layers_do(model, method, optimizer):
    state, step, planned = compiled(model, method, optimizer)
    loaded = planned.load()
    found = expected = state
    for _ in range(3):
        found, value = loaded(found, BATCH)
        expected, expected_value = jax.jit(step)(expected, BATCH)
        assert relative_difference(value, expected_value) < 1e-5
    assert relative_difference(found, expected, 1e-3) < 2e-5


@pytest.mark.parametrize("method", ["one mesh", "one mesh, one run", "zero-3"])
@pytest.mark.parametrize(
    ("model", "least"),
    # The first or the last layer may be split otherwise, and stay beside the loop.
    [("flax_modules", 8), ("partly_frozen", 6), ("list_of_dicts", 5), ("two_kinds", 2)],
)
def test_layers_are_in_loops(model, least, method):
    _, _, planned = compiled(model, method)
    (text,) = planned.plan.modules.values()
    assert text.count("stablehlo.while") >= 2
    assert max(num_rows(planned.plan)) >= least


@pytest.mark.parametrize("method", ["one mesh", "two stages", "backward in two"])
def test_the_default_leaves_them_written_out(method):
    """Plans are those without any loops, the arrays of the state with them."""
    state, step = stepped("flax_modules")

    def planned(layer_loops):
        chosen = dataclasses.replace(METHODS[method], layer_loops=layer_loops)
        return alpa_mlir.parallelize(step, cluster=CLUSTER, method=chosen).plan(state, BATCH).plan

    default, without, every = map(planned, (ShardParallel().layer_loops, False, "all"))
    assert default == without
    assert default.to_json() == without.to_json()
    assert not num_rows(default)
    assert num_rows(every)


@pytest.mark.parametrize("value", ["stacks", "ALL", None, 1, 0.0, ("all",), b"all"])
def test_an_unknown_choice_of_loops_is_an_error(value):
    with pytest.raises(MethodError, match=r'layer_loops .*; fix: use True, False or "all"'):
        ShardParallel(layer_loops=value)


def finished(loaded, state, count=2):
    for _ in range(count):
        state, value = loaded(state, BATCH)
    return state, value


@pytest.mark.sample(2)
@pytest.mark.parametrize("method", ["one mesh", "two stages"])
@pytest.mark.parametrize("model", ["flax_modules", "beside_a_stack"])
def test_state_is_saved_by_leaf(model, method, tmp_path):
    """A checkpoint does not tell whether layers were in a loop, and either step goes on from it."""
    state, _, planned = compiled(model, method)
    loaded = planned.load()
    after, _ = loaded(state, BATCH)
    assert any(isinstance(x, RowArray) for x in jax.tree.leaves(after))
    save_checkpoint(tmp_path, after, step=1).wait()
    on_host = restore_checkpoint(tmp_path, jax.tree.map(np.asarray, after))
    check_same(on_host, jax.tree.map(np.asarray, after))

    for_step = restore_checkpoint(tmp_path, loaded)
    assert any(isinstance(x, RowArray) for x in jax.tree.leaves(for_step))
    like = restore_checkpoint(tmp_path, after)
    placed, batch = loaded.place(on_host, BATCH)
    expected, _ = loaded(after, BATCH)
    expected = jax.tree.map(np.asarray, expected)
    for restored in (for_step, like, placed, on_host):
        found, _ = loaded(restored, batch)
        check_same(jax.tree.map(np.asarray, found), expected)

    written_out = alpa_mlir.parallelize(
        stepped(model)[1],
        cluster=CLUSTER,
        method=dataclasses.replace(METHODS[method], layer_loops=False),
    ).plan(state, BATCH)
    assert not num_rows(written_out.plan)
    other = written_out.load()
    found, _ = other(restore_checkpoint(tmp_path, other), BATCH)
    assert relative_difference(found, expected, 1e-3) < 1e-5


@pytest.mark.parametrize("model", ["flax_modules", "beside_a_stack"])
def test_rows_in_workers(model, tmp_path):
    """Each worker makes, saves and reads its own part of the stacks."""
    state, step, planned = compiled(model, "two stages")
    expected, _ = finished(jax.jit(step), state, 3)
    placement = Placement(tuple(mesh.devices for mesh in planned.plan.meshes))
    loaded = planned.load(workers=ThreadWorkers(placement))
    try:
        made = loaded.init(lambda: state)
        after, _ = finished(loaded, made)
        rows = [x for x in jax.tree.leaves(after) if isinstance(x, RowArray)]
        assert rows
        save_checkpoint(tmp_path, after, step=1).wait()
        on_host = restore_checkpoint(tmp_path, jax.tree.map(np.asarray, after))
        check_same(on_host, jax.tree.map(np.asarray, after))
        for restored in (restore_checkpoint(tmp_path, loaded), on_host, after):
            found, _ = loaded(restored, BATCH)
            assert relative_difference(found, expected, 1e-3) < 1e-5
        with pytest.raises(ArgumentMismatchError, match="earlier step"):
            loaded(after, BATCH)
    finally:
        loaded.close()


def test_the_caller_sees_leaves():
    state, step, planned = compiled("list_of_dicts", "one mesh")
    plan, signature = planned.plan, planned.traced.signature
    assert [(x.name, x.kind, x.carried_by) for x in plan.arguments] == [
        (x.name, x.kind, x.carried_by) for x in signature.inputs
    ]
    assert [x.shape for x in plan.arguments if x.kind == "state"] == [
        x.shape for x in jax.tree.leaves(state)
    ]
    assert [(x.name, x.shape) for x in plan.results] == [
        (x.name, x.shape) for x in signature.outputs
    ]
    loaded = planned.load()
    specs, _ = loaded.get_input_placement_specs()
    for placed, x in zip(jax.tree.leaves(specs), jax.tree.leaves(state), strict=True):
        assert (placed.shape, len(placed.sharding_specs[0])) == (x.shape, x.ndim)
    after, _ = loaded(state, BATCH)
    expected, _ = jax.jit(step)(state, BATCH)
    layer, wanted = after[0]["layers"][4], expected[0]["layers"][4]
    for name, found in layer.items():
        assert isinstance(found, RowArray)
        assert (found.shape, found.dtype) == (wanted[name].shape, wanted[name].dtype)
        assert found.sharding.device_set == set(jax.devices()[:4])
        for read in (
            np.asarray,
            jnp.asarray,
            jax.device_get,
            lambda x: 2 * x / 2,
            jax.jit(jnp.copy),
        ):
            np.testing.assert_allclose(read(found), wanted[name], rtol=1e-4, atol=1e-6)

    # A leaf of one's own among the rows is put in its place, and rows in another order are not
    # taken for the stack.
    def zeroed(layers):
        return [*layers[:4], layers[4] | {"up": jnp.zeros_like(layers[4]["up"])}, *layers[5:]]

    def swapped(layers):
        return [*layers[:2], layers[3], layers[2], *layers[4:]]

    host = jax.tree.map(np.array, after)
    for change in (zeroed, swapped):
        placed, _ = loaded.place(host, BATCH)
        found, _ = loaded(({"layers": change(placed[0]["layers"])}, placed[1]), BATCH)
        wanted, _ = jax.jit(step)(({"layers": change(host[0]["layers"])}, host[1]), BATCH)
        assert relative_difference(found, wanted, 1e-3) < 1e-5

    # All of them are given away together, and a wrong one is named.
    assert found[0]["layers"][3]["up"].shape == (WIDTH, 2 * WIDTH)
    loaded(found, BATCH)
    with pytest.raises(ArgumentMismatchError, match="earlier step"):
        loaded(found, BATCH)
    host[0]["layers"][5]["up"] = jnp.zeros((3, 3))
    with pytest.raises(ArgumentMismatchError, match=r"\['layers'\]\[5\]\['up'\]"):
        loaded(host, BATCH)


def test_steps_that_give_nothing_back():
    """Weights that no step replaces are put together once."""
    params, apply = MODELS["flax_modules"]()

    def evaluate(params, batch):
        return jnp.mean(apply(params, batch["x"]) ** 2)

    loaded = alpa_mlir.compile(evaluate, params, BATCH, cluster=CLUSTER, method=ONE_MESH())
    for _ in range(2):
        value = loaded(params, BATCH)
        np.testing.assert_allclose(value, evaluate(params, BATCH), rtol=1e-5)


def test_typed_keys_stay_by_themselves():
    def step(state, batch):
        def loss(layers):
            x = batch["x"]
            for layer, key in zip(layers, state["keys"], strict=True):
                noise = jax.random.normal(jax.random.fold_in(key, 1), (WIDTH,))
                x = block(layer, x) + 0.1 * noise
            return jnp.mean(x**2)

        value, grads = jax.value_and_grad(loss)(state["layers"])
        layers = jax.tree.map(lambda w, g: w - 0.01 * g, state["layers"], grads)
        return {"layers": layers, "keys": [jax.random.split(k)[0] for k in state["keys"]]}, value

    state = {
        "layers": [make_layer(i) for i in range(6)],
        "keys": list(jax.random.split(jax.random.key(3), 6)),
    }
    loaded = alpa_mlir.compile(step, state, BATCH, cluster=CLUSTER, method=METHODS["one mesh"])
    found = expected = state
    for _ in range(2):
        found, value = loaded(found, BATCH)
        expected, wanted = jax.jit(step)(expected, BATCH)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    assert relative_difference(found, expected, 1e-3) < 1e-5


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"shape": [3]}, "rows of"),
        ({"of": [0]}, "1 rows"),
        ({"of": [0] * 8}, "distinct"),
        ({"of": [10**6] * 8}, "distinct"),
        ({"names": []}, "0 names"),
    ],
)
def test_damaged_rows_are_named(change, problem):
    plan = compiled("flax_modules", "one mesh")[2].plan
    table = json.loads(plan.to_json())
    index = next(i for i, info in enumerate(plan.inputs) if info.rows is not None)
    table["inputs"][index]["rows"].update(change)
    with pytest.raises(PlanFormatError, match=problem):
        Plan.from_json(json.dumps(table), dict(plan.modules), check_programs=False)
    of_batch = json.loads(plan.to_json())
    of_batch["inputs"][index]["kind"] = "batch"
    with pytest.raises(PlanFormatError, match="expected state"):
        Plan.from_json(json.dumps(of_batch), dict(plan.modules), check_programs=False)
