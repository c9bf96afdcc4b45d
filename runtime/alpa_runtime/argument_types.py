"""Arguments of another type than a public function takes, named where it is called.

Functions ask for what would otherwise end in an error that names something else, or come out only
after much work. Other wrong values they find themselves.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from alpa_runtime.errors import ArgumentTypeError


@dataclass(frozen=True)
class Kind:
    """What an argument may be: as errors say it, and whether a value is one."""

    words: str
    fits: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    is_one = isinstance(value, int) and value in (0, 1)
    return is_one or type(value).__name__ in ("bool", "bool_")  # NumPy's


def _is_row(value: Any) -> bool:
    is_row = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    return is_row and not isinstance(value, str | bytes | type)


# Numbers and flags of NumPy and JAX are as good as Python's, and rows of any kind as lists.
WHOLE = Kind("a whole number", _is_whole)
NUMBER = Kind("a number", lambda value: hasattr(value, "__float__") or _is_whole(value))
FLAG = Kind("True or False", _is_flag)
TEXT = Kind("a string", lambda value: isinstance(value, str))
PATH = Kind("a string or a path", lambda value: isinstance(value, str | os.PathLike))
FUNCTION = Kind("a function", callable)
ROW = Kind("a list", _is_row)
ROWS = Kind("a list of lists", lambda value: _is_row(value) and all(map(_is_row, value)))


def check_type(where: str, name: str, value: Any, *kinds: Kind | type | None) -> None:
    """Refuse an argument that is of none of these kinds.

    Args:
        where: the function, as users call it.
        name: of the argument.
        kinds: a class stands for its instances.

    Raises:
        ArgumentTypeError: names the argument, what it is, and what is wanted.

    Example:
        >>> check_type("half", "number", "3", NUMBER, None)
        Traceback (most recent call last):
        alpa_runtime.errors.ArgumentTypeError: half: number='3' is a str; fix: give a number or None
    """
    words: list[str] = []
    for kind in kinds:
        if isinstance(kind, Kind):
            if kind.fits(value):
                return
            words.append(kind.words)
        elif value is None if kind is None else isinstance(value, kind):
            return
        else:
            words.append("None" if kind is None else _with_article(kind.__name__))
    fix = f"give {' or '.join(words)}"
    if isinstance(value, type):
        found = f"{name} is the class {value.__name__} itself"
        fix = f"call it: {value.__name__}(..)"
    elif value is None:
        found = f"{name} is None"
    else:
        found = f"{name}{_shown(value)} is {_with_article(type(value).__name__)}"
    raise ArgumentTypeError(found, where=where, fix=fix)


def _shown(value: Any) -> str:
    """A short value itself; nothing that would fetch or print much."""
    items: list[Any] = [*value] if type(value) in (list, tuple) else [value]
    if len(items) > 4 or not all(isinstance(x, str | bytes | int | float) for x in items):
        return ""
    text = repr(value)
    return f"={text}" if len(text) <= 40 else ""


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
