"""How a function is called: by position and by name, with Python values and objects of flax.nnx
among its arguments; as positional trees of arrays, which is what tracing and plans know."""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial, wraps
from types import MethodType
from typing import Any, Literal

import jax
from alpa_runtime import trees
from alpa_runtime.calling_convention import positional
from alpa_runtime.errors import ArgumentMismatchError
from alpa_runtime.jax_internals import ArrayImpl

from alpa_mlir.errors import MethodError, TraceError
from alpa_mlir.trace import objects
from alpa_mlir.trace.objects import ObjectForm
from alpa_mlir.trace.tracing import argument_names, known_positions, name_of

_jax: Any = jax
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def names_of(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Names of arguments, of which one may be given by itself."""
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True)
class Static:
    """A Python value that a step is made for; equal to one of the same type only."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        return bool(self.value is other.value or self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return getattr(self.value, "__name__", None) or repr(self.value)


@dataclass(frozen=True)
class Held:
    """A tree with Python values among its arrays: all but the arrays.

    Attributes:
        tree: of arrays and Python values.
        values: by number of a leaf.
    """

    tree: Any
    values: tuple[tuple[int, Static], ...]

    def filled(self, arrays: Any) -> Any:
        """The whole tree, of the one that has only the arrays."""
        known, rest = dict(self.values), iter(trees.leaves(arrays))
        leaves = [known[i].value if i in known else next(rest) for i in range(self.tree.num_leaves)]
        return trees.unflatten(self.tree, leaves)


def _held(
    leaves: Sequence[Any], tree: Any, is_held: Callable[[Any], bool]
) -> tuple[Held, Any] | None:
    """The Python values of a tree, and its arrays; None if there are no such values."""
    values = tuple((i, Static(x)) for i, x in enumerate(leaves) if is_held(x))
    if not values:
        return None
    numbers = {i for i, _ in values}
    arrays = trees.unflatten(tree, [None if i in numbers else x for i, x in enumerate(leaves)])
    return Held(tree, values), arrays


def _is_array(x: Any) -> bool:
    return hasattr(x, "dtype") and hasattr(x, "shape")


def _is_value(x: Any) -> bool:
    """Whether a leaf is neither an array nor a number that changes from call to call."""
    if type(x) is ArrayImpl:
        return False
    return not _is_array(x) and (isinstance(x, bool) or not isinstance(x, int | float | complex))


def _is_no_array(x: Any) -> bool:
    return not _is_array(x)


@cache
def _is_module_type(kind: Any) -> bool:
    classes: tuple[type, ...] = kind.__mro__
    return any(c.__name__ == "Module" and c.__module__.split(".")[0] == "equinox" for c in classes)


def _is_module(x: Any) -> bool:
    kind: Any = x.__class__
    return _is_module_type(kind)


def _untraced(argument: Any, leaves: Sequence[Any]) -> Callable[[Any], bool] | None:
    """Which leaves of a tree are Python values that are not to be traced: those that cannot be,
    and all numbers beside a module of equinox that has some. None if it has no such values."""
    if "equinox" in sys.modules and not all(map(_is_array, leaves)):
        modules = [x for _, x in trees.flatten_with_path(argument, _is_module)[0] if _is_module(x)]
        if any(map(_is_no_array, trees.leaves(modules))):
            return _is_no_array
    return _is_value if any(map(_is_value, leaves)) else None


# Their objects that compare by identity do not change: functions, kinds of arrays, meshes.
_UNCHANGING = {"builtins", "functools", "jax", "jaxlib", "numpy"}


def _may_change(x: Any) -> bool:
    """Whether a value that is compared by identity may not stay what it is."""
    kind: Any = x.__class__
    if kind is MethodType:
        owner: Any = x.__self__
        return owner.__class__.__hash__ is None or _may_change(owner)
    if kind.__hash__ is not object.__hash__ or isinstance(x, type):
        return False
    is_wrapped = "__wrapped__" in getattr(x, "__dict__", {})
    return not is_wrapped and kind.__module__.partition(".")[0] not in _UNCHANGING


@dataclass(frozen=True)
class _Returned:
    """Stands in a result for an object that the caller gave."""

    number: int


@dataclass(frozen=True)
class Call:
    """Arguments of one call.

    Attributes:
        names: of the parameters that are given, those by position first.
        by_position: how many of them.
        values: the arguments, in that order.
        static: numbers of those that are Python values.
        arrays: the arguments without Python values among their leaves, objects as states.
        held: those Python values, by number of the argument.
        slots: numbers of the arguments with objects of flax.nnx.
        form: of these objects; None without any.
    """

    names: tuple[str, ...]
    by_position: int
    values: tuple[Any, ...] = field(repr=False)
    static: tuple[int, ...]
    arrays: tuple[Any, ...] = field(repr=False)
    held: Mapping[int, Held]
    slots: tuple[int, ...]
    form: ObjectForm | None

    @property
    def python_values(self) -> Any:
        """All that a step is made for but the arrays."""
        static = tuple((i, Static(self.values[i])) for i in self.static)
        return self.names, static, tuple(self.held.items()), self.slots, self.form

    @property
    def key(self) -> tuple[Any, ...]:
        """Calls with equal keys run the same step."""
        flat = [
            None if i in self.static else _forms(x, name)
            for i, (x, name) in enumerate(zip(self.arrays, self.names, strict=True))
        ]
        return self.python_values, tuple(flat)

    def check_hashable(self) -> None:
        """Python values of a key have to be hashed.

        Raises:
            MethodError: one cannot be.
        """
        held = [(self.names[i], s) for i, h in self.held.items() for _, s in h.values]
        for name, found in (*[(self.names[i], Static(self.values[i])) for i in self.static], *held):
            try:
                hash(found)
            except TypeError:
                raise MethodError(
                    f"a static value of type {type(found.value).__name__} cannot be hashed",
                    where=name,
                    fix="give a value that can, such as a tuple or a frozen dataclass",
                ) from None

    def objects(self) -> tuple[Any, ...]:
        """The arguments with objects."""
        return tuple(self.values[i] for i in self.slots)


def _forms(argument: Any, name: str) -> tuple[Any, ...]:
    leaves, tree = trees.flatten(argument)
    try:
        return tree, tuple(map(_form, leaves))
    except OverflowError:
        for path, leaf in trees.flatten_with_path(argument)[0]:
            try:
                _form(leaf)
            except OverflowError:
                raise TraceError(
                    f"the number {leaf} has more than the 32 bits that JAX gives it",
                    where=name + trees.text(path),
                    fix="make it an array of another type, enable jax_enable_x64, or pass it in "
                    "an argument listed in static_argnums",
                ) from None
        raise


def _form(x: Any) -> tuple[Any, ...]:
    if type(x) is ArrayImpl:
        aval: Any = x.aval
        return aval.shape, aval.dtype, aval.weak_type
    if isinstance(x, _jax.Array) or not hasattr(x, "dtype"):
        if not isinstance(x, _jax.Array):
            try:
                x = _jax.typeof(x)
            except TypeError:  # Tracing will say which leaf that is.
                return (type(x).__name__,)
        return x.shape, x.dtype, getattr(x, "weak_type", False)
    dtype: Any = x.dtype
    if not _jax.dtypes.issubdtype(dtype, _jax.dtypes.extended):
        try:
            dtype = _jax.dtypes.canonicalize_dtype(dtype)
        except TypeError:
            return (type(x).__name__,)
    return tuple(x.shape), dtype, getattr(x, "weak_type", False)


def difference(new: tuple[Any, ...], old: tuple[Any, ...]) -> str:
    """What tells the key of a call from another one, in words."""
    (names, static, held, slots, form), leaves = new
    (old_names, old_static, old_held, old_slots, old_form), old_leaves = old
    if names != old_names:
        return f"arguments {', '.join(names)} instead of {', '.join(old_names)}"
    before = dict(old_static)
    for i, value in static:
        if before.get(i) != value:
            was = f", was {before[i]!r}" if i in before else ""
            return f"another static value of {names[i]}: {value!r}{was}"
    if (held, slots, form) != (old_held, old_slots, old_form):
        of = [names[i] for i, h in held if dict(old_held).get(i) != h] or [names[i] for i in slots]
        return f"another static field of {', '.join(of or names)}"
    for name, found, known in zip(names, leaves, old_leaves, strict=True):
        if found == known:
            continue
        if found is None or known is None:
            return f"{name} is an array in one of them"
        if found[0] != known[0]:
            paths = [
                [trees.text(path) for path, _ in trees.flatten_with_path(_numbered(tree))[0]]
                for tree in (found[0], known[0])
            ]
            what = "static field" if paths[0] == paths[1] else "tree"
            return f"another {what} of {name}"
        paths = trees.flatten_with_path(_numbered(found[0]))[0]
        for (path, _), x, y in zip(paths, found[1], known[1], strict=True):
            if x != y:
                return f"{name}{trees.text(path)} is {_text(x)}, was {_text(y)}"
    return "another session"


def _numbered(tree: Any) -> Any:
    return trees.unflatten(tree, range(tree.num_leaves))


def _text(form: tuple[Any, ...]) -> str:
    if len(form) == 1:
        return str(form[0])
    shape, dtype, is_weak = form
    return f"{'weak ' if is_weak else ''}{dtype}[{','.join(map(str, shape))}]"


class Reader:
    """Reads calls of a function.

    Args:
        static_argnums, static_argnames: as of `parallelize`.

    Raises:
        MethodError: the function has no argument of such a name.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        static_argnums: int | Sequence[int] | Literal["auto"],
        static_argnames: Sequence[str],
    ) -> None:
        self.name: str = name_of(fn)
        self._fn = fn
        self._static_argnums = static_argnums
        self._static_argnames = frozenset(static_argnames)
        self._signature: inspect.Signature | None = None
        with suppress(TypeError, ValueError):
            self._signature = inspect.signature(fn)
        self.check_names(static_argnames, "static_argnames")
        self.check_numbers(static_argnums, "static_argnums")

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """Of the function, as far as they are known."""
        return () if self._signature is None else tuple(self._signature.parameters.values())

    def check_names(self, names: Sequence[str], option: str) -> None:
        """Names of an option have to be those of arguments.

        Raises:
            MethodError: one is not.
        """
        known = [p.name for p in self.parameters]
        if not known or any(p.kind is p.VAR_KEYWORD for p in self.parameters):
            return
        for name in names:
            if name not in known:
                close = get_close_matches(name, known, 1)
                raise MethodError(
                    f"{self.name} has no argument {name!r}",
                    where=option,
                    fix=f"did you mean {close[0]!r}?" if close else f"use {', '.join(known)}",
                )

    def check_numbers(self, argnums: int | Sequence[int] | Literal["auto"], option: str) -> None:
        """Numbers of an option have to be those of arguments by position.

        Raises:
            MethodError: one is not.
        """
        if self._signature is None or isinstance(argnums, str):
            return
        if any(p.kind is p.VAR_POSITIONAL for p in self.parameters):
            return
        count = sum(p.kind in _BY_POSITION for p in self.parameters)
        for number in (argnums,) if isinstance(argnums, int) else argnums:
            if not -count <= number < count:
                raise MethodError(
                    f"argument {number} does not exist, {self.name} has {count} by position",
                    where=option,
                    fix=f"use {-count} to {count - 1}" if count else "leave it out",
                )

    def numbers(self, argnums: int | Sequence[int], call: Call) -> tuple[int, ...]:
        """Numbers of a call's arguments, of those that an option counts among the parameters."""
        return self._numbers(argnums, call.names)

    def _numbers(self, argnums: int | Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
        known = [p.name for p in self.parameters if p.kind in _BY_POSITION]
        given: tuple[int, ...] = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        found: list[int] = []
        for number in given:
            if 0 <= number < len(known) and tuple(names[: len(known)]) != tuple(known):
                # Some parameters before it may keep their defaults.
                found += [names.index(known[number])] if known[number] in names else []
            else:
                found.append(number)
        return tuple(found)

    def read(self, args: Sequence[Any], named: Mapping[str, Any]) -> Call:
        """One call.

        Raises:
            ArgumentMismatchError: the function takes no such arguments.
            MethodError: a Python value may change from call to call, unseen.
        """
        if self._signature is None:
            if named:
                positional((), args, named, self.name)
            names, values, count = argument_names(self._fn, len(args)), list(args), len(args)
        else:
            bound = self._bound(args, named)
            values, count = [*bound.args, *bound.kwargs.values()], len(bound.args)
            names = [*argument_names(self._fn, count), *bound.kwargs]
        static, is_named = self._static(names, values)
        arrays, held = list(values), dict[int, Held]()
        slots = [i for i, x in enumerate(values) if i not in static and objects.objects_in(x)]
        for i, value in enumerate(values):
            if i in static or i in slots:
                continue
            leaves, tree = trees.flatten(value)
            is_held = _untraced(value, leaves)
            if is_held is None:
                continue
            found = _held(leaves, tree, is_held)
            assert found is not None
            held[i], arrays[i] = found
        for i in {*static, *held} - is_named:
            _check_unchanging(names[i], values[i])
        form: ObjectForm | None = None
        if slots:
            form, states = objects.split([values[i] for i in slots])
            for i, state in zip(slots, states, strict=True):
                arrays[i] = state
        return Call(
            tuple(names), count, tuple(values), static, tuple(arrays), held, tuple(slots), form
        )

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> inspect.BoundArguments:
        assert self._signature is not None
        try:
            return self._signature.bind(*args, **named)
        except TypeError as error:
            names = tuple(
                p.name for p in self.parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            )
            takes_more = any(p.kind is p.VAR_KEYWORD for p in self.parameters)
            given = names[: len(args)]
            wrong = [k for k in named if k in given or not (takes_more or k in names)]
            positional(names, args, {k: named[k] for k in wrong}, self.name)
            raise ArgumentMismatchError(
                str(error), where=self.name, fix=f"give {', '.join(names)}, in this order"
            ) from None

    def _static(
        self, names: Sequence[str], values: Sequence[Any]
    ) -> tuple[tuple[int, ...], set[int]]:
        """Numbers of static arguments, and those among them that options name."""
        is_named = {i for i, name in enumerate(names) if name in self._static_argnames}
        numbers = set[int]()
        if self._static_argnums == "auto":
            numbers = {i for i, x in enumerate(values) if _is_static(x)}
        else:
            assert not isinstance(self._static_argnums, str)
            given = self._numbers(self._static_argnums, names)
            is_named |= set(known_positions(given, len(values)))
        for i, x in enumerate(values):
            if isinstance(x, bool | str | bytes | enum.Enum) or (callable(x) and _is_leaf(x)):
                numbers.add(i)
        return tuple(sorted(numbers | is_named)), is_named


def _check_unchanging(name: str, argument: Any) -> None:
    for path, x in trees.flatten_with_path(argument)[0]:
        if not _is_array(x) and _may_change(x):
            raise MethodError(
                f"a value of type {type(x).__name__} is compared by identity, and may change "
                "without being another one",
                where=f"{name}{trees.text(path)}",
                fix="give a number, an array, or what compares by its content, such as a tuple or "
                "a frozen dataclass; or name the argument in static_argnames if it never changes",
            )


def _is_leaf(x: Any) -> bool:
    leaves = trees.leaves(x)
    return len(leaves) == 1 and leaves[0] is x and not _is_array(x)


def _is_static(arg: Any) -> bool:
    if isinstance(arg, bool | int | float | str):
        return True
    return not all(hasattr(x, "dtype") or isinstance(x, int | float) for x in trees.leaves(arg))


class CallForm:
    """How the arguments of calls with one key are given to a function of positional trees of
    arrays, and what becomes of its results.

    Args:
        fn: the function.
        call: one of these calls.
    """

    def __init__(self, fn: Callable[..., Any], call: Call) -> None:
        self._fn = fn
        self._call = call
        self._changed: tuple[int, ...] = ()  # Of the arguments with objects, by number of the slot.
        self._takes_states = False
        self._result: Held | None = None
        if call.form is not None:
            # What changes is known only when the function has run.
            self._takes_states = True
            run = partial(_without_static, self.function(), self.arguments(call), call.static)
            dynamic = [x for i, x in enumerate(self.arguments(call)) if i not in call.static]
            _jax.eval_shape(run, *dynamic)
            self._takes_states = bool(self._changed)

    def arguments(self, call: Call) -> tuple[Any, ...]:
        """What the function of `function` takes."""
        if call.form is None or self._takes_states:
            return call.arrays
        return tuple(
            value if i in call.slots else arrays
            for i, (value, arrays) in enumerate(zip(call.values, call.arrays, strict=True))
        )

    @property
    def carried(self) -> dict[int, int]:
        """By number of an argument with objects that are changed, the result's child that is its
        next state."""
        return {self._call.slots[slot]: place for place, slot in enumerate(self._changed)}

    def function(self) -> Callable[..., Any]:
        """The function of positional trees of arrays and Python values. Of states that it changes
        it returns the next ones first."""
        call, fn = self._call, self._fn

        @wraps(fn, updated=())
        def run(*values: Any) -> Any:
            full = [call.held[i].filled(x) if i in call.held else x for i, x in enumerate(values)]
            given: list[Any] = []
            before, merged = (), ()
            if self._takes_states:
                assert call.form is not None
                before = tuple(values[i] for i in call.slots)
                merged = call.form.merge(before)
                for i, value in zip(call.slots, merged, strict=True):
                    full[i] = value
                given = objects.objects_in(merged)
            named = zip(call.names[call.by_position :], full[call.by_position :], strict=True)
            result = self._arrays_of(fn(*full[: call.by_position], **dict(named)), given)
            if not self._takes_states:
                return result
            after = self._states(merged, before)
            self._changed = tuple(after)
            return (*after.values(), result) if after else result

        parameters = [
            inspect.Parameter(f"argument_{i}", inspect.Parameter.POSITIONAL_ONLY)
            if not name.isidentifier()
            else inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for i, name in enumerate(call.names)
        ]
        function: Any = run
        function.__name__ = name_of(fn)
        function.__signature__ = _signature(parameters)
        return run

    def _states(self, merged: Sequence[Any], before: Sequence[Any]) -> dict[int, Any]:
        """The next states of what a function has changed, by number of the slot."""
        form, after = objects.split(merged)
        if form != self._call.form:
            raise TraceError(
                "the step changes the structure of an object: adds a variable, or sets an "
                "attribute that is no array",
                where=", ".join(self._call.names[i] for i in self._call.slots),
                fix="do that before the step, which may change the values of variables",
            )
        pairs = enumerate(zip(before, after, strict=True))
        return {
            slot: new
            for slot, (old, new) in pairs
            if any(x is not y for x, y in zip(trees.leaves(old), trees.leaves(new), strict=True))
        }

    def _arrays_of(self, result: Any, given: Sequence[Any]) -> Any:
        """The arrays of a result, of which Python values and the caller's objects are kept."""
        numbers = {id(x): number for number, x in enumerate(given)}
        pairs, tree = trees.flatten_with_path(result, lambda x: id(x) in numbers)
        leaves = [_Returned(numbers[id(x)]) if id(x) in numbers else x for _, x in pairs]
        known = {id(s.value) for held in self._call.held.values() for _, s in held.values}

        def is_kept(x: Any) -> bool:
            # Functions, flags and numbers of a module of equinox.
            return isinstance(x, _Returned) or (
                bool(known)
                and not _is_array(x)
                and (id(x) in known or isinstance(x, bool | int | float | complex | str))
            )

        found = _held(leaves, tree, is_kept)
        self._result = None if found is None else found[0]
        return result if found is None else found[1]

    def with_arrays(self, call: Call, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of a call with other arrays, which its objects get in place."""
        full = [call.held[i].filled(x) if i in call.held else x for i, x in enumerate(arrays)]
        if call.form is not None and self._takes_states:
            call.form.update(call.objects(), [arrays[i] for i in call.slots])
            for i in call.slots:
                full[i] = call.values[i]
        return tuple(full)

    def finish(self, call: Call, result: Any) -> Any:
        """What a call returns, of what the function of `function` did; changes its objects."""
        if self._changed:
            *states, result = result
            assert call.form is not None
            next_states = [call.arrays[i] for i in call.slots]
            for slot, state in zip(self._changed, states, strict=True):
                next_states[slot] = state
            call.form.update(call.objects(), next_states)
        if self._result is None:
            return result
        full = self._result.filled(result)
        if not any(isinstance(s.value, _Returned) for _, s in self._result.values):
            return full
        given = objects.objects_in(call.objects())
        leaves, tree = trees.flatten(full)
        leaves = [given[x.number] if isinstance(x, _Returned) else x for x in leaves]
        return trees.unflatten(tree, leaves)


def _signature(parameters: Sequence[inspect.Parameter]) -> inspect.Signature:
    """Parameters with names that cannot be Python's make those before them positional only."""
    last = max((i for i, p in enumerate(parameters) if p.kind is p.POSITIONAL_ONLY), default=-1)
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature(
        [p.replace(kind=kind) if i <= last else p for i, p in enumerate(parameters)]
    )


def _without_static(
    fn: Callable[..., Any], args: Sequence[Any], static: Sequence[int], *dynamic: Any
) -> Any:
    rest = iter(dynamic)
    return fn(*[x if i in static else next(rest) for i, x in enumerate(args)])
