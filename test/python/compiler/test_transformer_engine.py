"""Transformer Engine's kernels: planned as calls, split by their rules, equal to what they compute.

The package is not needed: calls are made here in its form, that of versions 2.0 to 2.20.
"""

from __future__ import annotations

import re
from functools import partial

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from test_equality import CLUSTER
from test_fused_attention import GPUS, assert_equal_update

BATCH, TOKENS, WIDTH, HEADS = 16, 16, 32, 4
EPSILON, SCALE = 1e-5, 0.5
METHODS = {
    "one micro-batch": ShardParallel(num_micro_batches=1),
    "two": ShardParallel(num_micro_batches=2, export="collectives"),
    "megatron": ShardParallel(num_micro_batches=2, method="megatron", mesh_shape=(4, 2)),
    "two stages": PipeshardParallel(num_micro_batches=2, submeshes=[(1, 4), (1, 4)], layers=2),
}


def call(target, results, *operands, **attributes):
    """One of the package's FFI functions; results are of float32."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in results]
    return jax.ffi.ffi_call(target, shapes)(*operands, **attributes)


def norm_of(kind):
    """As `transformer_engine.jax.layernorm` calls them without a quantizer."""
    given = {
        "norm_type": ("layer", "rms").index(kind),
        "zero_centered_gamma": False,
        "sm_margin": 0,
    }

    def forward(x, gamma, beta):
        rows = x.shape[:-1]
        mean = rows if kind == "layer" else (1,)
        results = [x.shape, (1,), (1,), (1,), (1,), mean, rows, (64,)]
        scale = jnp.ones(1)
        out, *_, mean, inverse, _ = call(
            "te_norm_forward_ffi",
            results,
            *(x, scale, gamma, beta if kind == "layer" else jnp.ones(1)),
            epsilon=EPSILON,
            scaling_mode=0,
            is_2x=False,
            **given,
        )
        return out, (x, mean if kind == "layer" else jnp.zeros(1), inverse, gamma)

    def backward(saved, made):
        x, gamma = saved[0], saved[-1]
        beta = gamma.shape if kind == "layer" else (1,)
        results = [x.shape, gamma.shape, beta, (64,)]
        dx, dgamma, dbeta, _ = call("te_norm_backward_ffi", results, made, *saved, **given)
        return dx, dgamma, dbeta if kind == "layer" else jnp.zeros_like(gamma)

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    return function


def plain_norm(kind):
    def function(x, gamma, beta):
        if kind == "rms":
            return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + EPSILON) * gamma
        return jax.nn.standardize(x, epsilon=EPSILON) * gamma + beta

    return function


def softmax_of(kind):
    """As `transformer_engine.jax.softmax` calls them."""
    stem = {"": "scaled", "mask": "scaled_masked", "causal": "scaled_upper_triang_masked"}[kind]

    def forward(logits, mask):
        operands = (logits, mask) if kind == "mask" else (logits,)
        (out,) = call(
            f"te_{stem}_softmax_forward_ffi", [logits.shape], *operands, scale_factor=SCALE
        )
        return out, out

    def backward(out, made):
        name = f"te_{stem}_softmax_backward_ffi"
        (gradient,) = call(name, [out.shape], made, out, scale_factor=SCALE)
        return gradient, None

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    return function


def plain_softmax(kind):
    def function(logits, mask):
        if kind == "causal":
            mask = ~jnp.tril(jnp.ones(logits.shape[-2:], bool))
        if kind:
            logits = jnp.where(mask, logits - 1e10, logits)
        return jax.nn.softmax(SCALE * logits)

    return function


def gemm(lhs, rhs, result, boundaries, transposed, bias=None):
    """As `transformer_engine.jax.dense` calls it."""
    one = jnp.ones(1)
    bias = jnp.zeros(0) if bias is None else bias
    config = {
        "scaling_mode": 0,
        "collective_op": 0,
        "lhs_axis_boundary": boundaries[0],
        "rhs_axis_boundary": boundaries[1],
        "lhs_transposed": transposed[0],
        "rhs_transposed": transposed[1],
        "use_split_accumulator": False,
    }
    operands = (lhs, one, rhs, one, bias, one, jnp.zeros(1))
    return call("te_gemm_v2_ffi", [result, (64,)], *operands, config=config)[0]


@jax.custom_vjp
def dense(x, kernel, bias):
    return gemm(x, kernel, (*x.shape[:-1], kernel.shape[1]), (2, 1), (False, False), bias)


def _dense_backward(saved, made):
    x, kernel = saved
    rows = gemm(made, kernel, x.shape, (2, 1), (False, True))
    columns = gemm(x, made, kernel.shape, (2, 2), (True, False))
    return rows, columns, made.sum((0, 1))


dense.defvjp(lambda x, kernel, bias: (dense(x, kernel, bias), (x, kernel)), _dense_backward)


def plain_dense(x, kernel, bias):
    return x @ kernel + bias


def make_step(norm, softmax, product=plain_dense):
    """Two layers of attention behind a norm, and their SGD update."""

    def layer(x, params, mask):
        rows = norm(x, params["gamma"], params["beta"])
        query, key, value = (jnp.einsum("btd,dnh->bnth", rows, params[n]) for n in "qkv")
        shares = softmax(jnp.einsum("bnth,bnsh->bnts", query, key), mask)
        made = jnp.einsum("bnts,bnsh->btnh", shares, value).reshape(x.shape)
        return x + product(made, params["out"], params["shift"])

    def step(state, batch):
        def loss(state):
            x = batch["x"]
            for params in state:
                x = layer(x, params, batch["mask"])
            return jnp.mean(x**2)

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - g, state, grads), value

    return step


def make_inputs():
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 32))
    draw = partial(jax.random.normal, dtype=jnp.float32)
    state = [
        {
            "gamma": 1 + 0.1 * draw(next(keys), (WIDTH,)),
            "beta": 0.1 * draw(next(keys), (WIDTH,)),
            "out": 0.3 * draw(next(keys), (WIDTH, WIDTH)),
            "shift": 0.1 * draw(next(keys), (WIDTH,)),
            **{n: 0.3 * draw(next(keys), (WIDTH, HEADS, WIDTH // HEADS)) for n in "qkv"},
        }
        for _ in range(2)
    ]
    shape = (BATCH, 1, TOKENS, TOKENS)
    hidden = jax.random.bernoulli(next(keys), 0.3, shape) & ~jnp.eye(TOKENS, dtype=bool)
    x = draw(next(keys), (BATCH, TOKENS, WIDTH))
    return state, {"x": x, "mask": hidden.astype(jnp.uint8)}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("norm", "softmax"), [("layer", "mask"), ("rms", "causal"), ("rms", "")])
@pytest.mark.usefixtures("kernels_to_the_end")
def test_parts_of_the_kernels_make_the_whole(norm, softmax, method):
    state, batch = make_inputs()
    expected = jax.jit(make_step(plain_norm(norm), plain_softmax(softmax)))(state, batch)
    step = make_step(norm_of(norm), softmax_of(softmax), dense)
    split = alpa_mlir.compile(step, state, batch, cluster=GPUS, method=METHODS[method])
    assert_equal_update(split(state, batch), expected, state)


def test_without_a_gpu_the_kernels_are_plain_ops():
    state, batch = make_inputs()
    expected = jax.jit(make_step(plain_norm("layer"), plain_softmax("mask")))(state, batch)
    step = make_step(norm_of("layer"), softmax_of("mask"), dense)
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=METHODS["two"], cache=False)
    assert_equal_update(parallel(state, batch), expected, state)


def calls_on_parts(softmax, monkeypatch):
    """Names of calls and shapes of their first operands, in a plan for 8 GPUs."""
    monkeypatch.setattr("alpa_mlir.stages._gpus_elsewhere", lambda cluster: "9.0")
    state, batch = make_inputs()
    step = make_step(norm_of("layer"), softmax_of(softmax))
    method = ShardParallel(num_micro_batches=2, method="data-parallel", export="collectives")
    parallel = alpa_mlir.parallelize(step, cluster=GPUS, method=method, cache=False)
    plan = parallel.plan(state, batch).plan
    (stage,) = plan.stages
    return re.findall(
        r"custom_call @te_(\w+)_ffi\(.*: \(tensor<(\w+)xf32>", plan.modules[stage.module]
    )


def test_plans_for_gpus_call_the_kernels_on_parts(monkeypatch):
    """The batch needs no gradient: of the first norm only those of its weights are left, in ops."""
    rows, scores = f"1x{TOKENS}x{WIDTH}", f"1x{HEADS}x{TOKENS}x{TOKENS}"
    calls = calls_on_parts("", monkeypatch)
    assert sorted(calls) == [
        ("norm_backward", rows),
        *2 * [("norm_forward", rows)],
        *2 * [("scaled_softmax_backward", scores)],
        *2 * [("scaled_softmax_forward", scores)],
    ]


def test_kernels_get_whole_blocks(monkeypatch):
    """Of 16 keys a block of threads has 16 rows: four examples of four heads each, at least."""
    calls = calls_on_parts("causal", monkeypatch)
    shapes = {shape for name, shape in calls if "softmax" in name}
    assert shapes == {f"4x{HEADS}x{TOKENS}x{TOKENS}"}


def quantize(x, scale, axis, before=None):
    """As `transformer_engine.jax.cpp_extensions.quantize_dbias` calls it for delayed scaling."""
    f8, turned = jnp.float8_e4m3fn, (*x.shape[axis:], *x.shape[:axis])
    results = [(x.shape, f8), (turned, f8), *3 * [((1,), jnp.float32)], (x.shape[axis:], x.dtype)]
    results.append(((8, 8), jnp.float32))
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    given = [x, scale]
    options = {}
    if before is not None:  # Since version 2.8.
        empty = jnp.zeros((1, 1), jnp.bfloat16)
        given += [before, jnp.zeros(0, jnp.uint32), jnp.zeros(1), empty]
        options = {"stochastic_rounding": False, "use_rht": False}
    return jax.ffi.ffi_call("te_dbias_quantize_ffi", shapes)(
        *given, scaling_mode=1, q_layout=2, flatten_axis=axis, is_dbias=True, **options
    )


def plain_quantize(x, scale, axis, before=None):
    scaled = jnp.clip(x * scale, -448, 448).astype(jnp.float8_e4m3fn)
    order = (*range(axis, x.ndim), *range(axis))
    most = jnp.maximum(jnp.abs(x).max(), 0 if before is None else before[0])
    sums = x.sum(tuple(range(axis)))
    return scaled, scaled.transpose(order), 1 / scale, 1 / scale, most[None], sums, None


def gemm_of_8_bits(lhs, lhs_scale, rhs, rhs_scale, boundaries):
    """Both sides have what is contracted behind, as Hopper's units ask for."""
    result = (*lhs.shape[: boundaries[0]], *rhs.shape[: boundaries[1]])
    config = {
        "scaling_mode": 1,
        "collective_op": 0,
        "lhs_axis_boundary": boundaries[0],
        "rhs_axis_boundary": boundaries[1],
        "lhs_transposed": False,
        "rhs_transposed": True,
        "use_split_accumulator": False,
    }
    operands = (lhs, lhs_scale, rhs, rhs_scale, jnp.zeros(0), jnp.ones(1), jnp.zeros(1))
    return call("te_gemm_v2_ffi", [result, (64,)], *operands, config=config)[0]


def plain_gemm_of_8_bits(lhs, lhs_scale, rhs, rhs_scale, boundaries):
    left, right = (
        (x.astype(jnp.float32) * scale).reshape(*x.shape[:boundary], -1)
        for x, scale, boundary in ((lhs, lhs_scale, boundaries[0]), (rhs, rhs_scale, boundaries[1]))
    )
    return jax.lax.dot_general(left, right, (((left.ndim - 1,), (right.ndim - 1,)), ((), ())))


def make_step_of_8_bits(quantize, gemm, before):
    """A layer with delayed scaling: the largest elements of this step are the next one's state."""

    def one(x):
        return None if before is None else jnp.full(1, before) + 0 * x

    @jax.custom_vjp
    def dense(x, kernel, bias, scales):
        return forward(x, kernel, bias, scales)[0]

    def forward(x, kernel, bias, scales):
        row, column, inverse, _, most, *_ = quantize(x, scales["x"], 2, one(scales["x"]))
        wide, tall, kernel_inverse, _, kernel_most, *_ = quantize(kernel, scales["kernel"], 1)
        out = gemm(row, inverse, tall, kernel_inverse, (2, 1)) + bias
        return out, (column, inverse, wide, kernel_inverse, most, kernel_most, scales)

    def backward(saved, made):
        column, inverse, wide, kernel_inverse, most, kernel_most, scales = saved
        row, made_column, made_inverse, _, made_most, sums, _ = quantize(made, scales["made"], 2)
        rows = gemm(row, made_inverse, wide, kernel_inverse, (2, 1))
        kernel = gemm(column, inverse, made_column, made_inverse, (1, 1))
        return rows, kernel, sums, {"x": most, "kernel": kernel_most, "made": made_most}

    dense.defvjp(forward, backward)

    def step(state, batch):
        def loss(state):
            out = dense(batch["x"] * state["gain"], state["kernel"], state["bias"], state["scales"])
            return jnp.sum(out**2) / 2**10

        value, grads = jax.value_and_grad(loss)(state)
        largest = grads.pop("scales")
        new = {name: state[name] - grad for name, grad in grads.items()}
        return {**new, "scales": jax.tree.map(lambda x: 256 / x, largest)}, value

    return step


@pytest.mark.sample(4)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("before", [None, 64.0])
@pytest.mark.usefixtures("kernels_to_the_end")
def test_quantized_parts_make_the_whole(before, method):
    """Small integers, whose sums are exact: rounding to 8 bits sees the same numbers then."""
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 4))

    def draw(*shape):
        return jax.random.randint(next(keys), shape, -3, 4).astype(jnp.float32)

    scales = {"x": 4.0, "kernel": 8.0, "made": 0.5}
    state = {
        "kernel": draw(WIDTH, 2 * WIDTH),
        "bias": draw(2 * WIDTH),
        "gain": jnp.ones(WIDTH),
        "scales": {name: jnp.full(1, scale) for name, scale in scales.items()},
    }
    batch = {"x": draw(BATCH, TOKENS, WIDTH)}
    plain = make_step_of_8_bits(plain_quantize, plain_gemm_of_8_bits, before)
    step = make_step_of_8_bits(quantize, gemm_of_8_bits, before)
    split = alpa_mlir.compile(step, state, batch, cluster=GPUS, method=METHODS[method])
    assert_equal_update(split(state, batch), jax.jit(plain)(state, batch), state)


def test_plans_for_gpus_quantize_parts(monkeypatch):
    monkeypatch.setattr("alpa_mlir.stages._gpus_elsewhere", lambda cluster: "9.0")
    state = {
        "kernel": jnp.ones((WIDTH, 2 * WIDTH)),
        "bias": jnp.ones(2 * WIDTH),
        "gain": jnp.ones(WIDTH),
        "scales": {name: jnp.ones(1) for name in ("x", "kernel", "made")},
    }
    batch = {"x": jnp.ones((BATCH, TOKENS, WIDTH))}
    step = make_step_of_8_bits(quantize, gemm_of_8_bits, None)
    method = ShardParallel(num_micro_batches=2, method="data-parallel", export="collectives")
    parallel = alpa_mlir.parallelize(step, cluster=GPUS, method=method, cache=False)
    plan = parallel.plan(state, batch).plan
    text = plan.modules[plan.stages[0].module]
    shapes = re.findall(r"@te_(dbias_quantize|gemm_v2)_ffi\(.*: \(tensor<([\dx]+)x\w+>", text)
    part = f"1x{TOKENS}x{WIDTH}"
    assert ("dbias_quantize", part) in shapes
    assert ("gemm_v2", part) in shapes


def make_router_step(score, loss_of):
    """Tokens weighted by a router's probabilities, and its loss of balance."""

    def step(state, batch):
        def loss(state):
            logits = batch["x"] @ state["router"]
            probabilities = score(logits)
            tokens = jnp.sum(probabilities > 0.15, 0, dtype=jnp.int32)
            made = jnp.einsum("tw,te,ewd->td", batch["x"], probabilities, state["experts"])
            return jnp.mean(made**2) + loss_of(probabilities, tokens)

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - g, state, grads), value

    return step


@jax.custom_vjp
def balance(probabilities, tokens):
    return _balance_forward(probabilities, tokens)[0]


def _balance_forward(probabilities, tokens):
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((), (2,))]
    value, factor = jax.ffi.ffi_call("te_fused_moe_aux_loss_forward_ffi", shapes)(
        probabilities, tokens, topk=2, coeff=0.5
    )
    return value, (factor, tokens, probabilities)


def _balance_backward(saved, made):
    factor, tokens, probabilities = saved
    shape = jax.ShapeDtypeStruct(probabilities.shape, jnp.float32)
    target = "te_fused_moe_aux_loss_backward_ffi"
    return jax.ffi.ffi_call(target, shape)(factor, tokens, made), None


balance.defvjp(_balance_forward, _balance_backward)


@pytest.mark.parametrize("method", ["one micro-batch", "two stages"])
@pytest.mark.usefixtures("kernels_to_the_end")
def test_the_loss_of_a_router_is_its_sums(method):
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 4))
    state = {
        "router": jax.random.normal(next(keys), (WIDTH, 8)),
        "experts": 0.3 * jax.random.normal(next(keys), (8, WIDTH, WIDTH)),
    }
    batch = {"x": jax.random.normal(next(keys), (BATCH, WIDTH))}

    def plain(probabilities, tokens):
        held = probabilities.sum(0) * tokens
        return 0.5 * 8 / 2 / BATCH**2 * held.sum()

    expected = jax.jit(make_router_step(jax.nn.softmax, plain))(state, batch)
    step = make_router_step(jax.nn.softmax, balance)
    chosen = {"one micro-batch": METHODS[method], "two stages": METHODS["one micro-batch"]}[method]
    split = alpa_mlir.compile(step, state, batch, cluster=GPUS, method=chosen)
    assert_equal_update(split(state, batch), expected, state)


def test_each_device_sums_products_of_its_rows(monkeypatch):
    """The gradient of a weight, where XLA's partitioner is given annotated modules."""
    monkeypatch.setattr("alpa_mlir.stages._gpus_elsewhere", lambda cluster: "9.0")
    state, batch = make_inputs()
    step = make_step(plain_norm("rms"), plain_softmax(""), dense)
    method = ShardParallel(num_micro_batches=2, method="data-parallel")
    parallel = alpa_mlir.parallelize(step, cluster=GPUS, method=method, cache=False)
    plan = parallel.plan(state, batch).plan
    text = plan.modules[plan.stages[0].module]
    shapes = re.findall(r"@te_gemm_v2_ffi\(.*lhs_transposed = true.*: \(tensor<([\dx]+)xf32>", text)
    assert shapes == 2 * [f"1x{TOKENS}x{WIDTH}"]
