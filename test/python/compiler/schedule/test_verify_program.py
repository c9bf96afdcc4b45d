"""A step's programs with one instruction changed: rejected, or they compute the same."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import symbolic
import zoo
from alpa_mlir.compiler import Module
from alpa_mlir.errors import AlpaError
from test_split_backward import sliced_step

MUTANTS = 60
_FUNCTION = re.compile(r"^    func\.func (@\w+\(.*\)) (?:-> (.*) )?\{$")


def _without_bodies(text: str) -> str:
    """The same module with functions declared only, which is all that programs need."""
    lines: list[str] = []
    skips = False
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            results = f" -> {found[2]}" if found[2] else ""
            lines.append(f"    func.func private {re.sub(r'%arg[0-9]+: ', '', found[1])}{results}")
            skips = True
        elif not skips:
            lines.append(line)
        elif line == "    }":
            skips = False
    return "\n".join(lines) + "\n"


def _mutant(lines: list[str], rng: random.Random) -> tuple[str, list[str]]:
    """One instruction dropped, doubled, moved by one, or given another operand, tag or number."""
    places = [i for i, line in enumerate(lines) if re.match(r" +(%\S+ = )?alpa\.(?!program)", line)]
    i = rng.choice(places)
    line = lines[i]
    kind = rng.choice(["drop", "double", "swap", "operand", "number"])
    new: list[str] = [line]
    if kind == "drop":
        new = []
    elif kind == "double":
        new = [line, line]
    elif kind == "swap" and i + 1 in places:
        return kind, [*lines[:i], lines[i + 1], line, *lines[i + 2 :]]
    elif kind == "operand":
        # What another instruction of the kind has there is of the right type.
        like = re.sub(r"^ *(%\S+ = )?(alpa\.\w+( @\w+::@\w+)?).*", r"\2", line)
        others = [lines[j] for j in places if like in lines[j]]
        head, tail = line.partition(like)[0] + like, line.partition(like)[2]
        names = list(re.finditer(r"%\w+(#\d+)?", tail))
        other = re.findall(r"%\w+(?:#\d+)?", rng.choice(others).partition(like)[2])
        if names and len(other) == len(names):
            n = rng.randrange(len(names))
            new = [head + tail[: names[n].start()] + other[n] + tail[names[n].end() :]]
    elif kind == "number":
        numbers = list(re.finditer(r"(?<=tag )\d+|(?<=micro_batch = )\d+|(?<=arg = )\d+", line))
        if numbers:
            found = rng.choice(numbers)
            new = [line[: found.start()] + str(rng.randrange(4)) + line[found.end() :]]
    return kind, [*lines[:i], *new, *lines[i + 1 :]]


@pytest.mark.parametrize("split", [False, True])
def test_one_change(split: bool, tmp_path: Path) -> None:
    module = sliced_step(zoo.get("gpt"), tmp_path)
    if split:
        module.run("alpa-split-backward{always=true}")
    module.run("alpa-insert-reshards,alpa-build-schedule{schedule=1f1b},alpa-verify-program")
    text = _without_bodies(module.as_text())
    Module(text).run("alpa-verify-program")
    expected = symbolic.results_of(text)
    lines = text.splitlines()
    rng = random.Random(split)
    rejected = accepted = 0
    for _ in range(MUTANTS):
        kind, changed = _mutant(lines, rng)
        if changed == lines:
            continue
        try:
            Module("\n".join(changed)).run("alpa-verify-program")
        except AlpaError:
            rejected += 1
            continue
        accepted += 1
        assert symbolic.results_of("\n".join(changed)) == expected, kind
    assert rejected > MUTANTS / 4
    assert accepted > 0
