"""Marks in a program that the compiler follows."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

# JAX leaves many of its types unknown to checkers; the alias says so in one place.
_jax: Any = jax

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


def is_mark(eqn: Any) -> bool:
    """Whether an equation of a jaxpr is such a mark."""
    is_barrier = eqn.primitive.name == "optimization_barrier"
    return is_barrier and SCOPE in str(eqn.source_info.name_stack)


def mark_pipeline_boundary(x: _T) -> _T:
    """Begin a new layer here: `layer_boundary`, under Alpa's name.

    A mark without a value cannot be told from dead code: give what the new layer works on, and go
    on with what comes back.

    Example:
        >>> h = alpa_mlir.mark_pipeline_boundary(h)     # doctest: +SKIP
    """
    return layer_boundary(x)
