"""Programs of all meshes, run on symbols: what the results are made of, not what they are.

A run makes new symbols of its function and operands, sums are multisets. Two modules whose
results are equal symbols compute the same numbers, up to the order of additions.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_PROGRAM = re.compile(r"^  alpa\.program @\w+ on (\d+)(?: attributes \{.*\})? \{$")
_NAMES = re.compile(r"%\w+(?:#\d+)?")
Symbol = tuple[Any, ...]


class StuckError(Exception):
    """A program waits for something that never comes."""


def programs_of(text: str) -> dict[int, list[str]]:
    """The instruction lines of each mesh, in a module as it is printed."""
    programs: dict[int, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if found := _PROGRAM.match(line):
            lines = programs.setdefault(int(found[1]), [])
        elif line == "  }":
            lines = None
        elif lines is not None:
            lines.append(line.strip())
    return programs


def _number(line: str, name: str) -> int | None:
    found = re.search(rf"\b{name} = (\d+)", line)
    return int(found[1]) if found else None


def _sum(symbols: list[Symbol]) -> Symbol:
    """A multiset of symbols that are no sums."""
    terms: Counter[Symbol] = Counter()
    for symbol in symbols:
        terms.update(dict(symbol[1]) if symbol[0] == "sum" else {symbol: 1})
    if sum(terms.values()) == 1:
        return next(iter(terms))
    return ("sum", frozenset(terms.items()))


def results_of(text: str) -> dict[tuple[int, int | None], Symbol]:
    """What each result of the step, and each part of one, is made of.

    Raises:
        StuckError: the programs do not come to their end.
    """
    programs = programs_of(text)
    at = dict.fromkeys(programs, 0)
    known: dict[int, dict[str, Symbol]] = {mesh: {} for mesh in programs}
    sent: dict[int, Symbol] = {}
    results: dict[tuple[int, int | None], Symbol] = {}

    def step(mesh: int, line: str) -> bool:
        values = known[mesh]
        left, _, right = line.partition(" = alpa.")
        name = (right or line.removeprefix("alpa.")).split(" ")[0]
        body = (right or line).partition(" : ")[0] if name != "input" else right
        operands = [values[n] for n in _NAMES.findall(right or line) if n in values]
        made: list[Symbol] = []
        if name == "input":
            made = [("input", _number(body, "arg"), _number(body, "micro_batch"))]
        elif name == "run":
            callee = re.search(r"@[\w:@]+", body)
            assert callee
            count = int(left.partition(":")[2] or 1)
            # Not the whole tree of symbols, which grows with every use, but a number for it.
            made = [("run", callee[0], i, _interned(tuple(operands))) for i in range(count)]
        elif name == "send":
            sent[int(re.search(r" tag (\d+)", line)[1])] = operands[0]
        elif name == "recv":
            tag = int(re.search(r" tag (\d+)", line)[1])
            if tag not in sent:
                return False
            made = [sent[tag]]
        elif name == "accumulate":
            made = [_sum(operands)]
        elif name == "reshard":
            made = operands
        elif name == "output":
            results[_number(line, "result"), _number(line, "micro_batch")] = operands[0]
        else:
            assert name == "free", line
        names = (
            [left] if len(made) == 1 else [f"{left.split(':')[0]}#{i}" for i in range(len(made))]
        )
        values.update(zip(names, made, strict=True))
        return True

    moved = True
    while moved:
        moved = False
        for mesh, lines in programs.items():
            while at[mesh] < len(lines) and step(mesh, lines[at[mesh]]):
                at[mesh] += 1
                moved = True
    if any(at[mesh] < len(lines) for mesh, lines in programs.items()):
        raise StuckError
    return results


_numbers: dict[Any, int] = {}


def _interned(operands: tuple[Symbol, ...]) -> int:
    return _numbers.setdefault(operands, len(_numbers))
