"""cuDNN's fused attention of packed sequences, one call for each example.

A call numbers the sequences of all of its examples, and stores their statistics one behind the
other: a part of its examples would store them elsewhere. Calls of single examples have nothing to
do with each other, so that devices and micro-batches can have examples of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from alpa_mlir.trace import kernel_maps

_jax: Any = jax

_FORWARD, _BACKWARD = "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"
_BIAS, _OFFSETS = 3, 6
_EXAMPLES = {0, 1, 2, 4, 5, 6, 7, 11, 12}  # Query, key, value, lengths, offsets, output, gradient.
_STATISTICS = 10
_OPERANDS = {_FORWARD: 10, _BACKWARD: 13}


def is_packed(eqn: Any) -> bool:
    """Whether an equation is attention of packed sequences in several examples, without dropout,
    whose bits depend on an element's place in the call."""
    count = _OPERANDS.get(eqn.primitive.name)
    if count is None or len(eqn.invars) != count or eqn.params["dropout_rate"] > 0:
        return False
    offsets = eqn.invars[_OFFSETS].aval.shape
    return len(offsets) == 2 and offsets[1] > 2 and offsets[0] > 1


def by_example(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Results of such an equation, by a kernel that is called for each example."""
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
