"""State made in place by an init function: same bits as `jax.jit`, only where it belongs."""

from __future__ import annotations

from functools import partial

import alpa_mlir
import flax.linen as nn
import handmade
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import steps
from alpa_mlir import (
    ArgumentMismatchError,
    PipeshardParallel,
    ShardParallel,
    TraceError,
    restore_checkpoint,
    save_checkpoint,
)
from alpa_runtime.arrays import StackedArray
from alpa_runtime.step_arguments import init_programs, step_state, trace_init
from flax.training.train_state import TrainState
from same_bits import check_same


def init(key, scale=0.3):
    first, second = jax.random.split(key)
    return {
        "w0": jax.random.normal(first, (8, 16)) * scale,
        "w1": nn.initializers.glorot_uniform()(second, (16, 4)),
    }


@pytest.mark.parametrize(("first", "second"), [((2, 2), (1, 1)), ((1, 2), (4, 1))])
def test_each_mesh_makes_its_own(first, second):
    step = steps.two_stage_step(first=first, second=second)
    state = step.init(init, jax.random.key(3), 0.5)
    check_same(state, jax.jit(init)(jax.random.key(3), 0.5))
    for index, x in enumerate((state["w0"], state["w1"])):
        assert x.sharding is step.loaded.sharding_of_input(index)
    # The step takes it without a copy.
    step(state, handmade.arguments(2)[1])
    assert state["w0"].is_deleted()
    if first == (2, 2):
        raw = step.init(init, jax.random.PRNGKey(3), np.float64(0.5))
        check_same(raw, jax.jit(init)(jax.random.PRNGKey(3), 0.5))


def test_programs_for_devices_that_are_not_here():
    """A driver without GPUs makes programs for workers that have some."""

    def create(key):
        state = init(key)
        state["w1"] = jnp.linalg.qr(state["w1"])[0]
        return state

    step = steps.two_stage_step()
    state = step_state(step.form, step.plan)
    trace = trace_init(create, (jax.random.key(0),), state)
    for platform, call in (("cpu", "lapack_sgeqrf_ffi"), ("cuda", "cusolver_geqrf_ffi")):
        programs, _ = init_programs(trace, state, step.plan, platform)
        assert [call in p.job.text for p in programs] == [False, True]
    assert step.loaded.platform == "cpu"


def test_programs_hold_only_what_their_mesh_owns():
    step = steps.two_stage_step()
    state = step_state(step.form, step.plan)
    trace = trace_init(init, (jax.random.key(0),), state)
    programs, unread = init_programs(trace, state, step.plan, "cpu")
    assert unread == []
    assert [p.inputs for p in programs] == [(0,), (1,)]
    # Only a normal distribution needs the inverse of the error function.
    assert ["erf_inv" in p.job.text for p in programs] == [True, False]
    shapes = ["tensor<8x16xf32>", "tensor<16x4xf32>"]
    for program, own, other in zip(programs, shapes, shapes[::-1], strict=True):
        assert own in program.job.text
        assert other not in program.job.text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda key: {"w0": init(key)["w0"]}, r"\['w1'\]: no such leaf, the step takes one"),
        (lambda key: {**init(key), "w2": 1.0}, r"\['w2'\]: the step takes no such leaf"),
        (lambda key: {**init(key), "w0": jnp.zeros((8, 8))},
         r"\['w0'\]: float32\[8, 8\], the step takes float32\[8, 16\]"),
        (lambda key: {**init(key), "w1": jnp.zeros((16, 4), jnp.bfloat16)},
         r"\['w1'\]: bfloat16\[16, 4\], the step takes float32\[16, 4\]"),
        (lambda key: [init(key)], r"\['w0'\]: no such leaf"),
    ],
)  # fmt: skip
def test_other_states_are_named(function, message):
    step = steps.two_stage_step()
    with pytest.raises(ArgumentMismatchError, match="result of init function <lambda>: " + message):
        step.init(function, jax.random.key(0))


def test_what_cannot_be_traced():
    step = steps.two_stage_step()
    with pytest.raises(
        TraceError, match=r"init function init: cannot be traced.*functools.partial"
    ):
        step.init(init, jax.random.key(0), "text")
    state = step.init(partial(init, scale=2.0), jax.random.key(0))
    check_same(state, jax.jit(init)(jax.random.key(0), 2.0))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(16)(x))
        return nn.Dense(4, kernel_init=nn.initializers.truncated_normal(0.1))(x)


def test_flax_and_optax(tmp_path):
    net, tx = Net(), optax.sgd(0.1, momentum=0.9)

    def create(key):
        state = TrainState.create(
            apply_fn=net.apply, params=net.init(key, jnp.ones((1, 8)))["params"], tx=tx
        )
        return {"train": state, "key": jax.random.fold_in(key, 1)}

    def train(state, batch):
        key, _ = jax.random.split(state["key"])
        loss, grads = jax.value_and_grad(lambda p: jnp.mean(net.apply({"params": p}, batch) ** 2))(
            state["train"].params
        )
        return {"train": state["train"].apply_gradients(grads=grads), "key": key}, loss

    batch = np.ones((8, 8), np.float32)
    example = jax.eval_shape(create, jax.random.key(0))
    method = PipeshardParallel(submeshes=[(1, 1), (1, 2)], num_micro_batches=1)
    step = alpa_mlir.compile(train, example, batch, cluster="cpu-test", method=method)
    state = step.init(create, jax.random.key(7))
    expected = jax.jit(create)(jax.random.key(7))
    check_same(state, expected)
    save_checkpoint(tmp_path, state, step=0).wait()
    check_same(restore_checkpoint(tmp_path, step), expected)
    state, loss = step(state, batch)
    np.testing.assert_allclose(loss, jax.jit(train)(expected, batch)[1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_stacks_of_layers(generator):
    import zoo

    model = zoo.get("layer_stack")
    example, batch = model.init()
    shapes = jax.eval_shape(lambda: example)

    def create(key):
        leaves, tree = jax.tree.flatten(shapes)
        keys = jax.random.split(key, len(leaves))
        return tree.unflatten(
            [
                jax.random.normal(k, x.shape, x.dtype)
                if jnp.issubdtype(x.dtype, jnp.floating)
                else jnp.ones(x.shape, x.dtype)
                for k, x in zip(keys, leaves, strict=True)
            ]
        )

    for method in (PipeshardParallel(submeshes=[(1, 1), (1, 1)]), ShardParallel(mesh_shape=(2, 2))):
        step = alpa_mlir.compile(model.step, example, batch, cluster="cpu-test", method=method)
        key = jax.random.key(0, impl=generator)
        state = step.init(create, key)
        check_same(state, jax.jit(create)(key))
        bias = state["params"]["layers"]["bias"]
        assert isinstance(bias, StackedArray) == isinstance(method, PipeshardParallel)
        step(state, batch)
