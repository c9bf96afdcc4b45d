"""Reads the shardings and types that explanations are written in.

`([S0, R], [R, S01]) -> [S0, S1] partial 0` beside `(8x64xf32, 64x64xf32) -> 8x64xf32`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from alpa_runtime.plan.element_types import numpy_name

from alpa_mlir.report.model import Operand, Spec

_TYPE = re.compile(r"((?:\d+x)*)([A-Za-z]\S*)")
_TENSOR = re.compile(r"\[([^\]]*)\](?: partial ([\d ]+))?")


def _parts(text: str) -> tuple[str, str]:
    """Operands and results of a text with an arrow; without one it is a result alone."""
    before, arrow, after = text.partition(" -> ")
    return (before.strip("()"), after) if arrow else ("", before)


def _types(text: str) -> list[tuple[tuple[int, ...], str] | None]:
    found: list[tuple[tuple[int, ...], str] | None] = []
    for part in text.split(", ") if text else []:
        match = _TYPE.fullmatch(part)
        if match is None:
            found.append(None)
            continue
        shape = tuple(int(size) for size in match[1].split("x") if size)
        found.append((shape, numpy_name(match[2]) or match[2]))
    return found


def _specs(text: str, axes: Sequence[str]) -> list[tuple[Spec, tuple[str, ...]]]:
    def named(numbers: str) -> tuple[str, ...]:
        return tuple(axes[int(n)] if int(n) < len(axes) else f"axis {n}" for n in numbers)

    found: list[tuple[Spec, tuple[str, ...]]] = []
    for match in _TENSOR.finditer(text):
        dims = [dim.strip() for dim in match[1].split(",")] if match[1] else []
        spec = tuple(named(dim.removeprefix("S")) if dim != "R" else () for dim in dims)
        found.append((spec, named("".join((match[2] or "").split()))))
    return found


def read_operands(
    chosen: str, types: str | None, reads: Sequence[str], axes: Sequence[str]
) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """Operands and results of an op.

    Args:
        chosen: their shardings.
        types: shapes and dtypes in the same form, or None if the plan does not say.
        reads: for each operand the argument that it is, or nothing.
        axes: names of the mesh's axes.

    Example:
        >>> read_operands("([S0, R]) -> [R, R] partial 0", "(8x4xf32) -> 8x4xf32", ["w"], "xy")[0]
        (Operand(name='w', shape=(8, 4), dtype='float32', spec=(('x',), ()), partial=()),)
    """
    sides: list[tuple[Operand, ...]] = []
    for side, text in enumerate(_parts(chosen)):
        specs = _specs(text, axes)
        known = _types(_parts(types)[side]) if types else []
        tensors: list[Operand] = []
        for number, (spec, partial) in enumerate(specs):
            form = known[number] if len(known) == len(specs) else None
            if form is not None and len(form[0]) != len(spec):
                form = None
            name = reads[number] if side == 0 and number < len(reads) else ""
            shape, dtype = form if form is not None else (None, None)
            tensors.append(Operand(name, shape, dtype, spec, partial))
        sides.append(tuple(tensors))
    return sides[0], sides[1]


_SCOPES = re.compile(r"(?:transpose\()?jvp\(\w+\)\)?|alpa_\w+|jit\(step\)")
_DIGITS = re.compile(r"\d+")


def short_where(where: str) -> str:
    """JAX's name without the scopes that the tracer adds.

    Example:
        >>> short_where("jit(step)/jvp(alpa_eqn_3)/jit(_block)/dot_general")
        'jit(_block)/dot_general'
    """
    parts = [part for part in where.split("/") if part and not _SCOPES.fullmatch(part)]
    return "/".join(parts) or where


def alike(name: str) -> str:
    """A name without its numbers: that of all layers.

    Example:
        >>> alike("state['layers'][12]['qkv']")
        "state['layers'][*]['qkv']"
    """
    return _DIGITS.sub("*", name)
