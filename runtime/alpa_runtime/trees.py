"""Typed access to JAX's pytree functions, whose own types are partly unknown to checkers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax

_jax: Any = jax
_util: Any = jax.tree_util

Path = tuple[Any, ...]
IsLeaf = Callable[[Any], bool]


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure."""
    return _util.tree_flatten(tree)


def flatten_with_path(
    tree: Any, is_leaf: IsLeaf | None = None
) -> tuple[list[tuple[Path, Any]], Any]:
    """Leaves with their key paths, and structure."""
    return _util.tree_flatten_with_path(tree, is_leaf=is_leaf)


def unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    """The tree with these leaves."""
    return _util.tree_unflatten(structure, leaves)


def leaves(tree: Any) -> list[Any]:
    """Leaves in flattening order."""
    return _util.tree_leaves(tree)


def structure(tree: Any) -> Any:
    """Structure without leaves."""
    return _util.tree_structure(tree)


def map_leaves(fun: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `fun` applied to each leaf."""
    return _util.tree_map(fun, tree)


def map_with_path(fun: Callable[[Path, Any], Any], tree: Any) -> Any:
    """The tree with `fun` applied to each key path and leaf."""
    return _util.tree_map_with_path(fun, tree)


def flat_jaxpr(
    fun: Callable[..., Any], args: Sequence[Any], static: Collection[int]
) -> tuple[Any, list[Any], Any]:
    """A function of trees as a closed jaxpr of their leaves.

    Args:
        static: positions of arguments that are Python values.

    Returns:
        The jaxpr, the leaves of the other arguments, and the structure of the results.
    """
    dynamic, tree = flatten(tuple(arg for i, arg in enumerate(args) if i not in static))
    found: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        rest = iter(unflatten(tree, values))
        full = [arg if i in static else next(rest) for i, arg in enumerate(args)]
        results, result_tree = flatten(fun(*full))
        found.append(result_tree)
        return results

    closed = _jax.make_jaxpr(flat)(*dynamic)
    return closed, dynamic, found[0]


def broadcast(prefix: Any, structure: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The prefix's leaf for each leaf of the structure.

    Raises:
        ValueError: the prefix is no beginning of such a tree.
    """
    full = _util.tree_unflatten(structure, range(structure.num_leaves))
    return _util.tree_leaves(_jax.tree.broadcast(prefix, full, is_leaf=is_leaf), is_leaf=is_leaf)


def text(path: Path) -> str:
    """A key path as code, such as `.params['h0']['kernel']`."""
    return _util.keystr(path)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a JAX array or a tracer."""
    return isinstance(leaf, jax.Array)
