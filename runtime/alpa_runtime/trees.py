"""Typed access to JAX's pytree functions, and structures of trees as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

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
    found: list[Any] = [None] * structure.num_leaves

    def spread(leaf: Any, below: Any) -> None:
        for number in _util.tree_leaves(below):
            found[number] = leaf

    _util.tree_map(spread, prefix, full, is_leaf=is_leaf)
    return found


def text(path: Path) -> str:
    """A key path as code, such as `.params['h0']['kernel']`."""
    return _util.keystr(path)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a JAX array or a tracer."""
    return isinstance(leaf, jax.Array)


_registry: Any = _jax.tree_util.default_registry
_make: Callable[[Any, tuple[type, Any] | None, list[Any]], Any] = (
    _jax.tree_util.PyTreeDef.from_node_data_and_children
)


class UnknownTreeError(ValueError):
    """A structure holds a class that cannot be found, or keeps more than a plan can store."""


def encode(structure: Any) -> Any:
    """JSON values for a structure.

    Example:
        >>> encode(jax.tree.structure({"a": 1, "b": (2, None)}))
        {'dict': {'a': '*', 'b': {'tuple': ['*', None]}}}
    """
    data: tuple[Any, Any] | None = structure.node_data()
    if data is None:
        return "*"
    kind, aux = data
    children = [encode(child) for child in structure.children()]
    if kind is type(None):
        return None
    if kind is list:
        return children
    if kind is tuple:
        return {"tuple": children}
    if kind is dict:
        if all(isinstance(key, str) for key in aux):
            return {"dict": dict(zip(aux, children, strict=True))}
        if all(_is_plain(key) for key in aux):
            return {"items": [[_plain(k), c] for k, c in zip(aux, children, strict=True)]}
    node: dict[str, Any] = {"class": class_name(kind), "children": children}
    if _is_plain(aux):
        node["aux"] = _plain(aux)
    return node


def leaf_counts(value: Any) -> list[int]:
    """How many leaves each child of an encoded structure has, whose classes need not be known.

    Example:
        >>> leaf_counts({"tuple": [{"dict": {"a": "*", "b": ["*", None]}}, "*", None]})
        [2, 1, 0]
    """
    if value == "*":
        return []
    children: list[Any] = []
    if isinstance(value, list):
        children = _list(value)
    elif value is not None:
        node = _object(value)
        if "dict" in node:
            children = list(_object(node["dict"]).values())
        elif "items" in node:
            children = [_list(pair)[1] for pair in _list(node["items"])]
        else:
            children = _list(node.get("tuple", node.get("children")))
    return [1 if child == "*" else sum(leaf_counts(child)) for child in children]


def decode(value: Any, examples: Iterable[Any] = ()) -> Any:
    """The structure that `encode` was given.

    Args:
        examples: structures in which classes are looked up that a plan cannot store.

    Raises:
        UnknownTreeError: a class is neither imported nor in the examples.
        ValueError: the value is no structure.
    """
    known: list[Any] = []
    pending = list(examples)
    while pending:
        structure = pending.pop()
        known.append(structure)
        pending.extend(structure.children())
    return _decode(value, known)


def _decode(value: Any, known: list[Any]) -> Any:
    def all_of(values: Any) -> list[Any]:
        return [_decode(child, known) for child in _list(values)]

    if value == "*":
        return _make(_registry, None, [])
    if value is None:
        return _make(_registry, (type(None), None), [])
    if isinstance(value, list):
        return _make(_registry, (list, None), all_of(value))
    node = _object(value)
    if "tuple" in node:
        return _make(_registry, (tuple, None), all_of(node["tuple"]))
    if "dict" in node:
        fields = _object(node["dict"])
        names = sorted(fields)
        return _make(_registry, (dict, names), all_of([fields[name] for name in names]))
    if "items" in node:
        pairs = [_list(pair) for pair in _list(node["items"])]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("got items that are no pairs")
        keys = [_unplain(key) for key, _ in pairs]
        return _make(_registry, (dict, keys), all_of([child for _, child in pairs]))
    if "class" in node and "children" in node:
        return _decode_class(str(node["class"]), all_of(node["children"]), node, known)
    raise ValueError(f"got an object with {', '.join(node)}, expected a container")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"got {value!r}, expected a list")
    return cast("list[Any]", value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"got {value!r}, expected '*', null, a list or an object")
    return cast("dict[str, Any]", value)


def _decode_class(name: str, children: list[Any], node: dict[str, Any], known: list[Any]) -> Any:
    for structure in known:
        data = structure.node_data()
        if data and class_name(data[0]) == name and structure.children() == children:
            return structure
    found = _find_class(name)
    if "aux" not in node:
        raise UnknownTreeError(f"{name} keeps more than its arrays, which a plan cannot store")
    if found is None:
        raise UnknownTreeError(f"{name} is not imported")
    try:
        return _make(_registry, (found, _unplain(node["aux"])), children)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnknownTreeError(f"{name} is no container here: {error}") from None


def class_name(kind: type) -> str:
    """Module and name of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _find_class(name: str) -> type | None:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in cast("tuple[Any, ...]", value))
    return value is None or type(value) in (str, int, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"tuple": [_plain(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value


def _unplain(value: Any) -> Any:
    if isinstance(value, list):
        return [_unplain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return tuple(_unplain(item) for item in _list(_object(value).get("tuple")))
    return value
