"""Models, optimizers and variables of flax.nnx, which steps change in place, as trees of arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from alpa_runtime import trees


@cache
def _has_base(kind: Any, names: frozenset[str]) -> bool:
    """Whether a class of flax.nnx with one of these names is a base of a type."""
    classes: tuple[type, ...] = kind.__mro__
    found = {(cls.__module__.partition(".nnx.")[0], cls.__name__) for cls in classes}
    return bool(found & {("flax", name) for name in names})


_OBJECTS = frozenset(["Pytree", "Object", "Variable"])
_STATE = frozenset(["State"])


def is_object(value: Any) -> bool:
    """Whether a value is a module, an optimizer, a variable or the like of flax.nnx."""
    kind: Any = value.__class__
    return _has_base(kind, _OBJECTS)


def _is_object_or_state(value: Any) -> bool:
    """A state of `nnx.split` is a tree: what is written to its variables is not kept."""
    kind: Any = value.__class__
    return _has_base(kind, _OBJECTS | _STATE)


def objects_in(tree: Any) -> list[Any]:
    """The objects of flax.nnx in a tree, in flattening order."""
    if "flax.nnx" not in sys.modules:
        return []
    return [x for _, x in trees.flatten_with_path(tree, _is_object_or_state)[0] if is_object(x)]


@dataclass(frozen=True)
class ObjectForm:
    """Several trees of objects without their arrays; equal for objects of one structure.

    Attributes:
        graph: flax's definition of all of them; what they share is there once.
        structure: of flax's state of them.
        order: for each array of the states as dictionaries, its number in flax's state.
    """

    graph: Any
    structure: Any
    order: tuple[int, ...]

    def merge(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """New objects with these states."""
        return _nnx().merge(self.graph, self._state(states))

    def update(self, objects: Sequence[Any], states: Sequence[Any]) -> None:
        """Give objects other states, in place."""
        _nnx().update(tuple(objects), self._state(states))

    def _state(self, states: Sequence[Any]) -> Any:
        found: list[Any] = [None] * len(self.order)
        for place, value in zip(self.order, trees.leaves(tuple(states)), strict=True):
            found[place] = value
        return trees.unflatten(self.structure, found)


def split(objects: Sequence[Any]) -> tuple[ObjectForm, tuple[Any, ...]]:
    """The form of trees of objects, and for each of them its arrays in nested dictionaries."""
    graph, state = _nnx().split(tuple(objects))
    leaves, structure = trees.flatten(state)
    numbered = _nnx().to_pure_dict(trees.unflatten(structure, range(len(leaves))))
    numbers = tuple(numbered.get(i, {}) for i in range(len(objects)))
    order, tree = trees.flatten(numbers)
    states = trees.unflatten(tree, [leaves[i] for i in order])
    return ObjectForm(graph, structure, tuple(order)), states


def _nnx() -> Any:
    from flax import nnx

    return nnx
