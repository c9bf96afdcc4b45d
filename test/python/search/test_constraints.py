"""Sharding constraints of a step are pins: kept where a mesh can, never at the price of results."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_mlir.errors import MethodError
from alpa_mlir.report.explanation import bottlenecks
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from test_equality import CLUSTER

LAYERS, WIDTH, HIDDEN, EXAMPLES = 4, 16, 32, 16
DATA = "data"
MODEL = "model"


def mesh_of(*shape):
    return AbstractMesh(shape, (DATA, MODEL), axis_types=(AxisType.Auto,) * 2)


MESH, ONE = mesh_of(2, 4), mesh_of(1, 1)


def pin(x, *spec, mesh=MESH):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def example():
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    params = {
        "up": 0.3 * jax.random.normal(keys[0], (LAYERS, WIDTH, HIDDEN)),
        "down": 0.3 * jax.random.normal(keys[1], (LAYERS, HIDDEN, WIDTH)),
    }
    batch = {
        "x": jax.random.normal(keys[2], (EXAMPLES, 4, WIDTH)),
        "y": jax.random.normal(keys[3], (EXAMPLES, 4, WIDTH)),
    }
    return params, batch


def layer(x, weights, mesh=MESH):
    h = pin(jnp.tanh(x @ weights["up"]), DATA, None, MODEL, mesh=mesh)
    return pin(x + h @ weights["down"], DATA, P.UNCONSTRAINED, None, mesh=mesh), None


def first(params):
    return jax.tree.map(lambda p: p[0], params)


def scanned(params, x):
    """Constraints in a scan over layers, with stacks of weights that are constrained as well."""
    params = {"up": pin(params["up"], None, DATA, MODEL), "down": pin(params["down"], DATA)}
    return jax.lax.scan(layer, x, params)[0]


def rematerialized(params, x):
    return jax.lax.scan(jax.checkpoint(layer), x, params)[0]


def jitted(params, x):
    call = jax.jit(layer)
    for i in range(LAYERS):
        x, _ = call(x, jax.tree.map(lambda p, i=i: p[i], params))
    return x


def mapped(params, x):
    weights = first(params)

    def one(row):
        return pin(jnp.tanh(row @ weights["up"]), None, MODEL) @ weights["down"]

    return jax.vmap(one, spmd_axis_name=DATA)(x)


def looped(params, x):
    weights = first(params)
    return jax.lax.fori_loop(0, 3, lambda _, x: layer(x, weights)[0], pin(x, (DATA, MODEL)))


def viewed(params, x):
    """Two meshes of the same devices."""
    weights = first(params)
    line = AbstractMesh((8,), ("all",), axis_types=(AxisType.Auto,))
    h = pin(jnp.tanh(pin(x, "all", mesh=line) @ weights["up"]), (DATA, MODEL))
    return pin(h @ weights["down"], DATA, MODEL)


def step_of(model):
    def step(params, batch):
        def loss(params):
            return jnp.mean((model(params, batch["x"]) - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        grads = {**grads, "down": pin(grads["down"], None, MODEL)}
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def rows_of(plan):
    """What became of the constraints, in all stages."""
    return [
        row
        for number in range(len(plan.stages))
        for row in plan.explanation(number).get("constraints", ())
    ]


def check(step, method):
    planned = alpa_mlir.compile(step, *example(), cluster=CLUSTER, method=method, cache=False)
    found, wanted = planned(*example()), jax.jit(step)(*example())
    for got, reference in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, reference, rtol=1e-5, atol=1e-5)
    return planned.plan


@pytest.mark.parametrize(
    ("model", "method", "kept"),
    [
        (scanned, ShardParallel(mesh_shape=(2, 4)), 21),
        (scanned, ShardParallel(mesh_shape=(2, 4), num_micro_batches=2), 21),
        (scanned, ShardParallel(mesh_shape=(2, 2, 2), num_mesh_axes=3), 21),
        (rematerialized, ShardParallel(mesh_shape=(4, 2)), 21),
        (jitted, ShardParallel(mesh_shape=(2, 4), export="collectives"), 17),
        (mapped, ShardParallel(mesh_shape=(2, 4), method="zero-2"), 3),
        (looped, ShardParallel(mesh_shape=(2, 4)), 6),
        (looped, ShardParallel(mesh_shape=(2, 4), method="zero-3"), 4),
        (viewed, ShardParallel(mesh_shape=(2, 4)), 6),
        (scanned, ShardParallel(mesh_shape=(8,)), 0),
    ],
)
def test_steps_equal_jit(model, method, kept):
    plan = check(step_of(model), method)
    rows = rows_of(plan)
    assert sum(row["count"] for row in rows if "held" in row) == kept
    reasons = {row["dropped"] for row in rows if "dropped" in row}
    if model is looped and method.method != "auto":
        assert reasons == {"the loop or branch that it stands in is split otherwise"}
    elif kept:
        assert not reasons
    else:
        assert any(reason.startswith("a mesh of 8 has no axes left") for reason in reasons)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("shape", [(2, 4), (1, 4)])
def test_pipelines_equal_jit(count, shape):
    """On half the devices only constraints that they can hold are kept."""

    def model(params, x):
        return jax.lax.scan(lambda x, w: layer(x, w, mesh_of(*shape)), x, params)[0]

    def step(params, batch):
        def loss(params):
            return jnp.mean((model(params, batch["x"]) - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    method = PipeshardParallel(submeshes=[(1, 4)] * 2, layers=2, num_micro_batches=count)
    plan = check(step, method)
    rows = rows_of(plan)
    assert all("held" in row for row in rows) == (shape == (1, 4))
    assert any("held" in row for row in rows)
    assert all("has no axes left" in row["dropped"] for row in rows if "dropped" in row)


def simple(mesh):
    def step(params, batch):
        weights = first(params)
        weights = {**weights, "up": pin(weights["up"], DATA, MODEL, mesh=mesh)}

        def loss(weights):
            h = pin(jnp.tanh(batch["x"] @ weights["up"]), MODEL, mesh=mesh)
            return jnp.mean((h @ weights["down"] - batch["y"]) ** 2)

        return params, loss(weights)

    return step


def plan_of(step, **options):
    method = ShardParallel(**{"mesh_shape": (2, 4), **options})
    return alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, cache=False).plan(*example())


def test_costs_are_told_and_ignored_constraints_are_free():
    kept = plan_of(simple(MESH)).plan
    free = plan_of(simple(MESH), sharding_constraints="ignore").plan
    found = kept.explanation(0)
    assert {(row["wants"], row.get("held")) for row in found["constraints"]} == {
        ("P('data', 'model')", "[S0, S1]"),
        ("P('model', None, None)", "[S1, R, R]"),
    }
    seconds = [plan.predicted["step_seconds"] for plan in (kept, free)]
    assert found["constraints_seconds"] == pytest.approx(seconds[0] - seconds[1], rel=0.01)
    assert found["constraints_seconds"] > 0
    text = alpa_mlir.explain(kept)
    assert "sharding constraints, 2 of 2 values held as they say: they cost" in text
    assert "test_constraints.py" in text
    assert "- 2 values are held as sharding constraints of the program say, which costs" in (
        bottlenecks(kept).as_text()
    )
    assert "constraints" not in free.explanation(0)
    assert "optimization_barrier" not in "".join(kept.modules.values())


def test_a_mesh_of_one_device_says_nothing():
    found = [plan_of(simple(mesh)).plan for mesh in (ONE, MESH)]
    free = plan_of(simple(ONE), sharding_constraints="ignore").plan
    assert found[0].modules == free.modules
    assert found[0].predicted == free.predicted
    assert found[1].predicted != free.predicted


def test_views_that_hold_the_constraints_are_chosen():
    """Though one axis of eight would take less without them."""
    plan = plan_of(simple(MESH), mesh_shape=None).plan
    assert sorted(plan.meshes[0].shape) == [2, 4]
    assert all("held" in row for row in rows_of(plan))


def test_constraints_with_which_nothing_fits_are_dropped():
    """A whole activation is more than a device has."""

    def step(params, batch):
        return params, (pin(batch["x"] @ params["w"]) @ params["v"]).sum()

    params = {"w": (64, 1 << 13), "v": (1 << 13, 64)}
    params = {name: jax.ShapeDtypeStruct(x, jnp.float32) for name, x in params.items()}
    batch = {"x": jax.ShapeDtypeStruct((1 << 12, 64), jnp.float32)}
    kind = {**CLUSTER["device_types"]["small"], "memory_bytes": "128MiB"}
    cluster = {**CLUSTER, "device_types": {"small": kind}}
    method = ShardParallel(mesh_shape=(2, 4))
    planned = alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)
    rows = rows_of(planned.plan(params, batch).plan)
    assert {row["dropped"] for row in rows} == {"no plan fits with the constraints"}


def test_bad_values_of_the_option():
    with pytest.raises(MethodError, match="sharding_constraints 'drop'; fix: use one of keep, ig"):
        ShardParallel(sharding_constraints="drop")


def test_shardings_of_a_jitted_step_are_pins():
    def inner(params, batch):
        h = jnp.tanh(batch["x"] @ params["up"][0])
        return params, jnp.mean((h @ params["down"][0] - batch["y"]) ** 2)

    specs = ({"up": P(None, None, MODEL), "down": P()}, {"x": P(DATA), "y": P(DATA)})
    mesh = jax.make_mesh((2, 4), (DATA, MODEL), axis_types=(AxisType.Auto,) * 2)
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P)
    )
    step = jax.jit(inner, in_shardings=shardings)
    plan = check(step, ShardParallel(mesh_shape=(2, 4)))
    assert {row["held"] for row in rows_of(plan)} >= {"[R, R, S1]", "[S0, R, R]"}
