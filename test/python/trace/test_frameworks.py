"""Models, optimizers, checkpoints and iterators of other libraries, through `parallelize`."""

from __future__ import annotations

import functools

import alpa_mlir
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from alpa_mlir import DataParallel, PipeshardParallel, ShardParallel, Zero2Parallel, Zero3Parallel
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

CLUSTER = alpa_mlir.Cluster.nominal("two", "cpu", (2,), 1 << 30)
STEPS = 3


def batches():
    rng = np.random.default_rng(0)
    while True:
        x = rng.normal(size=(8, 6)).astype(np.float32)
        yield {"x": x, "y": np.sin(x[:, :4])}


def run(step, state):
    losses = []
    for _, batch in zip(range(STEPS), batches(), strict=False):
        state, loss = step(state, batch)
        losses.append(float(loss))
    return state, losses


def check_equal(step, state, method):
    """Three steps give what they give with `jax.jit`."""
    wanted, losses = run(jax.jit(step), state)
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)
    found, same = run(parallel, state)
    np.testing.assert_allclose(same, losses, rtol=2e-5)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-5)
    assert losses[-1] != losses[0]
    return parallel, found


def mse(found, batch):
    return jnp.mean((found - batch["y"]) ** 2)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.gelu(nn.Dense(8)(x)))
        return nn.Dense(4)(x)


def linen_step(state, batch):
    def loss_fn(params):
        return mse(state.apply_fn(params, batch["x"]), batch)

    loss, gradients = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=gradients), loss


@functools.cache  # Trees with the same optimizer.
def linen_state():
    params = Linen().init(jax.random.key(0), jnp.zeros((1, 6)))
    return TrainState.create(apply_fn=Linen().apply, params=params, tx=optax.adam(1e-2))


def test_flax_linen_with_a_pipeline_and_an_evaluation():
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], layers=2, num_micro_batches=2)
    train, state = check_equal(linen_step, linen_state(), method)
    evaluate = alpa_mlir.parallelize(
        lambda params, batch: Linen().apply(params, batch["x"]),
        method=alpa_mlir.FollowParallel(train),
    )
    batch = next(batches())
    wanted = Linen().apply(jax.tree.map(np.asarray, state.params), batch["x"])
    np.testing.assert_allclose(evaluate(state.params, batch), wanted, rtol=1e-5, atol=1e-6)


class Nnx(nnx.Module):
    def __init__(self, rngs):
        # A bias here would have gradients of nothing but rounding, which Adam turns into steps.
        self.first = nnx.Linear(6, 8, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.last = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


def test_flax_nnx_with_state_of_its_own():
    model = Nnx(nnx.Rngs(0))
    definition, state = nnx.split((model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)))

    def step(state, batch):
        model, optimizer = nnx.merge(definition, state)
        loss, gradients = nnx.value_and_grad(lambda m: mse(m(batch["x"]), batch))(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), loss

    check_equal(step, state, DataParallel())


class Eqx(eqx.Module):
    layers: list
    scale: jax.Array
    power: int = eqx.field(static=True)

    def __init__(self, key):
        first, last = jax.random.split(key)
        self.layers = [eqx.nn.Linear(6, 8, key=first), jnp.tanh, eqx.nn.Linear(8, 4, key=last)]
        self.scale = jnp.ones(4)
        self.power = 2

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale**self.power


def test_equinox_modules_as_state():
    params, static = eqx.partition(Eqx(jax.random.key(1)), eqx.is_inexact_array)
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state, batch):
        params, opt = state

        @eqx.filter_value_and_grad
        def loss_of(params):
            return mse(jax.vmap(eqx.combine(params, static))(batch["x"]), batch)

        loss, gradients = loss_of(params)
        updates, opt = optimizer.update(gradients, opt, params)
        return (eqx.apply_updates(params, updates), opt), loss

    _, (trained, _) = check_equal(step, (params, optimizer.init(params)), Zero3Parallel())
    assert isinstance(eqx.combine(trained, static), Eqx)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(optax.cosine_decay_schedule(1, 9))),
        optax.MultiSteps(optax.adam(1e-2), 2),
        optax.multi_transform({"w": optax.lion(1e-2), "b": optax.set_to_zero()}, ("w", "b")),
    ],
    ids=["chain", "multi-steps", "multi-transform"],
)
def test_optax(optimizer):
    params = (jnp.full((6, 4), 0.1), jnp.ones(4))

    def step(state, batch):
        params, opt = state

        def loss_of(params):
            return mse(jnp.tanh(batch["x"] @ params[0] + params[1]), batch)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, opt = optimizer.update(gradients, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    check_equal(step, (params, optimizer.init(params)), ShardParallel(mesh_shape=(2,)))


def test_arrays_with_shardings_of_their_own():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))

    def put(x):
        x = jnp.asarray(x)
        axes = [name if size % 2 == 0 else None for name, size in zip("ab", x.shape, strict=False)]
        return jax.device_put(x, NamedSharding(mesh, P(*axes)))

    state = jax.tree.map(put, linen_state())
    assert not state.params["params"]["Dense_1"]["kernel"].is_fully_replicated
    # Two of the four devices; state and batches are moved there, and the caller's stay valid.
    parallel = alpa_mlir.parallelize(linen_step, cluster=CLUSTER, method=Zero2Parallel())
    batch = jax.tree.map(put, next(batches()))
    found = parallel(state, batch)
    wanted = jax.jit(linen_step)(linen_state(), next(batches()))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)
    assert not any(x.is_deleted() for x in jax.tree.leaves((state, batch)))
    kernel = found[0].opt_state[0].mu["params"]["Dense_1"]["kernel"]
    assert isinstance(kernel.sharding, NamedSharding)
    assert not kernel.is_fully_replicated


def test_orbax_saves_and_restores_what_steps_return(tmp_path):
    parallel = alpa_mlir.parallelize(linen_step, cluster=CLUSTER, method=Zero2Parallel())
    state, _loss = run(parallel, linen_state())
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", like)
    batch = next(batches())
    found = parallel(restored, batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(parallel(state, batch)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


class Counting:
    """An iterator as those of grain: batches by number, and a state that is saved."""

    def __init__(self, last):
        self.number, self.last = 0, last

    def __iter__(self):
        return self

    def __next__(self):
        if self.number >= self.last:
            raise StopIteration
        self.number += 1
        x = np.random.default_rng(self.number).normal(size=(8, 6)).astype(np.float32)
        return {"x": x, "y": np.cos(x[:, :4])}

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


def test_iterators_that_know_where_they_stand():
    parallel = alpa_mlir.parallelize(linen_step, cluster=CLUSTER, method=Zero2Parallel())
    step = parallel.get_executable(linen_state(), next(Counting(1)))
    state, losses, saved = linen_state(), [], []
    with alpa_mlir.DataLoader(Counting(6), step, prefetch=2) as loader:
        iterator = iter(loader)
        for batch in iterator:
            state, loss = step(state, batch)
            losses.append(float(loss))
            # That of the batches that were handed out, however far the source is.
            saved.append(iterator.get_state())
            if len(losses) == 3:
                kept = jax.tree.map(np.asarray, state)
    assert saved == [{"number": n} for n in range(1, 7)]

    source = Counting(6)
    source.set_state(saved[2])
    with alpa_mlir.DataLoader(source, step) as loader:
        for batch in loader:
            kept, loss = step(kept, batch)
            assert float(loss) == losses[int(kept.step) - 1]
    assert int(kept.step) == 6
    with (
        alpa_mlir.DataLoader([next(Counting(1))], step) as loader,
        pytest.raises(alpa_mlir.ArgumentMismatchError, match="list has no get_state"),
    ):
        iter(loader).get_state()


@pytest.mark.parametrize("count", [1, 4])
def test_context_mesh(count):
    """A step of a program that sets its own mesh, of one device, around all that it does."""

    def step(state, batch):
        params, key = state

        def loss_fn(params):
            h = jnp.tanh(batch["x"] @ params["first"])
            h = jax.lax.with_sharding_constraint(h, P("data"))
            return mse(h @ params["second"], batch)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return (params, jax.random.fold_in(key, 1)), loss

    def init(key):
        first, second = jax.random.split(key)
        params = {
            "first": jax.random.normal(first, (6, 16)),
            "second": jax.random.normal(second, (16, 4)),
        }
        return params, key

    cluster = alpa_mlir.Cluster.nominal("four", "cpu", (4,), 1 << 30)
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=count, layers=2)
    with jax.set_mesh(Mesh(jax.devices()[:1], ("data",))):
        state = init(jax.random.key(0))
        wanted, losses = run(jax.jit(step), state)
        parallel = alpa_mlir.parallelize(step, cluster=cluster, method=method)
        found, same = run(parallel, state)
        np.testing.assert_allclose(same, losses, rtol=2e-5)
        for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(wanted[0]), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-5)
        loaded = parallel.plan(state, next(batches())).load()
        made = loaded.init(init, jax.random.key(0))
        batch = next(batches())
        _, loss = jax.jit(step)(state, batch)
        _, again = loaded(*loaded.place(made, batch))
        np.testing.assert_allclose(again, loss, rtol=2e-5)
        assert jax.sharding.get_mesh().axis_names == ("data",)
