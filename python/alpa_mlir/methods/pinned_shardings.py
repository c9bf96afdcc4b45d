"""Shardings of arguments that the user has decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alpa_runtime import trees
from jax.sharding import PartitionSpec

from alpa_mlir.errors import MethodError


def pinned_axes(
    in_shardings: Any, mesh_axes: Sequence[str], structure: Any
) -> list[list[list[int]] | None]:
    """Mesh axes of each dimension of each flattened argument; None where nothing is pinned.

    Args:
        in_shardings: a tree of `PartitionSpec`s over the arguments, or its beginning; None pins
            nothing.
        mesh_axes: names of the mesh's axes.
        structure: the tree of the tuple of dynamic arguments.

    Raises:
        MethodError: `in_shardings` is no beginning of that tree, or names an unknown axis.
    """
    if in_shardings is None:
        return [None] * structure.num_leaves
    try:
        specs = trees.broadcast(in_shardings, structure, _is_spec)
    except ValueError as error:
        raise MethodError(
            str(error), where="in_shardings", fix="follow the arguments' tree"
        ) from None
    return [None if spec is None else _axes_of(spec, mesh_axes) for spec in specs]


def _axes_of(spec: Any, mesh_axes: Sequence[str]) -> list[list[int]]:
    if not isinstance(spec, PartitionSpec):
        raise MethodError(
            f"{spec!r} is no sharding", where="in_shardings", fix="use PartitionSpec or None"
        )
    dims: list[list[int]] = []
    entries: tuple[Any, ...] = tuple(spec)
    for entry in entries:
        names = _axis_names(entry)
        unknown = [name for name in names if name not in mesh_axes]
        if unknown:
            raise MethodError(
                f"{spec} names the axis {unknown[0]!r}",
                where="in_shardings",
                fix=f"use axes of mesh_axes: {', '.join(mesh_axes)}",
            )
        dims.append([list(mesh_axes).index(name) for name in names])
    return dims


def _axis_names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, PartitionSpec)
