"""Kernels that run once for each block of their arrays (`alpa.map`).

A kernel in the body of a `jax.shard_map` was written for the block of one device. Where the body
is mapped over the mesh's axes, the kernel keeps its block: the dimensions that are mapped are
those of an op around it, which the compiler splits like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from alpa_runtime import jax_internals
from jax.extend import core
from jax.interpreters import batching, mlir

_jax: Any = jax
_core: Any = core
_batching: Any = batching
_mlir: Any = mlir

_TARGET = "alpa.map"


def has_rule(primitive: Any) -> bool:
    """Whether `jax.vmap` knows how to map a primitive."""
    names = ("primitive_batchers", "fancy_primitive_batchers", "axis_primitive_batchers")
    tables = [getattr(_batching, name, None) for name in names]  # Of 0.12 the second is all.
    return any(isinstance(table, dict) and primitive in table for table in tables)


def kept(function: Callable[..., list[Any]], avals: Sequence[Any], operands: Sequence[Any]) -> Any:
    """Results of a function of blocks, which are mapped around it.

    Args:
        function: has no side effects.
        avals: of its operands.
    """
    closed = _jax.make_jaxpr(function)(*avals)
    consts = list(closed.consts)

    def opened(*args: Any) -> list[Any]:
        return _jax.core.eval_jaxpr(closed.jaxpr, args[: len(consts)], *args[len(consts) :])

    body = _jax.make_jaxpr(opened)(*consts, *avals)
    given = (*consts, *operands)
    return _primitive().bind(*given, body=body, levels=((),) * len(given), sizes=())


@functools.cache
def _primitive() -> Any:
    """A function of blocks. `levels` says for each operand which of the mapped dimensions, whose
    sizes are `sizes`, it begins with; results begin with all of them."""
    primitive: Any = _core.Primitive("map_blocks")
    primitive.multiple_results = True
    primitive.def_abstract_eval(_avals)
    _batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)
    _mlir.register_lowering(primitive, _lowered)
    return primitive


def _avals(*operands: Any, body: Any, levels: Any, sizes: tuple[int, ...]) -> list[Any]:
    del operands, levels
    return [aval.update(shape=(*sizes, *aval.shape)) for aval in body.out_avals]


def _batched(
    primitive: Any,
    operands: Sequence[Any],
    places: Sequence[Any],
    *,
    body: Any,
    levels: tuple[tuple[int, ...], ...],
    sizes: tuple[int, ...],
) -> tuple[list[Any], list[int]]:
    """One more dimension, in front of the others."""
    numpy: Any = jax.numpy
    mapped = [place is not None for place in places]
    size = next(
        x.shape[place] for x, place in zip(operands, places, strict=True) if place is not None
    )
    moved = [
        x if place is None else numpy.moveaxis(x, place, 0)
        for x, place in zip(operands, places, strict=True)
    ]
    later = tuple(
        (*((0,) if is_mapped else ()), *(level + 1 for level in held))
        for is_mapped, held in zip(mapped, levels, strict=True)
    )
    results = primitive.bind(*moved, body=body, levels=later, sizes=(size, *sizes))
    return results, [0] * len(results)


def _lowered(ctx: Any, *operands: Any, body: Any, levels: Any, sizes: tuple[int, ...]) -> Any:
    if not sizes:
        evaluate = functools.partial(_jax.core.eval_jaxpr, body.jaxpr, body.consts)
        return _mlir.lower_fun(evaluate, multiple_results=True)(ctx, *operands)
    ir = jax_internals.mlir_ir()
    function = jax_internals.lowered_function(ctx, _TARGET, body)
    name = ir.StringAttr(function.attributes["sym_name"]).value
    blocks = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results

    def of_all(block: Any) -> Any:
        kind = ir.RankedTensorType(block)
        return ir.RankedTensorType.get([*sizes, *kind.shape], kind.element_type)

    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=list(map(of_all, blocks)),
        operands=list(operands),
        attributes={
            "call_target_name": ir.StringAttr.get(_TARGET),
            "called_computations": ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(name)]),
            "alpa.map_dims": ir.ArrayAttr.get(
                [ir.DenseI64ArrayAttr.get(list(held)) for held in levels]
            ),
            "alpa.map_levels": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(sizes)),
        },
    )
    return list(call.results)
