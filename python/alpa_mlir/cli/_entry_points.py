"""Entry points: a function, in a module or a file, that gives a step and its example arguments.

    def entry(*, layers: int = 4, batch: int = 32):
        ...
        return step, (state, first_batch)            # or with batches to run: step, (..), batches

`step` is a function of JAX, or one that `parallelize` made, whose cluster, method and options are
then the defaults. Arguments are arrays or `jax.ShapeDtypeStruct`s. `batches` gives the last
argument of each step, or the tuple of those that are batches.

Example:
    >>> entry = load_entry("train.py:entry", {"layers": "8"})        # doctest: +SKIP
    >>> entry.function.plan(*entry.arguments)                         # doctest: +SKIP
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from alpa_mlir.api import ParallelFunction, parallelize
from alpa_mlir.errors import EntryPointError

DEFAULT_NAME = "entry"
_RETURNS = "let it return (step, arguments) or (step, arguments, batches)"


@dataclass(frozen=True)
class EntryPoint:
    """What an entry point gave.

    Attributes:
        name: as it was asked for.
        function: the step, with the options that it came with.
        arguments: examples of the step's arguments, batches at full size.
        batches: the batch of each step, or None.
    """

    name: str
    function: ParallelFunction = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    batches: Iterable[Any] | None = field(default=None, repr=False)
    _again: Callable[[], Any] | None = field(default=None, repr=False)
    _begun: list[None] = field(default_factory=list[None], repr=False)

    def fresh_batches(self) -> Iterable[Any]:
        """The batches from the first on; an iterator that was begun is made anew."""
        batches = self.batches
        if batches is None:
            return ()
        if self._again is None or iter(batches) is not batches:
            return batches
        if not self._begun:
            self._begun.append(None)
            return batches
        return _checked(self.name, self._again()).batches or ()


def load_entry(where: str, settings: Mapping[str, str] | None = None) -> EntryPoint:
    """Import a module or a file, and call its entry point.

    Args:
        where: `module:function` or `path/file.py:function`; without a function `entry`.
        settings: keyword arguments as text. Python's literals are read as such, other text is
            text, if that is what the parameter's default is too.

    Raises:
        EntryPointError: there is no such module, file, function or parameter, or it gives
            something else.
        Exception: whatever the module or the function raises.
    """
    place, _, name = where.rpartition(":") if ":" in where else (where, "", DEFAULT_NAME)
    module = _from_file(place) if place.endswith(".py") else _from_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        names = [n for n, f in vars(module).items() if inspect.isfunction(f) and n[0] != "_"]
        near = difflib.get_close_matches(name, names, 1) or names[:5]
        known = f"its functions are {', '.join(near)}" if near else "it has no functions"
        raise EntryPointError(f"no function {name!r}", where=place, fix=f"{known}")
    arguments = _settings(where, function, settings or {})
    again = functools.partial(function, **arguments)
    return replace(_checked(where, again()), _again=again)


def _from_file(name: str) -> ModuleType:
    path = Path(name)
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise EntryPointError(what, where=name, fix="give path/file.py:function")
    _findable(path.absolute().parent)
    # Another module of that name may be there already, such as a file of another folder.
    stem = path.stem if path.stem not in sys.modules else f"_entry_{path.stem}"
    spec = importlib.util.spec_from_file_location(stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[stem]
        raise _syntax(error) from None
    except BaseException:
        del sys.modules[stem]
        raise
    return module


def _from_module(name: str) -> ModuleType:
    _findable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # Something that the module itself imports.
        raise EntryPointError(
            f"no module named {missing!r}",
            where=name,
            fix="start in the folder that holds it, set PYTHONPATH, or give path/file.py:function",
        ) from None
    except SyntaxError as error:
        raise _syntax(error) from None
    except (ValueError, TypeError) as error:
        if not name or name.startswith("."):
            raise EntryPointError(
                f"{name!r} is no module", where=name, fix="give module:function"
            ) from None
        raise error


def _findable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _syntax(error: SyntaxError) -> EntryPointError:
    return EntryPointError(
        f"cannot be read as Python: {error.msg}", where=f"{error.filename}:{error.lineno}"
    )


def _settings(
    where: str, function: Callable[..., Any], settings: Mapping[str, str]
) -> dict[str, Any]:
    """The keyword arguments of an entry point."""
    parameters = inspect.signature(function).parameters
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {n: p for n, p in parameters.items() if p.kind not in kinds}
    for name, parameter in named.items():
        is_positional = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if is_positional or (parameter.default is parameter.empty and name not in settings):
            raise EntryPointError(
                f"parameter {name!r} has no default"
                if not is_positional
                else f"{name!r} has no name for callers",
                where=where,
                fix=f"give it a default, or --set {name}=VALUE"
                if not is_positional
                else "make it a keyword parameter",
            )
    result: dict[str, Any] = {}
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name, text in settings.items():
        if name not in named and not takes_all:
            near = difflib.get_close_matches(name, named, 1) or list(named)
            known = f"it takes {', '.join(near)}" if near else "it takes none"
            raise EntryPointError(f"no parameter {name!r}", where=where, fix=known)
        default = named[name].default if name in named else None
        result[name] = _value(where, name, text, default)
    return result


def _value(where: str, name: str, text: str, default: Any) -> Any:
    """A setting as the parameter's default suggests it."""
    if isinstance(default, bool):
        word = text.lower()
        if word in ("true", "false", "1", "0"):
            return word in ("true", "1")
        raise EntryPointError(f"{name}={text!r}", where=where, fix="use true or false")
    if isinstance(default, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = text
    if isinstance(default, int | float):
        allowed = (int,) if isinstance(default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise EntryPointError(
                f"{name}={text!r}", where=where, fix=f"use {kind}, such as {default}"
            )
        return type(default)(value)
    return value


def _checked(where: str, given: Any) -> EntryPoint:
    def wrong(what: str, fix: str) -> EntryPointError:
        return EntryPointError(what, where=where, fix=fix)

    kind = type(given).__name__
    if not isinstance(given, tuple):
        raise wrong(f"it gives a {kind}", _RETURNS)
    parts = list(cast("tuple[Any, ...]", given))
    if not 2 <= len(parts) <= 3:
        raise wrong(f"it gives a tuple of {len(parts)}", _RETURNS)
    step, examples, batches = (*parts, None)[:3]
    arguments: Any = examples
    if not callable(step):
        raise wrong(f"the step is a {type(step).__name__}", "return a function first")
    if not isinstance(examples, tuple | list):
        raise wrong(
            f"the arguments are a {type(arguments).__name__}",
            "return the tuple of the step's example arguments second",
        )
    if batches is not None and not isinstance(batches, Iterable):
        raise wrong(
            f"the batches are a {type(batches).__name__}",
            "return the step's arguments as a tuple second, and batches to iterate over third",
        )
    function = step if isinstance(step, ParallelFunction) else parallelize(step)
    return EntryPoint(where, function, tuple(arguments), cast("Iterable[Any] | None", batches))
