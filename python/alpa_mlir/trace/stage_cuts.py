"""Where a function without gradients is cut, so that each stage uses the weights of one mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import jax
import jax.numpy
from alpa_runtime import trees
from alpa_runtime.jaxprs import bind, is_literal

from alpa_mlir.trace.layer_markers import is_layer_marker, layer_boundary
from alpa_mlir.trace.tagging import call_body

_jax: Any = jax
_jnp: Any = jax.numpy

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
            return (atom.val, frozenset()) if is_literal(atom) else env[atom]

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
