"""Arguments of another type than a public function takes, named where it is called.

Annotations are the one place that says which types there are. What they leave open (`Any`, names
that only type checkers import) is not looked at, nor are values: functions say themselves what is
wrong with those.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from alpa_runtime.errors import AlpaError, ArgumentTypeError

_WORDS = {
    "str": "a string",
    "Path": "a path",
    "PathLike": "a path",
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "Callable": "a function",
    "Plan": "a Plan",
    "Hosts": "workers such as ProcessWorkers()",
    "LoadedStep": "a loaded step",
    "ParallelStep": "a loaded step",
    "Step": "a loaded step",
    "ClusterLike": "a Cluster, the name of a preset, a file or a dictionary",
    "CacheLike": "True, False or a folder",
    "Progress": "a function",
    "Batches": "a list of batches or a function of a number",
}
_F = TypeVar("_F", bound=Callable[..., Any])


def checks_types(function: _F) -> _F:
    """A decorator: arguments of other types than those of the annotations are an error.

    Of a class it is the arguments of its constructor; what that finds itself comes first.

    Raises:
        ArgumentTypeError: when the function is called; names the argument, what it is, and what
            is wanted.

    Example:
        >>> @checks_types
        ... def half(number: float) -> float:
        ...     return number / 2
        >>> half("3")
        Traceback (most recent call last):
        alpa_runtime.errors.ArgumentTypeError: half: number='3' is a str; fix: give a number
    """
    made: Any = function
    if isinstance(made, type):
        made.__init__ = _checked(made.__init__, made.__name__, is_constructor=True)
        return function
    name = made.__qualname__.removesuffix(".__init__")
    return _checked(made, name, is_constructor=False)


def _checked(function: Any, name: str, is_constructor: bool) -> Any:
    form = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        return {
            argument: _evaluated(parameter.annotation, function.__globals__)
            for argument, parameter in form.parameters.items()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }

    def check(args: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            given = form.bind(*args, **named).arguments
        except TypeError:
            return  # Python says itself what is missing, or too much.
        for argument, hint in hints().items():
            if argument in given and not fits(given[argument], hint):
                text = str(form.parameters[argument].annotation)
                raise _error(given[argument], argument, text, name)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not is_constructor:
            check(args, named)
            return function(*args, **named)
        try:
            function(*args, **named)
        except AlpaError:
            raise
        except Exception:
            check(args, named)
            raise
        check(args, named)
        return None

    return call


def check_type(value: Any, hint: Any, what: str, where: str) -> None:
    """Refuse what a function of the user gave.

    Raises:
        ArgumentTypeError: it is of another type.
    """
    if not fits(value, hint):
        raise _error(value, what, getattr(hint, "__name__", str(hint)), where)


def _error(value: Any, what: str, wanted: str, where: str) -> ArgumentTypeError:
    row: list[Any] = [*value] if type(value) in (list, tuple) else [value]
    # Nothing that would fetch or print much.
    is_short = len(row) < 5 and all(isinstance(x, str | bytes | int | float) for x in row)
    text = shown if is_short and len(shown := repr(value)) <= 40 else ""
    if isinstance(value, type):
        return ArgumentTypeError(
            f"{what} is the class {value.__name__} itself",
            where=where,
            fix=f"call it: {value.__name__}(..)",
        )
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIO" else "a"
    is_what = f"{what} is None" if value is None else f"{what}={text} is {article} {kind}"
    if not text and value is not None:
        is_what = f"{what} is {article} {kind}"
    return ArgumentTypeError(is_what, where=where, fix=f"give {_in_words(wanted)}")


def _in_words(annotation: str) -> str:
    """An annotation as a person would say it.

    Example:
        >>> _in_words("str | Path | None"), _in_words("Callable[[int], Any]")
        ('a string or a path or None', 'a function')
    """
    words: list[str] = []
    for kind in re.split(r" \| (?![^[]*\])", annotation):
        name = kind.removeprefix("os.").partition("[")[0]
        words.append(_WORDS.get(name, kind))
    return " or ".join(words)


def _evaluated(annotation: Any, names: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        return eval(annotation, dict(names))
    except NameError:  # Imported for type checkers only.
        return Any


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that an annotation says, as far as that can be told cheaply.

    Example:
        >>> fits(3, int | None), fits("3", int | None), fits([(1, 2)], list[tuple[int, ...]])
        (True, False, True)
    """
    origin: Any = get_origin(hint)
    args: tuple[Any, ...] = get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin is Literal:  # Which of them, the function says itself.
        return any(type(value) is type(arg) for arg in args)
    kind: Any = origin or hint
    if not isinstance(kind, type) or kind is object:
        return True
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain(value)
    if getattr(kind, "_is_protocol", False):
        return not isinstance(value, type) and all(_has(value, name) for name in _members(kind))
    if issubclass(kind, Iterable) and not issubclass(kind, Mapping) and args:
        return _is_row_of(value, kind, args)
    return isinstance(value, kind)


def _is_row_of(value: Any, kind: Any, args: tuple[Any, ...]) -> bool:
    """Rows of any kind are as good as tuples and lists; elements are looked at where that uses
    nothing up."""
    is_row = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    if not is_row or isinstance(value, str | bytes):
        return False
    if not isinstance(value, list | tuple):
        return True
    items = cast("Iterable[Any]", value)
    is_mixed = kind is tuple and Ellipsis not in args
    return is_mixed or all(fits(item, args[0]) for item in items)


def _members(protocol: type) -> set[str]:
    """The names that a protocol asks for."""
    found: set[str] = set()
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False) and base.__module__ != "typing":
            names = {*vars(base), *getattr(base, "__annotations__", {})}
            found |= {name for name in names if not name.startswith("_") or name == "__call__"}
    return found


def _has(value: Any, name: str) -> bool:
    # Properties of the class are not read: that may take long.
    return hasattr(cast("Any", type(value)), name) or hasattr(value, name)


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") or _is_whole(value)


def _is_truth(value: Any) -> bool:
    is_one = isinstance(value, int) and value in (0, 1)
    return is_one or type(value).__name__ in ("bool", "bool_")  # NumPy's


# Numbers of NumPy and JAX are as good as Python's, and paths of any kind as good as pathlib's.
_PLAIN: dict[type, Callable[[Any], bool]] = {
    cast("type", Callable): callable,
    bool: _is_truth,
    int: _is_whole,
    float: _is_number,
    Path: lambda value: isinstance(value, os.PathLike),
}
