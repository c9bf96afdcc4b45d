"""Marks between layers: what users write, put on the values that were computed last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import jax
import jax.numpy
import numpy as np
from alpa_runtime.jaxprs import Values, bind, is_literal

_jax: Any = jax
_jnp: Any = jax.numpy

# Body and constants of a plain call; None for equations to be kept whole.
CallBody = Callable[[Any], tuple[Any, Sequence[Any]] | None]


def filled(closed: Any, call_body: CallBody) -> Any:
    """A closed jaxpr in which every mark stands on a value.

    A mark without a value is dead code to JAX. It is put on the floating-point value that was
    computed last of those that are still needed.
    """
    if not _has_bare(closed.jaxpr, call_body):
        return closed

    def evaluate(*args: Any) -> list[Any]:
        return _evaluate(closed.jaxpr, closed.consts, args, call_body)

    avals = [
        _jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.in_avals
    ]
    return _jax.make_jaxpr(evaluate)(*avals)


def _is_bare(eqn: Any) -> bool:
    return is_layer_marker(eqn) and all(map(is_literal, eqn.invars))


def _has_bare(jaxpr: Any, call_body: CallBody) -> bool:
    for eqn in jaxpr.eqns:
        body = call_body(eqn)
        if _is_bare(eqn) or (body is not None and _has_bare(body[0], call_body)):
            return True
    return False


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], call_body: CallBody
) -> list[Any]:
    values = Values.at_start(jaxpr, consts, args)
    debug = jaxpr.debug_info.with_unknown_names()
    for place, eqn in enumerate(jaxpr.eqns):
        operands = values.read(eqn.invars)
        body = call_body(eqn)
        if _is_bare(eqn):
            var = _latest(jaxpr, place)
            if var is not None:
                values.write([var], map(layer_boundary, values.read([var])))
            results = operands
        elif body is not None and _has_bare(body[0], call_body):
            results = _evaluate(*body, operands, call_body)
        else:
            results = bind(eqn, operands, debug)
        values.write(eqn.outvars, results)
    return values.read(jaxpr.outvars)


def _latest(jaxpr: Any, place: int) -> Any | None:
    """What the equations before one made last that those after it need."""
    later = [atom for eqn in jaxpr.eqns[place + 1 :] for atom in eqn.invars]
    needed = {a for a in [*later, *jaxpr.outvars] if not is_literal(a)}
    made = [var for eqn in jaxpr.eqns[:place] for var in eqn.outvars]
    for var in reversed([*jaxpr.invars, *made]):
        if var in needed and _jnp.issubdtype(var.aval.dtype, _jnp.inexact):
            return var
    return None


# JAX leaves many of its types unknown to checkers; the alias says so in one place.

_T = TypeVar("_T")

SCOPE = "alpa_layer_boundary"


def layer_boundary(x: _T) -> _T:
    """Begin a new layer here; returns `x`.

    Pipeline stages are made of whole layers. Without marks the compiler finds layers by
    itself; as soon as a step has one, its layers are exactly what lies between the marks,
    unless a method's `layers` says otherwise. A mark inside `jax.checkpoint`, a loop or a
    function with a derivative rule of its own cuts nothing. Values and gradients pass
    unchanged, under `jit`, `grad`, `vmap` and `checkpoint` too.

    Args:
        x: what the new layer works on: a tree of arrays of any shape.

    Example:
        >>> def loss(params, x):
        ...     h = first_half(params, x)
        ...     h = alpa_mlir.layer_boundary(h)
        ...     return second_half(params, h)
    """
    with _jax.named_scope(SCOPE):
        return _jax.lax.optimization_barrier(x)


def is_layer_marker(eqn: Any) -> bool:
    """Whether an equation of a jaxpr is such a mark."""
    is_barrier = eqn.primitive.name == "optimization_barrier"
    return is_barrier and SCOPE in str(eqn.source_info.name_stack)


@overload
def mark_pipeline_boundary() -> None: ...
@overload
def mark_pipeline_boundary(x: _T) -> _T: ...
def mark_pipeline_boundary(x: Any = None) -> Any:
    """Begin a new layer here: `layer_boundary`, under Alpa's name.

    Without a value the mark stands on what was computed last. That works in functions whose
    gradients are taken and in steps without gradients, also through `jit`, but not under `vmap`.

    Example:
        >>> h = first_half(params, x)                   # doctest: +SKIP
        >>> alpa_mlir.mark_pipeline_boundary()          # doctest: +SKIP
        >>> return second_half(params, h)               # doctest: +SKIP
    """
    if x is not None:
        return layer_boundary(x)
    layer_boundary(np.float32(0))
    return None
