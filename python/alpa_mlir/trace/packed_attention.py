"""cuDNN's fused attention of packed sequences, of examples that have nothing to do with each other.

A call numbers the sequences of all of its examples, and stores their statistics one behind the
other: a part of its examples, or of their tokens, would store them elsewhere. The compiler gets
calls whose examples have lists of their own and statistics by tokens, of which it writes calls of
single examples in the end. In a `jax.shard_map` a kernel keeps its block, and is called for each
example of it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
from alpa_runtime import jax_internals
from jax.extend import core
from jax.interpreters import mlir

from alpa_mlir.trace import kernel_maps

_jax: Any = jax
_core: Any = core
_mlir: Any = mlir

_FORWARD, _BACKWARD = "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"
_BIAS, _OFFSETS = 3, 6
_EXAMPLES = {0, 1, 2, 4, 5, 6, 7, 11, 12}  # Query, key, value, lengths, offsets, output, gradient.
_STATISTICS = 10
_OPERANDS = {_FORWARD: 10, _BACKWARD: 13}


def is_packed(eqn: Any) -> bool:
    """Whether an equation is attention of packed sequences, without dropout, whose bits depend on
    an element's place in the call, and without a function of the scores."""
    count = _OPERANDS.get(eqn.primitive.name)
    if count is None or len(eqn.invars) != count or eqn.params["dropout_rate"] > 0:
        return False
    offsets = eqn.invars[_OFFSETS].aval.shape
    return len(offsets) == 2 and offsets[1] > 2 and eqn.params.get("score_mod") is None


def with_own_lists(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Results of such an equation, by a call whose examples have lists of their own."""
    lower = jax_internals.attention_lowering(eqn)
    if lower is None:
        return by_example(eqn, operands)
    numpy: Any = jax.numpy
    is_backward = eqn.primitive.name == _BACKWARD
    avals = [v.aval for v in eqn.outvars]
    given = list(operands)
    examples, sequences = operands[_OFFSETS].shape[0], operands[_OFFSETS].shape[1] - 1

    # Statistics keep their shape outside, where others may hold them.
    if is_backward:
        statistics = given[_STATISTICS]
        apart = numpy.reshape(statistics, (examples, sequences, *statistics.shape[1:]))
        given[_STATISTICS] = _jax.lax.slice_in_dim(apart, 0, 1, axis=1)[:, 0]
        if len(avals) > _BIAS:  # Each example's gradient of a bias for all.
            shape = (examples, *given[_BIAS].shape[1:])
            given[_BIAS] = numpy.broadcast_to(given[_BIAS], shape)
            avals[_BIAS] = avals[_BIAS].update(shape=shape)
    elif len(avals) == 2:
        avals[1] = avals[1].update(shape=(examples, *avals[1].shape[1:]))
    results = _primitive().bind(*given, lower=lower, avals=tuple(avals))
    if not is_backward and len(results) == 2:
        spare = [(0, 0, 0), (0, sequences - 1, 0), (0, 0, 0), (0, 0, 0)]
        apart = _jax.lax.pad(results[1][:, None], numpy.zeros((), results[1].dtype), spare)
        results[1] = numpy.reshape(apart, eqn.outvars[1].aval.shape)
    if len(results) > _BIAS and results[_BIAS].shape != eqn.outvars[_BIAS].aval.shape:
        results[_BIAS] = numpy.sum(results[_BIAS], 0, keepdims=True)
    return results


@functools.cache
def _primitive() -> Any:
    primitive: Any = _core.Primitive("dot_product_attention_of_own_sequences")
    primitive.multiple_results = True
    primitive.def_abstract_eval(_avals)
    _mlir.register_lowering(primitive, _lowered, platform="cuda")
    return primitive


def _avals(*operands: Any, lower: Callable[..., Any], avals: Sequence[Any]) -> list[Any]:
    del operands, lower
    return list(avals)


def _lowered(ctx: Any, *operands: Any, lower: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """The call that JAX writes, with the compiler's mark and statistics."""
    ir = jax_internals.mlir_ir()
    results = list(lower(ctx, *operands))
    call = results[0].owner
    while ir.OpView(call).operation.name == "stablehlo.transpose":
        call = call.operands[0].owner
    config = json.loads(ir.StringAttr(call.attributes["backend_config"]).value)
    config["cudnn_fmha_backend_config"]["own_sequences"] = True
    call.attributes["backend_config"] = ir.StringAttr.get(json.dumps(config))
    for result, aval in zip(results, avals, strict=True):
        kind = ir.RankedTensorType(result.type)
        if list(kind.shape) != list(aval.shape):
            result.set_type(ir.RankedTensorType.get(aval.shape, kind.element_type))
    return results


def by_example(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The same, by a kernel that is called for each example."""
    numpy: Any = jax.numpy
    batch = operands[0].shape[0]
    has_own_bias = operands[_BIAS].shape[0] == batch

    def block(index: int, x: Any) -> tuple[Any, int | None]:
        if index == _STATISTICS:  # [examples * sequences, heads, tokens]
            return numpy.reshape(x, (batch, -1, *x.shape[1:])), 0
        if index in _EXAMPLES or (index == _BIAS and has_own_bias):
            return numpy.expand_dims(x, 1), 0
        return x, None

    blocks, places = zip(*(block(i, x) for i, x in enumerate(operands)), strict=True)

    def call(*given: Any) -> list[Any]:
        return list(eqn.primitive.bind(*given, **eqn.params))

    def kept(*given: Any) -> list[Any]:
        avals = [_jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given]
        return list(kernel_maps.kept(call, avals, given))

    results = _jax.vmap(kept, places)(*blocks)
    if len(results) == _BIAS + 1 and not has_own_bias:
        results[_BIAS] = numpy.sum(results[_BIAS], 0)
    return [numpy.reshape(x, v.aval.shape) for x, v in zip(results, eqn.outvars, strict=True)]
