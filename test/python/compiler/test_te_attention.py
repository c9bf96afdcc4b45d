"""Transformer Engine's attention: planned as calls, split by examples and heads.

The package is not needed: calls are made here in its form, that of versions 2.3 to 2.20.
"""

from __future__ import annotations

import re

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_mlir.errors import MicroBatchError, UnsupportedOpError
from test_equality import CLUSTER
from test_fused_attention import (
    BATCH,
    GPUS,
    HEADS,
    assert_equal_update,
    draw_inputs,
    layer_of,
    step_of,
    without_padding,
)

TOKENS, WIDTH, FEATURES = 8, 16, 4
LAYOUTS = {"all": 5, "keys and values": 7, "separate": 9}
MASKS = {"none": 0, "padding": 1, "causal": 2, "padding causal": 3, "bottom right": 4}
METHODS = {
    "one micro-batch": ShardParallel(num_micro_batches=1),
    "two": ShardParallel(num_micro_batches=2, export="collectives"),
    "megatron": ShardParallel(num_micro_batches=2, method="megatron", mesh_shape=(4, 2)),
    "two stages": PipeshardParallel(num_micro_batches=2, submeshes=[(1, 4), (1, 4)], layers=2),
}


def attention_of(layout, mask, has_offset, dtype=jnp.float32, sums=None, **changed):
    """As `transformer_engine.jax.attention.fused_attn` calls it."""
    sums = sums or (lambda x: jnp.cumulative_sum(jnp.where(x < 0, 0, x), include_initial=True))

    def packed(query, key, value):
        none = jnp.zeros(0, dtype)
        if layout == "all":
            return jnp.stack([query, key, value], 2), none, none
        if layout == "keys and values":
            return query, jnp.stack([key, value], 2), none
        return query, key, value

    def attributes(query, key, bias):
        examples, tokens, heads, features = query.shape
        return {
            "input_batch": examples,
            "bias_batch": bias.shape[0] if bias.size else 0,
            "q_max_seqlen": tokens,
            "kv_max_seqlen": key.shape[1],
            "attn_heads": heads,
            "num_gqa_groups": key.shape[2],
            "bias_heads": bias.shape[1] if bias.size else 0,
            "qk_head_dim": features,
            "v_head_dim": features,
            "max_segments_per_seq": 1,
            "scaling_factor": 0.5,
            "dropout_probability": 0.0,
            "bias_type": 2 if bias.size else 0,
            "mask_type": MASKS[mask],
            "qkv_layout": LAYOUTS[layout],
            "is_training": True,
            "deterministic": False,
            "window_size_left": -1,
            "window_size_right": -1,
            **changed,
        }

    def rest(lengths):
        return (sums(lengths), sums(lengths), *6 * [jnp.zeros(0, jnp.int32)])

    def shape(*sizes, of=dtype):
        return jax.ShapeDtypeStruct(sizes, of)

    offset = [jnp.zeros(0, jnp.float32)] * has_offset

    def forward(query, key, value, bias, lengths):
        given = packed(query, key, value)
        results = [shape(*query.shape), shape(query.shape[0], HEADS, TOKENS, 1, of=jnp.float32)]
        results += [shape(1, 4, of=jnp.uint32), shape(64, of=jnp.uint8)]
        out, statistics, state, _ = jax.ffi.ffi_call("te_fused_attn_forward_ffi", results)(
            *(*given, bias, *offset, jnp.zeros(2, jnp.uint32), *rest(lengths)),
            **attributes(query, key, bias),
        )
        return out, (query, key, value, bias, statistics, state, out, lengths)

    def backward(saved, made):
        query, key, value, bias, *held, lengths = saved
        given = packed(query, key, value)
        results = [shape(*x.shape) for x in (*given, bias)]
        results += [shape(0, of=jnp.float32)] * has_offset + [shape(64, of=jnp.uint8)]
        first, second, third, of_bias, *_ = jax.ffi.ffi_call("te_fused_attn_backward_ffi", results)(
            *(*given, bias, *offset, *held, made, *rest(lengths)), **attributes(query, key, bias)
        )
        if layout == "all":
            first, second, third = (first[:, :, i] for i in range(3))
        elif layout == "keys and values":
            second, third = second[:, :, 0], second[:, :, 1]
        return first, second, third, of_bias, None

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    return function


def plain_attention(mask):
    def function(query, key, value, bias, lengths):
        options = {}
        if "padding" in mask:
            options = dict.fromkeys(("query_seq_lengths", "key_value_seq_lengths"), lengths)
        return jax.nn.dot_product_attention(
            *(query, key, value, bias if bias.size else None),
            scale=0.5,
            is_causal=mask not in ("none", "padding"),
            **options,
        )

    return function


def make_step(attend, bias_of=None):
    """Two layers of attention, and their SGD update."""

    def biased(query, key, value, params, batch):
        bias = {"examples": batch["bias"], "heads": params["bias"]}.get(bias_of, jnp.zeros(0))
        out = attend(query, key, value, bias, batch["lengths"])
        return without_padding(out, batch["lengths"])

    return step_of(layer_of(biased))


def make_inputs(key_heads):
    return draw_inputs(key_heads, TOKENS, WIDTH, FEATURES)


# Layout, heads of keys, mask, whose bias, whether there is an offset of the softmax.
STYLES = [
    ("separate", 2, "causal", None, True),
    ("separate", 4, "padding", "examples", False),
    ("keys and values", 2, "padding causal", None, False),
    ("all", 4, "padding causal", None, True),
    ("all", 4, "none", None, False),
]


@pytest.mark.sweep(8)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("layout", "key_heads", "mask", "bias", "has_offset"), STYLES)
@pytest.mark.usefixtures("kernels_to_the_end")
def test_parts_of_attention_make_the_whole(layout, key_heads, mask, bias, has_offset, method):
    state, batch = make_inputs(key_heads)
    expected = jax.jit(make_step(plain_attention(mask), bias))(state, batch)
    step = make_step(attention_of(layout, mask, has_offset), bias)
    split = alpa_mlir.compile(step, state, batch, cluster=GPUS, method=METHODS[method])
    assert_equal_update(split(state, batch), expected, state)


def test_without_a_gpu_attention_is_plain_ops():
    state, batch = make_inputs(2)
    expected = jax.jit(make_step(plain_attention("bottom right"), "heads"))(state, batch)
    step = make_step(attention_of("keys and values", "bottom right", True), "heads")
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=METHODS["two"], cache=False)
    assert_equal_update(parallel(state, batch), expected, state)


def plan_of(monkeypatch, attend, method, bias=None):
    monkeypatch.setattr("alpa_mlir.stages._gpus_elsewhere", lambda cluster: "9.0")
    state, batch = make_inputs(4)
    step = make_step(attend, bias)
    parallel = alpa_mlir.parallelize(step, cluster=GPUS, method=method, cache=False)
    return parallel.plan(state, batch).plan


def test_plans_for_gpus_call_attention_on_parts(monkeypatch):
    """Attributes say the sizes of the part, and lengths are summed over its examples."""
    method = ShardParallel(
        num_micro_batches=2, method="megatron", mesh_shape=(2, 4), export="collectives"
    )
    plan = plan_of(monkeypatch, attention_of("separate", "padding", False), method)
    (stage,) = plan.stages
    calls = re.findall(r"custom_call @te_fused_attn_(\w+)_ffi\((.*)", plan.modules[stage.module])
    assert [name for name, _ in calls] == ["forward"] * 2 + ["backward"] * 2
    examples, heads = BATCH // 2 // 2, HEADS // 4
    for _, call in calls:
        assert f"input_batch = {examples} :" in call
        assert f"attn_heads = {heads} :" in call
        assert f"num_gqa_groups = {heads} :" in call
        assert f"tensor<{examples}x{TOKENS}x{heads}x{FEATURES}xf32>" in call
        assert call.count(f"tensor<{examples + 1}xi32>") == 2


UNKNOWN = {
    "lengths": attention_of(
        "separate", "padding", False, sums=lambda x: jnp.arange(BATCH + 1) * x.max()
    ),
    "dropout": attention_of("separate", "none", False, dropout_probability=0.1),
    "packed": attention_of("separate", "padding", False, qkv_layout=14),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_attention_that_needs_all_examples_says_so(what, monkeypatch):
    with pytest.raises(MicroBatchError, match=r"needs (all examples|a value of the whole batch)"):
        plan_of(monkeypatch, UNKNOWN[what], METHODS["two"])


def test_masks_without_plain_ops_need_a_gpu():
    state, batch = make_inputs(4)
    step = make_step(attention_of("separate", "none", False, window_size_right=2))
    with pytest.raises(UnsupportedOpError, match="has no form in plain ops"):
        alpa_mlir.parallelize(step, cluster=CLUSTER, cache=False)(state, batch)


def doubled(lengths):
    """Sums of 1, 2, 4, .. neighbours."""
    total = lengths
    for shift in (1, 2, 4):
        total = total + jnp.pad(total, (shift, 0))[: lengths.shape[0]]
    return jnp.concatenate([jnp.zeros(1, lengths.dtype), total])


def scanned(lengths):
    return jnp.pad(jax.lax.associative_scan(jnp.add, lengths), (1, 0))


@pytest.mark.parametrize("sums", [doubled, scanned])
def test_running_sums_are_known_by_what_they_compute(sums, monkeypatch):
    attend = attention_of("separate", "padding", False, sums=sums)
    plan = plan_of(monkeypatch, attend, METHODS["two"])
    sizes = [int(n) for n in re.findall(r"input_batch = (\d+)", "".join(plan.modules.values()))]
    assert len(sizes) == 4
    assert max(sizes) <= BATCH // 2
