"""Walk the ops of a lowered module through JAX's own bindings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TAG = re.compile(r"alpa_eqn_(\d+)")
_STRUCTURE = ("func.return", "stablehlo.return")


def main_ops(lowered: Any) -> Iterator[Any]:
    """Every op inside `@main`, nested ones too, without terminators."""
    for function in lowered.compiler_ir("stablehlo").operation.regions[0].blocks[0].operations:
        if function.operation.name != "func.func":
            continue
        if function.attributes["sym_name"].value == "main":
            yield from _inside(function.operation)


def _inside(op: Any) -> Iterator[Any]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name not in _STRUCTURE:
                    yield inner.operation
                yield from _inside(inner.operation)


def tag_of(text: str) -> int | None:
    """The first equation number in a location, if it has one."""
    found = _TAG.search(text)
    return int(found.group(1)) if found else None
