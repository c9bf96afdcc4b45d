"""Random damage to files of JSON, and a limit on what is done with them."""

from __future__ import annotations

import copy
import json
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NUMBERS = [-1, 0, 1, 2, 3, 7, 0.5, -0.0, 1e-320, 1e308, 1e999, -1e999, float("nan"), 2**31, 2**63]
NUMBERS += [10**18, 10**400]
OTHERS: list[Any] = [None, True, "", "x", "S9", [], {}, [[]], [0], {"": 0}, "0-99999999", "a\ud800"]


def some_place(rng: random.Random, value: Any) -> tuple[Any, Any]:
    """Any place, in a way that reaches those that are rare."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.15:
            return value, key
        value = inner


def change_line(rng: random.Random, line: str) -> str:
    """Another number, word or letter in an instruction or a tensor."""
    found = list(re.finditer(r"\d+", line))
    if found and rng.random() < 0.7:
        match = rng.choice(found)
        other = str(rng.choice([0, 1, 2, 5, 97, 10**18, "9" * 5000, "0-9", "3-2", "0-9999999"]))
        return line[: match.start()] + other + line[match.end() :]
    at = rng.randrange(len(line) + 1)
    return line[:at] + rng.choice(["", "x", " ", "-", "[", "]", ",", "\x00"]) + line[at + 1 :]


def deep(levels: int) -> Any:
    value: Any = 0
    for number in range(levels):
        value = [value] if number % 2 else {"tuple": value}
    return value


def damage_value(rng: random.Random, value: Any) -> None:
    """One change in place."""
    container, key = some_place(rng, value)
    old = container[key]
    match rng.randrange(7):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(key, copy.deepcopy(rng.choice(container)))
        case 2 if isinstance(container, list):
            other = rng.randrange(len(container))
            container[key], container[other] = container[other], container[key]
        case 3:
            container[key] = deep(rng.choice([3, 60, 150, 400]))
        case 4 | 5 if isinstance(old, str) and old:
            container[key] = change_line(rng, old)
        case 4 | 5 if isinstance(old, int | float):
            container[key] = rng.choice([*NUMBERS, old + 1, old - 1, old * 2])
        case _:
            container[key] = copy.deepcopy(rng.choice([*NUMBERS, *OTHERS]))


def damage_text(rng: random.Random, text: str) -> str:
    at, length = rng.randrange(len(text)), rng.choice([1, 1, 3, 40])
    match rng.randrange(5):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + text[at + length :]
        case 2:
            return text[:at] + rng.choice(
                ["[" * 100_000, "9" * 5000, "NaN", "\x00", "\\ud800", "é"]
            )
        case 3:
            return (
                text[:at] + rng.choice(["NaN", "-", "1e999", ",", "]", "}", '"']) + text[at + 1 :]
            )
        case _:
            return text[:at] + text[at : at + length] + text[at:]


def damage_json(rng: random.Random, text: str) -> bytes:
    """A file's text with a few changes of its values, or of its letters."""
    if rng.random() < 0.15:
        text = damage_text(rng, text)
    else:
        value = json.loads(text)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            if value:  # Else all of it is gone.
                damage_value(rng, value)
        text = json.dumps(value)
    return text.encode(errors="surrogatepass")


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises a TimeoutError where something takes longer."""

    def over(*_: object) -> None:
        raise TimeoutError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
