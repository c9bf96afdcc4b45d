"""Products of 8 and 4 bits: equal to `jax.jit`, and priced at the rates of the device.

Numbers are such that all sums are exact, in whatever order devices add them up: a rounding to 8
bits would make a last bit of a sum a sixteenth of the number.
"""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import MicroBatchError, PipeshardParallel, ShardParallel
from flax.linen import fp8_ops
from test_equality import CLUSTER
from test_fused_attention import GPUS

WIDTH, HIDDEN, BATCH, LAYERS = 64, 128, 64, 2
METHODS = {
    "whole": ShardParallel(),
    "micro-batches": ShardParallel(num_micro_batches=2),
    "megatron": ShardParallel(num_micro_batches=2, method="megatron", mesh_shape=(4, 2)),
    "stages": PipeshardParallel(num_micro_batches=2, submeshes=[(1, 4), (1, 4)], layers=2),
}


def quantized(x, scale, dtype):
    most = float(jnp.finfo(dtype).max)
    return jnp.clip(x * scale, -most, most).astype(dtype)


def power_of_two(most, x):
    """A scale of a tensor's own: that its largest number stays below `most`."""
    return jnp.exp2(jnp.floor(jnp.log2(most / jnp.maximum(jnp.max(jnp.abs(x)), 1e-6))))


def with_gradients_of(forward, dot):
    """A product with `dot` for its gradients, of numbers with 5 bits of exponent."""
    function = jax.custom_vjp(lambda x, w: forward(x, w))

    def backward(saved, made):
        x, w = saved
        return dot(made, w.T, jnp.float8_e5m2), dot(x.T, made, jnp.float8_e4m3fn, jnp.float8_e5m2)

    function.defvjp(lambda x, w: (forward(x, w), (x, w)), backward)
    return function


def of_whole_tensors(x, w, lhs=jnp.float8_e4m3fn, rhs=jnp.float8_e4m3fn):
    """8 bits by scales of whole tensors (`current scaling`), multiplied as they are."""
    x_scale, w_scale = power_of_two(448, x), power_of_two(448, w)
    parts = quantized(x, x_scale, lhs), quantized(w, w_scale, rhs)
    return jnp.dot(*parts, preferred_element_type=jnp.float32) / (x_scale * w_scale)


def of_constants(x, w, lhs=jnp.float8_e4m3fn, rhs=jnp.float8_e4m3fn):
    """8 bits by a given scale, multiplied as what they stand for (`fake quantization`)."""

    def rounded(value, dtype):
        return quantized(value, 4.0, dtype).astype(value.dtype) / 4

    return rounded(x, lhs) @ rounded(w, rhs)


def of_rows(x, w, *_):
    """int8 with a scale for each row and column."""
    x_scale = jnp.exp2(jnp.floor(jnp.log2(127 / (jnp.max(jnp.abs(x), 1, keepdims=True) + 1e-6))))
    w_scale = jnp.exp2(jnp.floor(jnp.log2(127 / (jnp.max(jnp.abs(w), 0, keepdims=True) + 1e-6))))
    parts = [jnp.round(value).astype(jnp.int8) for value in (x * x_scale, w * w_scale)]
    product = jnp.dot(*parts, preferred_element_type=jnp.int32)
    return product.astype(jnp.float32) / x_scale / w_scale


def of_blocks(mode, result=jnp.float32):
    scale = jnp.ones((), jnp.float32) if mode == "nvfp4" else None
    configs = [jax.nn.get_scaled_dot_general_config(mode, global_scale=scale) for _ in range(3)]

    def dot(x, w):
        numbers = (((1,), (0,)), ((), ()))
        return jax.nn.scaled_dot_general(x, w, numbers, result, configs=configs)

    return dot


DOTS = {
    "whole tensors": with_gradients_of(of_whole_tensors, of_whole_tensors),
    "constants": with_gradients_of(of_constants, of_constants),
    "int8": with_gradients_of(of_rows, lambda x, w, *_: x @ w),
    "mxfp8": of_blocks("mxfp8"),
    "nvfp4": of_blocks("nvfp4"),
}


def step_of(dot):
    def step(params, batch):
        x, wanted = batch

        def loss(params):
            hidden = x
            for up, down in params:
                hidden = hidden + dot(jax.nn.relu(dot(hidden, up)), down)
            return jnp.mean((hidden - wanted).astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda w, g: w - 0.5 * g, params, grads), value

    return step


def few(rng, *shape):
    """Zeros, and an eighth of ones of both signs."""
    return jnp.asarray(rng.choice([-1, 1] + 14 * [0], shape), jnp.float32)


def arguments():
    rng = np.random.default_rng(0)
    params = [(few(rng, WIDTH, HIDDEN), few(rng, HIDDEN, WIDTH)) for _ in range(LAYERS)]
    return params, (few(rng, BATCH, WIDTH), few(rng, BATCH, WIDTH))


def assert_equal(found, expected, before):
    for got, wanted, was in zip(*map(jax.tree.leaves, (found, expected, before)), strict=True):
        moved = np.abs(np.asarray(wanted) - np.asarray(was)).max()
        assert moved > 0
        assert np.abs(np.asarray(got) - np.asarray(wanted)).max() <= 1e-5 * moved


@pytest.mark.sweep(10)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", DOTS)
def test_products_equal_those_of_one_device(kind, method):
    params, batch = arguments()
    step = step_of(DOTS[kind])
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=METHODS[method])
    if kind == "whole tensors" and METHODS[method].num_micro_batches == 2:
        with pytest.raises(MicroBatchError, match="needs a value of the whole batch"):
            parallel(params, batch)
        return
    expected = jax.jit(step)(params, batch)
    found = parallel(params, batch)
    assert_equal(found[0], expected[0], params)
    assert abs(found[1] - expected[1]) <= 1e-6 * abs(expected[1])


@pytest.mark.parametrize("method", METHODS)
def test_delayed_scales_follow_the_whole_batch(method):
    """flax's: the largest elements of the last steps, written over by their 'gradients'."""
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for width in (HIDDEN, WIDTH, HIDDEN, WIDTH):
                x = nn.Dense(
                    width,
                    use_bias=False,
                    kernel_init=lambda key, shape, dtype: few(np.random.default_rng(1), *shape),
                    dot_general_cls=fp8_ops.Fp8DirectDotGeneralOp,
                )(x)
            return x

    net = Net()
    _, batch = arguments()
    variables = net.init(jax.random.key(0), batch[0])

    def step(variables, batch):
        def loss(variables):
            return jnp.mean((net.apply(variables, batch[0]) - batch[1]) ** 2)

        value, grads = jax.value_and_grad(loss)(variables)
        grads, scales = grads["params"], grads["_overwrite_with_gradient"]
        params = jax.tree.map(lambda w, g: w - g, variables["params"], grads)
        return {"params": params, "_overwrite_with_gradient": scales}, value

    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=METHODS[method])
    found, expected = parallel(variables, batch), jax.jit(step)(variables, batch)
    for got, wanted in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.sample(4)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", ["mxfp8", "nvfp4"])
@pytest.mark.usefixtures("kernels_to_the_end")
def test_calls_of_blocks_are_split(mode, method):
    params, batch = arguments()
    step = step_of(DOTS[mode])
    planned = alpa_mlir.parallelize(step, cluster=GPUS, method=METHODS[method]).plan(params, batch)
    assert_equal(planned.load()(params, batch)[0], jax.jit(step)(params, batch)[0], params)


def seconds_of(kind, cluster, dtype=jnp.bfloat16):
    shapes = [(8192, 32768), (32768, 8192), (1 << 20, 8192), (1 << 20, 8192)]
    up, down, *batch = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    dots = {**DOTS, "mxfp8 to bfloat16": of_blocks("mxfp8", jnp.bfloat16), None: jnp.dot}
    step = step_of(dots[kind])
    method = ShardParallel(method="data-parallel")
    plan = (
        alpa_mlir.parallelize(step, cluster=cluster, method=method).plan([(up, down)], batch).plan
    )
    return plan.predicted["step_seconds"]


@pytest.mark.parametrize(
    ("kind", "cluster", "least", "most"),
    [
        # A100s have no rate of 8 bits. H100s have none of blocks, and XLA multiplies in the type of
        # the result, of which TF32 has half the rate.
        ("constants", "dgx-a100:2", 0.98, 1.1),
        ("constants", "dgx-h100:2", 0.5, 0.65),
        ("mxfp8", "dgx-h100:2", 1.8, 2.2),
        ("mxfp8 to bfloat16", "dgx-h100:2", 0.98, 1.2),
        ("mxfp8", "dgx-b200:2", 0.5, 0.75),
    ],
)
def test_products_have_the_rates_of_the_device(kind, cluster, least, most):
    assert least <= seconds_of(kind, cluster) / seconds_of(None, cluster) <= most


@pytest.mark.parametrize(
    ("precision", "cluster", "times"),
    [
        ("high", "dgx-a100:2", 1),
        ("highest", "dgx-a100:2", 156 / 19.5),
        ("highest", "dgx-h100:2", 494.5 / 67),
        ("highest", "p3.16xlarge:2", 1),  # V100s have no TF32.
        ("TF32_TF32_F32_X3", "dgx-h100:2", 3),
        ("BF16_BF16_F32_X6", "dgx-h100:2", 3),
        ("F32_F32_F32", "dgx-h100:2", 494.5 / 67),
    ],
)
def test_products_of_float32_have_the_rate_of_their_precision(precision, cluster, times):
    def product_seconds(precision):
        def step(w, x):
            return w - 1e-3 * jax.lax.dot(x.T, x, precision=precision)

        shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8192, 8192), (1 << 18, 8192))]
        method = ShardParallel(method="data-parallel")
        parallel = alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)
        rows = parallel.plan(*shapes).plan.explanation(0)["ops"]
        return sum(x["compute_seconds"] for x in rows if x["op"] == "stablehlo.dot_general")

    ratio = product_seconds(precision) / product_seconds("default")
    # Tiles of tensor cores leave more idle than those of float32, which have no formula.
    assert times == pytest.approx(ratio, rel=0.05)


def given(w, number):
    return w.astype(number).astype(w.dtype)


#: What weights go through before they are multiplied.
QUANTIZED = {
    "alone": given,
    "scaled": lambda w, number: given(w * 100, number) / 100,
    "by their largest": lambda w, number: (
        given(w * (s := jax.lax.stop_gradient(9 / w.max())), number) / s
    ),
    "of a row": lambda w, number: given(w[1:] * 3, number),
    "transposed": lambda w, number: given(w * 3, number).T.reshape(w.shape),
    "multiplied": lambda w, number: given(w * 3, number) @ jnp.ones((w.shape[1],) * 2) / 8,
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("method", ["micro-batches", "megatron", "stages"])
@pytest.mark.parametrize("number", [jnp.float8_e4m3fn, jnp.float8_e5m2])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_gradients_are_rounded_once(kind, number, method):
    """JAX rounds the gradient of the whole batch where weights were rounded: a sum of rounded terms
    is up to a tenth off."""

    def step(params, batch):
        def loss(params):
            x = batch
            for w in params:
                w = QUANTIZED[kind](w, number)
                x = jnp.tanh(x[:, : w.shape[0]] @ w)
            return jnp.mean(x**2)

        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda w, g: w - g, params, grads), grads

    rng = np.random.default_rng(0)
    params = [jnp.asarray(0.1 * rng.normal(size=(16, 16)), jnp.float32) for _ in range(2)]
    batch = jnp.asarray(rng.normal(size=(16, 16)), jnp.float32)
    expected = jax.jit(step)(params, batch)[1]
    found = alpa_mlir.parallelize(step, cluster=CLUSTER, method=METHODS[method])(params, batch)[1]
    for got, wanted in zip(found, expected, strict=True):
        assert np.abs(np.asarray(got) - wanted).max() <= 1e-5 * np.abs(wanted).max()
