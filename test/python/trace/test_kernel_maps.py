"""Kernels in a `shard_map` are called for the blocks that they were written for."""

from __future__ import annotations

import re
import warnings

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_shard_map
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import MicroBatchError
from alpa_mlir.trace import shard_maps
from jax.experimental import pallas
from jax.experimental.pallas import triton
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from test_equality import CLUSTER
from test_fused_attention import GPUS
from test_shard_map import AUTO, BOTH, MICRO_BATCHES, MODELS, compare, mapped, step_of

# Ops of which every model has some, and that say what they compute of whole arrays as well.
ORDINARY = ("dot_general", "tanh", "reduce_sum", "exp")


@pytest.fixture
def ordinary_kernels(monkeypatch):
    """Takes ordinary ops for kernels."""
    monkeypatch.setattr(shard_maps, "_KERNELS", (*shard_maps._KERNELS, *ORDINARY))


@pytest.mark.sample(5)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("ordinary_kernels")
def test_ordinary_ops_as_kernels(model):
    compare(*step_of(model), ShardParallel(mesh_shape=(2, 4)))


@pytest.mark.parametrize("model", [test_shard_map.tensor_parallel, test_shard_map.ring])
@pytest.mark.usefixtures("ordinary_kernels")
def test_collectives_of_our_own(model):
    compare(*step_of(model), ShardParallel(mesh_shape=(2, 4), export="collectives"))


@pytest.mark.sweep(5)
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            m, marks=[pytest.mark.slow] * (m in (test_shard_map.ring, test_shard_map.looped))
        )
        for m in MODELS
    ],
)
@pytest.mark.usefixtures("ordinary_kernels")
def test_two_stages(model):
    """Micro-batches are whole blocks: the batch is in two, or in one with `partly_manual`."""
    step, state, batch = step_of(model, layers=4)
    count = min(2, MICRO_BATCHES.get(model, 2))
    method = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=count)
    if model is test_shard_map.partly_manual:
        with pytest.raises(MicroBatchError, match=r"the blocks .* have all examples"):
            alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(state, batch)
        method = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=1)
    compare(step, state, batch, method)


@jax.custom_vjp
def activation(x):
    return jnp.tanh(x)


activation.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * jnp.tanh(x),))


@pytest.mark.parametrize("count", [4, 16])
@pytest.mark.usefixtures("ordinary_kernels")
def test_blocks_are_not_cut_apart(count):
    """Nor does each micro-batch run the layers of the whole batch, which would be as exact."""
    mesh = AbstractMesh((2,), ("x",), axis_types=AUTO[:1])

    def model(w, x):
        return jax.shard_map(
            lambda x, up, down: activation(x @ up) @ down,
            mesh=mesh,
            in_specs=(P("x"), P(), P()),
            out_specs=P("x"),
            check_vma=False,
        )(x, w["up"], w["down"])

    step, state, batch = step_of(model, layers=2)
    method = ShardParallel(num_micro_batches=count)
    words = f"test_kernel_maps.py:.* each of 2 blocks of the batch, which {count} micro-batches"
    with pytest.raises(MicroBatchError, match=words) as raised:
        alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(state, batch)
    assert raised.value.fix.startswith("use 2 micro-batches, or split the batch over more devices")


FACTORIZATION = "lapack_spotrf_ffi"  # Without a rule for `jax.vmap`, as it is called here.


@pytest.fixture(scope="module", autouse=True)
def lapack():
    """JAX loads it when it lowers a factorization of its own."""
    return jnp.linalg.cholesky(jnp.eye(2)).block_until_ready()


def factorized(x):
    """The lower factor of a matrix of one block."""
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), jnp.int32)]
    call = jax.ffi.ffi_call(FACTORIZATION, results)
    return jnp.triu(call(x, uplo=np.uint8(ord("L")))[0])


@jax.custom_vjp
def solved(x):
    return factorized(jnp.eye(x.shape[1]) + x.T @ x)


def _solved_backward(x, g):
    """Any function of the block, which calls the kernel too."""
    return (x @ factorized(jnp.eye(x.shape[1]) + g.T @ g),)


solved.defvjp(lambda x: (solved(x), x), _solved_backward)


def blocks_of(plan, target):
    """Shapes of the first operands of all calls of a target."""
    text = "\n".join(plan.modules.values())
    found = re.findall(rf"custom_call @{re.escape(target)}\(.*: \(tensor<([0-9x]+)xf32>", text)
    return [tuple(map(int, shape.split("x"))) for shape in found]


def factorizing_block(x, up, down):
    rows = jnp.tanh(x.reshape(-1, x.shape[-1]) @ up)
    return (rows @ solved(rows) @ down / 8).reshape(x.shape)


def factorizing(mesh=None):
    def model(w, x):
        call = jax.shard_map(
            factorizing_block,
            mesh=mesh or test_shard_map.mesh_of(),
            in_specs=(P(BOTH), P(), P()),
            out_specs=P(BOTH),
            check_vma=False,
        )
        return call(x, w["up"], w["down"])

    return model


@pytest.mark.parametrize("export", ["shardy", "collectives"])
def test_calls_that_nobody_maps(export):
    """One call for each block of each device, forward and backward."""
    method = ShardParallel(mesh_shape=(2, 4), export=export)
    plan = compare(*step_of(factorizing(), layers=2), method)
    assert blocks_of(plan, FACTORIZATION) == [(32, 32)] * 4


def test_blocks_of_another_mesh():
    """Written for 16 devices, run by eight: each calls the kernel for two blocks."""
    mesh = AbstractMesh((4, 4), ("x", "y"), axis_types=AUTO)
    step, state, batch = step_of(factorizing(mesh))
    method = ShardParallel(mesh_shape=(2, 4))
    planned = alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method)
    assert blocks_of(planned.plan, FACTORIZATION) == [(32, 32)] * 4  # Forward and backward.

    def by_hand(w, x):
        blocks = jnp.split(x, 16)
        return jnp.concatenate([factorizing_block(x, w["up"], w["down"]) for x in blocks])

    expected = jax.jit(step_of(by_hand)[0])(state, batch)
    for got, want in zip(*map(jax.tree.leaves, (planned(state, batch), expected)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("count", [2, 4, 8])
def test_micro_batches_have_blocks_of_their_own(count):
    """Of one device, which calls the kernel for each of them."""
    step, state, batch = step_of(factorizing())
    method = ShardParallel(mesh_shape=(1,), num_micro_batches=count)
    cluster = CLUSTER | {"hosts": CLUSTER["hosts"] | {"count": 1, "devices": 1}}
    planned = alpa_mlir.compile(step, state, batch, cluster=cluster, method=method)
    found, expected = planned(state, batch), jax.jit(step)(state, batch)
    for got, want in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    assert blocks_of(planned.plan, FACTORIZATION) == [(32, 32)] * (2 * 8 // count)


def test_rounds_have_blocks_of_their_own():
    """A loop of the user's that adds up gradients becomes micro-batches, kernels included."""
    model = factorizing()

    def step(state, batch):
        def loss(state, x, y):
            for weights in state:
                x = x + 0.1 * model(weights, x)
            return jnp.mean((x - y) ** 2)

        def turn(sums, part):
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(state, *part)), None

        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, state)
        parts = tuple(a.reshape(2, -1, *a.shape[1:]) for a in (batch["x"], batch["y"]))
        (value, gradients), _ = jax.lax.scan(turn, zeros, parts)
        return jax.tree.map(lambda w, g: w - 0.05 * g, state, gradients), value / 2

    _, state, batch = step_of(model, layers=2)
    method = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=2)
    plan = compare(step, state, batch, method, steps=1)
    assert plan.num_micro_batches == 2
    # Of eight blocks of a round each of four devices has two, in two stages, forward and backward.
    assert blocks_of(plan, FACTORIZATION) == [(32, 32)] * 8


def scaling(x, out):
    out[...] = 3 * x[...]


def test_pallas_for_gpus(monkeypatch):
    """Each device calls the kernel that was compiled for its block."""
    monkeypatch.setattr("alpa_mlir.stages._gpus_elsewhere", lambda cluster: "9.0")

    def step(w, x):
        def body(x):
            call = pallas.pallas_call(
                scaling,
                out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
                grid=(x.shape[0] // 8,),
                in_specs=[pallas.BlockSpec((8, 16), lambda i: (i, 0))],
                out_specs=pallas.BlockSpec((8, 16), lambda i: (i, 0)),
                compiler_params=triton.CompilerParams(),
            )
            return call(x)

        return mapped(body, P(BOTH), P(BOTH), check_vma=False)(x @ w)

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((16, 16), (128, 16))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        method = ShardParallel(mesh_shape=(2, 4))
        plan = alpa_mlir.parallelize(step, cluster=GPUS, method=method).plan(*shapes).plan
    assert blocks_of(plan, "__gpu$xla.gpu.triton") == [(16, 16)]


def test_the_plan_is_found():
    """The search gives blocks to devices by itself."""
    step, state, batch = step_of(factorizing(), layers=2)
    plan = compare(step, state, batch, AutoParallel())
    assert blocks_of(plan, FACTORIZATION)


def test_costs_are_those_of_blocks():
    """What a rule says that one call computes, each device does for its block."""
    step, state, batch = step_of(factorizing())
    method = ShardParallel(mesh_shape=(2, 4))

    def seconds():
        parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)
        return parallel.plan(state, batch).plan.predicted["step_seconds"]

    before = seconds()
    whole = "... m n -> ... m n, ..."
    alpa_mlir.sharding_rule(FACTORIZATION, whole, need_replication=("m", "n"), cost=1e9)
    try:
        after = seconds()
    finally:
        alpa_mlir.sharding_rule(FACTORIZATION, None)
    forward_and_backward = 2 * 1e9 / CLUSTER["device_types"]["small"]["peak_flops"]["float32"]
    assert after - before == pytest.approx(forward_and_backward, rel=0.01)
