"""Text of what plans hold: shardings, ranges, seconds, bytes, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def spec_text(spec: Sequence[Sequence[str]]) -> str:
    """Short form of a spec: `[x, R]`, `R` for a dimension that is not split."""
    return "[" + ", ".join("".join(axes) if axes else "R" for axes in spec) + "]"


def ranges_text(numbers: tuple[int, ...]) -> str:
    """`0-3`, or `0, 2, 5` when the numbers are not one run."""
    if len(numbers) > 1 and numbers == tuple(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def seconds_text(seconds: float) -> str:
    """`1.25 ms`: three figures and the unit that suits them."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def bytes_text(count: float) -> str:
    """`1.5 MiB`: three figures and the unit that suits them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells in columns, rows apart by rules; a cell may have several lines."""
    cells = [[cell.split("\n") for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[c]) for c in range(len(header))]
    rule = "-+-".join("-" * width for width in widths)
    lines: list[str] = []
    for row in cells:
        for i in range(max(map(len, row))):
            parts = [col[i] if i < len(col) else "" for col in row]
            line = " | ".join(p.ljust(w) for p, w in zip(parts, widths, strict=True))
            lines.append(line.rstrip())
        lines.append(rule)
    return "\n".join(lines)


_LOCATION = re.compile(r' loc\((?:"(?:[^"\\]|\\.)*"|[^()"]|\([^()]*\))*\)')


def without_locations(text: str) -> str:
    """A module's text without where its ops come from: moved lines do not make another step.

    Example:
        >>> without_locations('%0 = "a"() : () -> i1 loc("sum:"(#loc3))\\n#loc3 = loc("f.py":1:2)')
        '%0 = "a"() : () -> i1'
    """
    text = re.sub(r" loc\(#loc\d*\)", "", text)  # Nearly all of them; the rest takes longer.
    return _LOCATION.sub("", re.sub(r"^#loc.*\n?", "", text, flags=re.M)).rstrip()
