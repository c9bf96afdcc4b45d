"""Marks between layers: what users write, and where a function without gradients is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, TypeVar, overload

import jax
import jax.numpy
import numpy as np
from alpa_runtime import trees

from alpa_mlir.trace.jaxprs import Values, bind, call_body, is_literal, literal_value

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


# Where a function without gradients is cut, so that each stage uses the weights of one mesh.

# Meshes of the weights that a value is made of; None if it is made of the batch as well.
Origin = frozenset[int] | None


class StageCuts:
    """Cuts a function where it first uses a weight of the next mesh.

    Args:
        owners: for each flat argument that is not static the mesh that has it; None for batches.
        meshes: mesh of each stage of the plan whose weights they are.

    Attributes:
        stages: of that plan, those whose weights the function uses, once it has been traced.
    """

    def __init__(self, owners: Sequence[int | None], meshes: Sequence[int]) -> None:
        self.stages: list[int] = []
        self._owners = owners
        self._meshes = meshes

    def marked(self, fn: Callable[..., Any], static: Sequence[int]) -> Callable[..., Any]:
        """The function with a mark where each stage but the first begins.

        Args:
            static: positions of arguments that are Python values.
        """

        def cut(*args: Any) -> Any:
            self.stages = []
            closed, leaves, tree = trees.flat_jaxpr(fn, args, static)
            origins = [None if mesh is None else frozenset((mesh,)) for mesh in self._owners]
            values, _ = self._run(closed.jaxpr, closed.consts, leaves, origins)
            return trees.unflatten(tree, values)

        update_wrapper(cut, fn)
        return cut

    def _run(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], origins: Sequence[Origin]
    ) -> tuple[list[Any], list[Origin]]:
        """Values of the results, and what they are made of."""
        env: dict[Any, tuple[Any, Origin]] = {}
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = value, frozenset()
        for var, value, origin in zip(jaxpr.invars, args, origins, strict=True):
            env[var] = value, origin

        def read(atom: Any) -> tuple[Any, Origin]:
            return (literal_value(atom), frozenset()) if is_literal(atom) else env[atom]

        debug = jaxpr.debug_info.with_unknown_names()
        for eqn in jaxpr.eqns:
            pairs = [read(atom) for atom in eqn.invars]
            values, made_of = [value for value, _ in pairs], [origin for _, origin in pairs]
            body = call_body(eqn)
            if is_layer_marker(eqn):  # The stages of the followed plan count.
                results, of = values, made_of
            elif body is not None:
                results, of = self._run(*body, values, made_of)
            else:
                if None in made_of and self._begins_stage(made_of):
                    _mark(values, made_of)
                results = bind(eqn, values, debug)
                of = [_together(made_of)] * len(results)
            env.update(zip(eqn.outvars, zip(results, of, strict=True), strict=True))
        found = [read(atom) for atom in jaxpr.outvars]
        return [value for value, _ in found], [origin for _, origin in found]

    def _begins_stage(self, made_of: Sequence[Origin]) -> bool:
        """Whether an equation of the batch is the first of a stage; notes the stage.

        Weights that several stages use (tied embeddings) begin none but their own.
        """
        used = {mesh for origin in made_of if origin is not None for mesh in origin}
        last = self.stages[-1] if self.stages else -1
        if not used or (self.stages and self._meshes[last] in used):
            return False
        later = [s for s in range(last + 1, len(self._meshes)) if self._meshes[s] in used]
        if not later:
            return False
        self.stages.append(later[0])
        return len(self.stages) > 1


def _together(made_of: Sequence[Origin]) -> Origin:
    meshes: frozenset[int] = frozenset()
    for origin in made_of:
        if origin is None:
            return None
        meshes |= origin
    return meshes


def _mark(values: list[Any], made_of: Sequence[Origin]) -> None:
    """Put a boundary on what the equation takes of the batch: a floating-point value if any."""
    places = [i for i, origin in enumerate(made_of) if origin is None]
    floats = [i for i in places if _jnp.issubdtype(values[i].dtype, _jnp.inexact)]
    place = (floats or places)[0]
    value = values[place]
    marked = layer_boundary(value)
    for i, other in enumerate(values):
        if other is value:
            values[i] = marked
