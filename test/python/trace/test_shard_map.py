"""Steps that say what each device does (`shard_map`) give what `jax.jit` gives, under any plan."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import MicroBatchError, TraceError
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pallas_tpu
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from test_equality import CLUSTER

AUTO = (AxisType.Auto,) * 2
X, Y = 2, 4
BOTH = ("x", "y")


def mesh_of(x=X, y=Y, types=AUTO):
    return jax.make_mesh((x, y), ("x", "y"), axis_types=types)


def normal(seed, *shape):
    return jnp.asarray(np.random.RandomState(seed).normal(size=shape), jnp.float32)


def mapped(body, in_specs, out_specs, **options):
    return jax.shard_map(body, mesh=mesh_of(), in_specs=in_specs, out_specs=out_specs, **options)


def tensor_parallel(w, x):
    """Megatron's MLP: columns, rows, one sum."""

    def body(x, up, down):
        return jax.lax.psum(jax.nn.gelu(x @ up) @ down, "y")

    specs = (P("x"), P(None, "y"), P("y"))
    return mapped(body, specs, P("x"))(x, w["up"], w["down"])


def unchecked(w, x):
    def body(x, up, down):
        return jax.lax.psum(jax.nn.relu(x @ up) @ down, "y")

    specs = (P("x"), P(None, "y"), P("y"))
    return mapped(body, specs, P("x"), check_vma=False)(x, w["up"], w["down"])


def sequence_parallel(w, x):
    """Rows are gathered before the dots, and their sums scattered behind them."""

    def body(x, up, down):
        whole = jax.lax.all_gather(x, "y", axis=1, tiled=True)
        return jax.lax.psum_scatter(
            jnp.tanh(whole @ up) @ down, "y", scatter_dimension=1, tiled=True
        )

    specs = (P("x", "y"), P(None, "y"), P("y"))
    return mapped(body, specs, P("x", "y"))(x, w["up"], w["down"])


def experts(w, x):
    """Each device has some experts; rows go to them and come back."""

    def body(x, up, down):
        rows = x.reshape(Y, -1, x.shape[-1])
        there = jax.lax.all_to_all(rows, "y", 0, 0, tiled=True)
        made = jnp.tanh(there @ up[0]) @ down[0]
        return jax.lax.all_to_all(made, "y", 0, 0, tiled=True).reshape(x.shape)

    split = [a.reshape(Y, a.shape[0], -1) for a in (w["up"], jnp.swapaxes(w["down"], 0, 1))]
    specs = (P(("x", "y")), P("y"), P("y"))
    return mapped(body, specs, P(("x", "y")))(x, split[0], jnp.swapaxes(split[1], 1, 2))


def ring(w, x):
    """Attention over a sequence in blocks that go round, in a loop with a running maximum."""

    def body(x, up, down):
        query, key, value = x @ up, x @ up * 0.5, x @ down.T

        def turn(carry, _):
            key, value, top, total, out = carry
            scores = jnp.einsum("bqd,bkd->bqk", query, key) / 8
            new = jnp.maximum(top, scores.max(-1))
            weight = jnp.exp(scores - new[..., None])
            keep = jnp.exp(top - new)
            total = total * keep + weight.sum(-1)
            out = out * keep[..., None] + jnp.einsum("bqk,bkd->bqd", weight, value)
            around = [(i, (i + 1) % Y) for i in range(Y)]
            key, value = (jax.lax.ppermute(a, "y", around) for a in (key, value))
            return (key, value, new, total, out), None

        start = jnp.full_like(query[..., 0], -1e9), jnp.zeros_like(query[..., 0])
        carry = (key, value, *start, jnp.zeros_like(value))
        (_, _, _, total, out), _ = jax.lax.scan(turn, carry, None, length=Y)
        return (out / total[..., None]) @ down

    return mapped(body, (P("x", "y"), P(), P()), P("x", "y"))(x, w["up"], w["down"])


def chain(w, x):
    """Not all devices send; both axes are counted and reduced at once."""

    def body(x, up, down):
        index = jax.lax.axis_index(("x", "y"))
        moved = jax.lax.ppermute(x, "y", [(0, 1), (1, 2), (2, 3)])
        made = jnp.tanh((moved + x * index) @ up) @ down
        return made + jax.lax.pmean(made, ("x", "y")), jax.lax.psum(jnp.sum(made), ("x", "y"))

    made, total = mapped(body, (P(("x", "y")), P(), P()), (P(("x", "y")), P()))(
        x, w["up"], w["down"]
    )
    return made + total / 1000


def gathered_over_both(w, x):
    def body(x, up, down):
        both = jax.lax.all_gather(up, ("x", "y"), axis=0, tiled=True)
        made = jnp.tanh(x @ both) @ down
        back = jax.lax.psum_scatter(made, ("y",), scatter_dimension=2, tiled=True)
        return jax.lax.all_gather(back, "y", axis=2, tiled=True)

    return mapped(body, (P("x"), P(("x", "y")), P()), P("x"), check_vma=False)(
        x, w["up"], w["down"]
    )


def partly_manual(w, x):
    """The body is written for one axis; the other is left to the compiler."""

    def body(x, up, down):
        up = jax.lax.with_sharding_constraint(up, P("x"))
        return jax.lax.psum(jnp.tanh(x @ up) @ down, "y")

    specs = (P(), P(None, "y"), P("y"))
    options = {"axis_names": {"y"}}
    return mapped(body, specs, P(), **options)(x, w["up"], w["down"])


def checkpointed(w, x):
    return jax.checkpoint(sequence_parallel)(w, x)


def checkpoint_inside(w, x):
    def body(x, up, down):
        made = jax.checkpoint(lambda x, up, down: jnp.tanh(x @ up) @ down)(x, up, down)
        return jax.lax.psum(made, "y")

    return mapped(body, (P("x"), P(None, "y"), P("y")), P("x"))(x, w["up"], w["down"])


def looped(w, x):
    """The same layer three times."""
    return jax.lax.scan(lambda x, _: (x + ring(w, x), None), x, None, length=3)[0]


def branched(w, x):
    return jax.lax.cond(x.sum() > 1e6, lambda x: x, lambda x: tensor_parallel(w, x), x)


@jax.custom_vjp
def doubled(x):
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))


def own_rule(w, x):
    """A backward rule of the user's, which is not the derivative."""

    def body(x, up, down):
        return jax.lax.psum(doubled(jnp.tanh(x @ up)) @ down, "y")

    return mapped(body, (P("x"), P(None, "y"), P("y")), P("x"))(x, w["up"], w["down"])


MODELS = [
    tensor_parallel, unchecked, sequence_parallel, experts, ring, chain, gathered_over_both,
    partly_manual, checkpointed, checkpoint_inside, looped, branched, own_rule,
]  # fmt: skip
# Each layer needs the whole batch for its mean, or for a branch.
MICRO_BATCHES = {chain: 1, branched: 1}


def step_of(model, layers=1):
    def step(state, batch):
        def loss(state):
            x = batch["x"]
            for weights in state:
                x = x + 0.1 * model(weights, x)
            return jnp.mean((x - batch["y"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradients), value

    state = [
        {"up": 0.3 * normal(2 * i, 16, 32), "down": 0.3 * normal(2 * i + 1, 32, 16)}
        for i in range(layers)
    ]
    return step, state, {"x": normal(50, 16, 8, 16), "y": normal(51, 16, 8, 16)}


def compare(step, state, batch, method, steps=2):
    planned = alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method)
    found, wanted = state, state
    for _ in range(steps):
        found, value = planned(found, batch)
        wanted, expected = jax.jit(step)(wanted, batch)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    return planned.plan


@pytest.mark.sample(6)
@pytest.mark.parametrize("model", MODELS)
def test_one_mesh(model):
    plan = compare(*step_of(model), ShardParallel(mesh_shape=(2, 4)))
    assert not any("manual" in text for text in plan.modules.values())


@pytest.mark.sample(5)
@pytest.mark.parametrize("model", MODELS)
def test_two_stages_and_micro_batches(model):
    count = MICRO_BATCHES.get(model, 4)
    method = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=count)
    plan = compare(*step_of(model, layers=4), method)
    assert len(plan.stages) == 2


@pytest.mark.parametrize("model", [tensor_parallel, ring, looped])
def test_micro_batches_of_parts_of_blocks(model):
    """More of them than the batch's axis has devices: each has a part of every device's rows."""
    method = ShardParallel(mesh_shape=(2, 4), num_micro_batches=8)
    step, *given = step_of(model)
    with jax.enable_x64(True):  # Three rounds of a ring's gradients make much of rounding.
        wide = jax.tree.map(lambda x: x.astype(jnp.float64), given)
        plan = compare(step, *wide, method)
    assert not plan.exactness.barriers


MEETINGS = {
    "takes some of the examples": lambda x: x + jnp.roll(x, 1, 0),
    "slides a window over the examples": lambda x: x + jnp.cumsum(x, 0),
}


@pytest.mark.parametrize("reason", MEETINGS)
def test_rows_of_a_block_that_meet(reason):
    """What is in the way is said, not that there are blocks."""
    meet = mapped(MEETINGS[reason], (P("x"),), P("x"))

    def step(weights, batch):
        def loss(weights):
            x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(meet(x @ w)), None), batch, weights)
            return jnp.mean(x**2)

        return weights - 0.1 * jax.grad(loss)(weights)

    method = ShardParallel(num_micro_batches=4)
    with pytest.raises(MicroBatchError, match=reason):
        alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, cache=False).plan(
            normal(0, 4, 16, 16), normal(1, 16, 16)
        )


def test_micro_batches_with_unequal_parts_of_blocks():
    """16 rows are 2 blocks of 8, which 16 micro-batches cannot have a row of each of."""
    step, state, batch = step_of(looped)
    method = ShardParallel(num_micro_batches=16)
    with pytest.raises(MicroBatchError, match="makes 2 blocks of the batch's rows") as error:
        alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, cache=False).plan(state, batch)
    assert error.value.fix == "use 2 or 4 or 8 micro-batches"


def test_nested():
    """Without gradients: those JAX itself cannot lower."""

    def outer(x, up, down):
        def inner(x, up, down):
            return jax.lax.psum(jnp.tanh(x @ up) @ down, "y")

        specs = (P(), P(None, "y"), P("y"))
        return jax.shard_map(inner, in_specs=specs, out_specs=P(), axis_names={"y"})(x, up, down)

    def step(w, x):
        specs = (P("x"), P(), P())
        return mapped(outer, specs, P("x"), axis_names={"x"})(x, w["up"], w["down"])

    _, (weights,), batch = step_of(tensor_parallel)
    planned = alpa_mlir.compile(
        step, weights, batch["x"], cluster=CLUSTER, method=ShardParallel(mesh_shape=(2, 4))
    )
    expected = jax.jit(step)(weights, batch["x"])
    np.testing.assert_allclose(planned(weights, batch["x"]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("axes", "shape", "count"),
    [(("x", "y"), (2, 4), 1), (("x", "y"), (8,), 2), (("x",), (2, 4), 4), (("x",), (2, 4), 8)],
)
def test_the_whole_step_in_one_shard_map(axes, shape, count):
    """Data parallelism by hand: gradients are taken and summed within."""

    def body(weights, x, y):
        def loss(weights):
            return jnp.mean((jnp.tanh(x @ weights["up"]) @ weights["down"] - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        gradients = jax.tree.map(lambda g: jax.lax.pmean(g, axes), gradients)
        new = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
        return new, jax.lax.pmean(value, axes)

    def step(state, batch):
        split = P(axes)
        call = mapped(body, (P(), split, split), (P(), P()), check_vma=False)
        return call(state, batch["x"], batch["y"])

    _, (weights,), batch = step_of(tensor_parallel)
    compare(step, weights, batch, ShardParallel(mesh_shape=shape, num_micro_batches=count))


def test_a_mesh_of_other_devices():
    """Only the sizes count: the program is for 16 devices, the cluster has eight."""
    mesh = AbstractMesh((4, 4), ("x", "y"), axis_types=AUTO)

    def step(w, x):
        def body(x, up, down):
            return jax.lax.psum(jnp.tanh(x @ up) @ down, "y")

        specs = (P("x"), P(None, "y"), P("y"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("x"))(
            x, w["up"], w["down"]
        )

    _, (weights,), batch = step_of(tensor_parallel)
    planned = alpa_mlir.compile(step, weights, batch["x"], cluster=CLUSTER, method=AutoParallel())
    expected = jnp.tanh(batch["x"] @ weights["up"]) @ weights["down"]
    found = planned(weights, batch["x"])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_bits(impl):
    """They are those of each device."""

    def step(weights, batch):
        def body(key, x):
            key = jax.random.fold_in(key, jax.lax.axis_index("x"))
            return x * jax.random.bernoulli(key, 0.5, x.shape)

        key = jax.random.key(1, impl=impl)
        return mapped(body, (P(), P("x")), P("x"), check_vma=False)(key, batch @ weights)

    weights, batch = normal(0, 16, 16), normal(1, 16, 16)
    method = ShardParallel(mesh_shape=(2, 4))
    planned = alpa_mlir.compile(step, weights, batch, cluster=CLUSTER, method=method)
    np.testing.assert_allclose(
        planned(weights, batch), jax.jit(step)(weights, batch), rtol=1e-5, atol=1e-5
    )


@jax.custom_batching.custom_vmap
def halved(x):
    return x / 2


@halved.def_vmap
def _other_when_mapped(axis_size, in_batched, x):
    return x / 4, in_batched[0]


def kernel(x, out):
    out[...] = 3 * x[...]


def numbered_kernel(x, out):
    out[...] = x[...] * jax.lax.axis_index("y")


def of_kernel(function, interpret=True):
    def call(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pallas.pallas_call(function, out_shape=shape, interpret=interpret)(x)

    return call


def compare_bodies(function):
    def step(w, x):
        return mapped(function, P(BOTH), P(BOTH), check_vma=False)(x @ w)

    weights, batch = normal(0, 16, 16), normal(1, 16, 16)
    method = ShardParallel(mesh_shape=(2, 4))
    planned = alpa_mlir.compile(step, weights, batch, cluster=CLUSTER, method=method)
    np.testing.assert_allclose(
        planned(weights, batch), jax.jit(step)(weights, batch), rtol=1e-5, atol=1e-5
    )


def test_rules_for_vmap_are_not_applied():
    compare_bodies(halved)


def test_interpreted_kernels():
    """A Pallas kernel that JAX interprets is the ops that it does so by."""
    compare_bodies(of_kernel(kernel))


@pytest.mark.parametrize("interpret", [True, False])
def test_kernels_that_know_their_device_are_refused(interpret):
    call = mapped(of_kernel(numbered_kernel, interpret), P(BOTH), P(BOTH), check_vma=False)
    parallel = alpa_mlir.parallelize(lambda w, x: call(x @ w), cluster="dgx-h100")
    with pytest.raises(TraceError, match="a kernel that knows its device"):
        parallel.trace(normal(0, 16, 16), normal(1, 16, 16))


def sorted_kernel(x):
    """Which block a run of the kernel reads, an operand says."""
    grid = pallas_tpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(len(x),),
        in_specs=[pallas.BlockSpec((1, x.shape[1]), lambda i, order: (order[i], 0))],
        out_specs=pallas.BlockSpec((1, x.shape[1]), lambda i, order: (i, 0)),
    )
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = pallas.pallas_call(
        lambda order, x, out: kernel(x, out), out_shape=shape, grid_spec=grid, interpret=True
    )
    return call(jnp.argsort(x[:, 0]).astype(jnp.int32), x)


@pytest.mark.parametrize("call", [of_kernel(kernel), sorted_kernel])
def test_kernels_within_a_mesh(call):
    """Results of a kernel that was traced within a mesh meet values of none."""

    def rows(x):
        return jnp.take(call(x), jnp.argsort(x[:, 0]), axis=0) + x

    with jax.set_mesh(jax.make_mesh((1, 1), BOTH, (jax.sharding.AxisType.Auto,) * 2)):
        weights, batch = normal(0, 16, 16), normal(1, 16, 16)
        sharded = jax.shard_map(rows, in_specs=P(BOTH), out_specs=P(BOTH), check_vma=False)

        def step(w, x):
            return sharded(x @ w)

        method = ShardParallel(mesh_shape=(2, 4))
        planned = alpa_mlir.compile(step, weights, batch, cluster=CLUSTER, method=method)
        expected = jax.jit(step)(weights, batch)
    np.testing.assert_allclose(planned(weights, batch), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_checked", [True, False])
def test_branches_that_devices_choose(is_checked):
    """With `check_vma`, JAX takes what such a branch makes of replicated weights for replicated,
    and its gradient is not the derivative: the step still does what `jax.jit` does."""

    def chosen(w, x):
        def body(x, up, down):
            index = jax.lax.axis_index("y")
            up = jax.lax.switch(index, [lambda w, k=k: (k + 1) * w for k in range(Y)], up)
            return jax.lax.pmean(jnp.tanh(x @ up) @ down, "y")

        specs = (P("x"), P(), P())
        return mapped(body, specs, P("x"), check_vma=is_checked)(x, w["up"], w["down"])

    compare(*step_of(chosen), ShardParallel(mesh_shape=(2, 4)), steps=1)


def test_groups_of_an_axis_are_refused():
    def step(weights, batch):
        def body(x):
            groups = [[0, 1], [2, 3]]
            return jax.lax.psum(x, "y", axis_index_groups=groups)

        return mapped(body, P("y"), P("y"), check_vma=False)(batch @ weights)

    with pytest.raises(TraceError, match=r"a collective of groups of an axis .*psum.*test_shard"):
        alpa_mlir.compile(step, normal(0, 16, 16), normal(1, 16, 16), cluster=CLUSTER)


def by_hand(w, x):
    """Explicit types: every value says how it lies, and so do the products."""
    up, down = jax.reshard(w["up"], P(None, "y")), jax.reshard(w["down"], P("y"))
    hidden = jnp.tanh(jax.reshard(x, P("x")) @ up)
    return jnp.einsum("bsh,hd->bsd", hidden, down, out_sharding=P("x"))


def by_hand_and_device(w, x):
    """The specs of the inputs are those of their types."""

    def body(x, up, down):
        return jax.lax.psum(jnp.tanh(x @ up) @ down, "y")

    up, down = jax.reshard(w["up"], P(None, "y")), jax.reshard(w["down"], P("y"))
    return jax.shard_map(body, out_specs=P("x"))(jax.reshard(x, P("x")), up, down)


@pytest.mark.parametrize("model", [by_hand, by_hand_and_device])
def test_explicit_sharding_types(model):
    def of_type(w, x):
        return jax.reshard(model(w, x), P())

    with jax.set_mesh(mesh_of(types=(AxisType.Explicit,) * 2)):
        step, state, batch = step_of(of_type, layers=2)
        compare(step, state, batch, ShardParallel(mesh_shape=(2, 4), num_micro_batches=2))
        two = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=2)
        assert len(compare(step, state, batch, two).stages) == 2


COLLECTIVES = {
    "all_to_all of an axis": lambda x: jax.lax.all_to_all(x, "y", 1, 0, tiled=True),
    "all_to_all of both": lambda x: jax.lax.all_to_all(x, BOTH, 1, 0, tiled=True),
    "all_to_all of rows": lambda x: jax.lax.all_to_all(x.reshape(4, 2, -1), "y", 0, 1),
    "all_gather": lambda x: jax.lax.all_gather(x, BOTH, axis=1),
    "psum_scatter": lambda x: jax.lax.psum_scatter(x, BOTH, scatter_dimension=1, tiled=True),
    "psum_scatter of integers": lambda x: jax.lax.psum_scatter(
        x.astype(jnp.int32), BOTH, scatter_dimension=1, tiled=True
    ),
    "ppermute": lambda x: jax.lax.ppermute(x, "y", [(0, 1), (3, 2)]),
    "pmax and pmin": lambda x: jax.lax.pmax(x, "y") * jax.lax.pmin(x, BOTH),
}


OF_ONE = {
    "all_to_all": lambda x: jax.lax.all_to_all(x, "x", 1, 0, tiled=True),
    "all_to_all of rows": lambda x: jax.lax.all_to_all(x[None], "x", 0, 2)[..., 0],
    "all_gather": lambda x: jax.lax.all_gather(x, "x", axis=1)[:, 0],
    "psum_scatter": lambda x: jax.lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
    "ppermute": lambda x: jax.lax.ppermute(x, "x", [(0, 0)]) + jax.lax.ppermute(x, "x", []),
    "sums": lambda x: jax.lax.psum(x, "x") + jax.lax.pmax(x, "x") * jax.lax.pmin(x, "x"),
    "axis_index": lambda x: x + jax.lax.axis_index("x") + 3 * jax.lax.axis_index(BOTH),
}


@pytest.mark.parametrize("sizes", [(X, Y), (1, Y)])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name, sizes):
    compare_collectives(COLLECTIVES[name], sizes)


@pytest.mark.parametrize("sizes", [(1, Y), (1, 1)])
@pytest.mark.parametrize("name", OF_ONE)
def test_collectives_of_one_device(name, sizes):
    compare_collectives(OF_ONE[name], sizes)


def test_ops_that_know_their_mesh():
    """`jnp.searchsorted` is an object from JAX 0.12 on, which knows the mesh of its results."""

    def step(w, x):
        def body(x):
            places = jnp.searchsorted(jnp.linspace(-1, 1, 5), x)
            return jnp.where(x > 0, places, 2) * x

        return jax.shard_map(body, in_specs=P(BOTH), out_specs=P(BOTH))(x @ w)

    weights, x = normal(1, 16, 16), normal(2, 8, 16)
    method = ShardParallel(mesh_shape=(2, 4))
    with jax.set_mesh(mesh_of(1, 1)):
        planned = alpa_mlir.compile(step, weights, x, cluster=CLUSTER, method=method)
        expected = jax.jit(step)(weights, x)
        np.testing.assert_allclose(planned(weights, x), expected, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_mapped_over_one_device():
    """Axes of one device are not mapped, so that kernels without a rule for that are kept."""

    def step(w, x):
        def body(w, x):
            sizes = jax.lax.psum(jnp.full((4,), 2, jnp.int32), "x")
            return jax.lax.ragged_dot(x, w, sizes)

        mesh = mesh_of(1, 1)
        return jax.shard_map(body, mesh=mesh, in_specs=(P("y"), P("x")), out_specs=P(BOTH))(w, x)

    weights, x = normal(1, 4, 16, 8), normal(2, 8, 16)
    method = ShardParallel(mesh_shape=(2, 4))
    planned = alpa_mlir.compile(step, weights, x, cluster=CLUSTER, method=method)
    np.testing.assert_allclose(planned(weights, x), jax.jit(step)(weights, x), rtol=1e-5, atol=1e-5)


def compare_collectives(function, sizes):
    """Of blocks, of values that are the same on all devices, and of those in a loop; of small
    integers, so that no order of sums matters."""

    def step(w, x):
        def body(w, x):
            each, alike = function(x), function(w)
            looped = jax.lax.fori_loop(0, 2, lambda i, _: function(w + i), alike)
            return each + 100 * alike + 10000 * looped

        options = {"in_specs": (P(), P(BOTH)), "out_specs": P(BOTH), "check_vma": False}
        return jax.shard_map(body, mesh=mesh_of(*sizes), **options)(w, x)

    random = np.random.RandomState(0)
    x = jnp.asarray(random.randint(-9, 9, (8 * sizes[0] * sizes[1], 16)), jnp.float32)
    weight = jnp.asarray(random.randint(-9, 9, (8, 16)), jnp.float32)
    method = ShardParallel(mesh_shape=(2, 4))
    planned = alpa_mlir.compile(step, weight, x, cluster=CLUSTER, method=method)
    np.testing.assert_array_equal(planned(weight, x), jax.jit(step)(weight, x))


@pytest.mark.parametrize("method", ["manual", "auto"])
@pytest.mark.parametrize("spec", [P("x"), P("y", None, "x")])
def test_constraints_beside_a_shard_map(spec, method):
    """They are kept, of what goes in and comes out."""
    mesh = mesh_of()

    def constrained(w, x):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
        return jax.lax.with_sharding_constraint(
            tensor_parallel(w, x), NamedSharding(mesh, P("x", None, "y"))
        )

    compare(*step_of(constrained), ShardParallel(method=method, mesh_shape=(X, Y)))
