"""Submeshes as methods name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from alpa_mlir.errors import MethodError

#: Hosts, devices of each host, and the hosts' device type where it matters.
SubmeshLike = tuple[int, int] | tuple[int, int, str]


def submeshes_text(submeshes: Sequence[SubmeshLike], where: str) -> str:
    """As the option of `alpa-search-stages` reads them; names of device types may hold blanks.

    Args:
        where: the method, for messages.

    Raises:
        MethodError: one is no submesh, or its device type cannot be written down.

    Example:
        >>> submeshes_text([(1, 2), (1, 8, "a100")], "PipeshardParallel")
        '1x2,1x8@a100'
    """
    text = ",".join(_text(submesh, where) for submesh in submeshes)
    return f"{{{text}}}" if re.search(r"\s", text) else text


def _text(submesh: SubmeshLike, where: str) -> str:
    given: Any = submesh
    parts = list(cast("Sequence[Any]", given)) if isinstance(given, Sequence) else []
    if (
        len(parts) not in (2, 3)
        or not all(isinstance(size, int) and size >= 1 for size in parts[:2])
        or not all(isinstance(name, str) for name in parts[2:])
    ):
        raise MethodError(
            f"submesh {given!r}",
            where=where,
            fix="use (hosts, devices), or (hosts, devices, device type)",
        )
    text = f"{parts[0]}x{parts[1]}"
    if not parts[2:] or not parts[2]:
        return text
    if re.search(r"""[,{}'"]""", parts[2]):
        raise MethodError(
            f"device type {parts[2]!r}",
            where=where,
            fix="give the type a name without commas, braces and quotes in the cluster's file",
        )
    return f"{text}@{parts[2]}"
