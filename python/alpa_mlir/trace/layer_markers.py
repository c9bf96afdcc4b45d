"""Marks in a program that the compiler follows."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import jax
import numpy as np

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
