"""How a step is called: from the user's trees to flat arrays, to a plan's inputs in pieces, and
back.
"""

from __future__ import annotations

import ast
import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy
import numpy as np

from alpa_runtime import trees
from alpa_runtime.arrays import (
    DistributedKeys,
    PlacedBatch,
    StackedArray,
    WholeArray,
    common_stack,
    in_workers,
    of_pieces,
)
from alpa_runtime.errors import ArgumentMismatchError, PlanMismatchError, TraceError
from alpa_runtime.jax_internals import ArrayImpl, are_own, with_auto_axes, with_weak_type
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import (
    CallInfo,
    InputInfo,
    OutputInfo,
    PieceInfo,
    StaticArgument,
    owner_numbers,
    to_front,
    whole_shape,
)

# JAX leaves many of its types unknown to checkers; the alias says so in one place.
_jax: Any = jax


@dataclass(frozen=True)
class Aval:
    """One array of an argument or a result as JAX sees it.

    Attributes:
        name: tree path.
        shape: logical shape.
        dtype: JAX dtype; an extended one for typed PRNG keys.
        data_shape: shape of the array that stands for the leaf in the module.
        data_dtype: NumPy's name of that array's dtype.
        key_impl: generator of a typed PRNG key, else None. Keys travel as their data.
        weak_type: whether a result has JAX's type of Python numbers, which gives way to others.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    data_shape: tuple[int, ...]
    data_dtype: str
    key_impl: str | None = None
    weak_type: bool = False


def is_typed_key(aval: Any) -> bool:
    """Whether an array or an abstract one holds typed PRNG keys."""
    return bool(_jax.dtypes.issubdtype(aval.dtype, _jax.dtypes.prng_key))


def make_aval(name: str, aval: Any) -> Aval:
    """Describe an abstract array; a typed PRNG key is described by its data too."""
    shape = tuple(aval.shape)
    if not _jax.dtypes.issubdtype(aval.dtype, _jax.dtypes.extended):
        return Aval(name, shape, aval.dtype, shape, str(np.dtype(aval.dtype)))
    if not _jax.dtypes.issubdtype(aval.dtype, _jax.dtypes.prng_key):
        raise TraceError(f"the dtype {aval.dtype} has no array form", where=name)
    impl: list[str] = []

    def data(key: Any) -> Any:
        impl.append(str(_jax.random.key_impl(key)))
        return _jax.random.key_data(key)

    array = _jax.eval_shape(data, aval)
    return Aval(name, shape, aval.dtype, tuple(array.shape), str(array.dtype), impl[0])


jnp: Any = jax.numpy
_NAME = re.compile(r"[^\W\d]\w*")  # With which the name of an argument's leaf begins.


@dataclass(frozen=True)
class CallingConvention:
    """Trees and arrays of a step's arguments and results.

    Attributes:
        name: of the function, for messages.
        num_micro_batches: how much larger a batch is than its leaf says.
        in_tree: tree of the tuple of positional arguments, the static ones left out.
        out_tree: tree of the result.
        in_leaves, out_leaves: the flattened arguments and results, batches at micro-batch size.
        batches: for each flattened argument, whether it is a batch.
        static: the arguments that are Python values.
        added: inputs of the plan behind the arguments', which `flatten_args` adds.
        interleaved, batch_of_rounds, names: as `CallInfo` has them.
        accepted: abstract arrays of arguments that were found right and are taken as they are, by
            leaf.
    """

    name: str
    num_micro_batches: int
    in_tree: Any
    out_tree: Any
    in_leaves: tuple[Aval, ...] = field(repr=False)
    out_leaves: tuple[Aval, ...] = field(repr=False)
    batches: tuple[bool, ...] = field(repr=False)
    static: tuple[StaticArgument, ...] = ()
    added: tuple[InputInfo, ...] = ()
    interleaved: Mapping[int, int] = field(default_factory=dict[int, int])
    batch_of_rounds: bool = False
    names: tuple[str, ...] = ()
    accepted: list[Any] = field(default_factory=list[Any], init=False, repr=False, compare=False)

    def flatten_args(self, *args: Any) -> list[Any]:
        """Arrays for the module's inputs, batches at full size; keys become their data.

        Raises:
            ArgumentMismatchError: another tree, shape, dtype or static value than the traced one.
        """
        return self.arrays(self.leaves(args))

    def leaves(self, args: Sequence[Any]) -> list[Any]:
        """Of the arguments that are not static.

        Raises:
            ArgumentMismatchError: another tree or static value than the traced one.
        """
        static = {item.position: item.value for item in self.static}
        for position, value in static.items():
            if value is None or position >= len(args):
                continue
            if args[position] != ast.literal_eval(value):
                raise ArgumentMismatchError(
                    f"got {args[position]!r}, the step was made for {value}",
                    where=f"argument {position} of {self.name}",
                    fix="pass the same value, or compile the step again",
                )
        leaves = self.leaves_if_alike(args)
        if leaves is None:
            raise self._tree_mismatch(self.dynamic(args))
        return leaves

    def leaves_if_alike(self, args: Sequence[Any]) -> list[Any] | None:
        """None if arguments are of another tree than the step takes."""
        leaves, tree = trees.flatten(self.dynamic(args))
        return leaves if tree == self.in_tree else None

    def arrays(self, leaves: list[Any]) -> list[Any]:
        """Arrays for the module's inputs, of the leaves of arguments.

        Raises:
            ArgumentMismatchError: another shape or dtype than the traced one.
        """
        accepted = self.accepted
        if set(map(type, leaves)) <= {ArrayImpl} and [x.aval for x in leaves] == accepted:
            return self._with_added(leaves)
        if not accepted:
            accepted.extend([None] * len(leaves))
        flat: list[Any] = []
        for value, leaf, is_batch in zip(leaves, self.in_leaves, self.batches, strict=True):
            given = value
            if type(value) is ArrayImpl and value.aval is accepted[len(flat)]:
                flat.append(value)  # Of an earlier step, mostly.
                continue
            shape = leaf.shape
            if is_batch:
                shape = (shape[0] * self.num_micro_batches, *shape[1:])
            aval = value if isinstance(value, WholeArray) else _aval_of(value, leaf.name)
            if (aval.shape, aval.dtype) != (shape, leaf.dtype):
                raise ArgumentMismatchError(
                    f"got {aval.dtype}{list(aval.shape)}, the step was traced with "
                    f"{leaf.dtype}{list(shape)}",
                    where=leaf.name,
                    fix="pass arrays of that form, or compile the step again",
                )
            if isinstance(value, DistributedKeys):
                value = value.data
            elif leaf.key_impl:
                value = _jax.random.key_data(value)
            elif not isinstance(value, jax.Array | WholeArray):
                # Python numbers, and NumPy's wider dtypes.
                value = np.asarray(value).astype(leaf.data_dtype, copy=False)
            value = regrouped(value, self.interleaved.get(len(flat), 1))
            if value is given and type(value) is ArrayImpl:
                accepted[len(flat)] = value.aval
            flat.append(value)
        return self._with_added(flat)

    def _with_added(self, flat: list[Any]) -> list[Any]:
        for info in self.added:
            if info.per_micro_batch:
                flat.append(np.arange(self.num_micro_batches, dtype=np.uint32))
                continue
            number = next(i for i, x in enumerate(self.in_leaves) if x.name == info.whole_of)
            whole = flat[number]  # As a loader placed it, it is in parts.
            flat.append(np.asarray(whole) if isinstance(whole, WholeArray) else whole)
        return flat

    @property
    def parameters(self) -> tuple[str | None, ...]:
        """Names of the arguments; in plans that do not say them as far as those of their arrays
        do."""
        if self.names:
            return self.names
        static = {item.position for item in self.static}
        tree: tuple[Any, ...] = trees.unflatten(
            self.in_tree, (leaf.name for leaf in self.in_leaves)
        )
        first = iter([(trees.leaves(argument) or [""])[0] for argument in tree])
        names: list[str | None] = []
        for position in range(len(static) + len(tree)):
            match = None if position in static else _NAME.match(next(first))
            names.append(None if match is None else match[0])
        return tuple(names)

    def dynamic(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments that are not static."""
        static = {item.position for item in self.static}
        return tuple(a for i, a in enumerate(args) if i not in static)

    def unflatten_results(self, flat: Sequence[Any]) -> Any:
        """The step's result from the module's outputs; key data become keys again."""
        values = list(flat)
        for i in self._typed:
            values[i] = typed_value(values[i], self.out_leaves[i])
        return trees.unflatten(self.out_tree, values)

    @cached_property
    def _typed(self) -> list[int]:
        """Results that are keys or weak."""
        return [i for i, leaf in enumerate(self.out_leaves) if leaf.key_impl or leaf.weak_type]

    def _tree_mismatch(self, dynamic: Any) -> ArgumentMismatchError:
        """Name the first leaf that is missing or new."""
        paths = trees.flatten_with_path(dynamic)[0]
        dummy = trees.unflatten(self.in_tree, range(len(self.in_leaves)))
        known = [path for path, _ in trees.flatten_with_path(dummy)[0]]
        names = [name for name in self.dynamic(self.parameters) if name is not None]

        def text(path: Any) -> str:
            whose = path[0].idx if len(names) == len(dummy) else len(names)
            return names[whose] + trees.text(path[1:]) if whose < len(names) else trees.text(path)

        got = {text(path) for path, _ in paths}
        want = {text(path) for path in known}
        detail = "the same leaves in other containers"
        if want - got:
            detail = f"no leaf {min(want - got)}"
        elif got - want:
            detail = f"an unknown leaf {min(got - want)}"
        return ArgumentMismatchError(
            f"the arguments have another tree than the traced ones: {detail}",
            where=self.name,
            fix="pass trees of the same structure, or compile the step again",
        )

    def to_info(self, donate_state: bool) -> CallInfo:
        """What a plan keeps of it."""

        def keys(leaves: Sequence[Aval]) -> dict[int, str]:
            return {i: leaf.key_impl for i, leaf in enumerate(leaves) if leaf.key_impl}

        return CallInfo(
            trees.encode(self.in_tree),
            trees.encode(self.out_tree),
            self.static,
            donate_state,
            keys(self.in_leaves),
            keys(self.out_leaves),
            self.interleaved,
            self.batch_of_rounds,
            self.names,
        )

    @classmethod
    def from_plan(cls, plan: Plan, arguments: Any = None, result: Any = None) -> CallingConvention:
        """The form of a loaded plan.

        Args:
            arguments: an example of the tuple of arguments that are not static; needed where
                their trees hold classes that a plan cannot store. Leaves may be anything.
            result: an example of the result, needed for the same reason.

        Raises:
            PlanMismatchError: the plan was saved without its trees, or they need an example.
        """
        call = plan.call
        if call is None:
            raise PlanMismatchError(
                "the plan does not say how its step is called",
                where=f"plan of {plan.name}: call",
                fix="save the planned step, not what the exporter wrote; or run the plan with "
                "alpa_runtime.execution.loaded_plan.load on flat lists of arrays",
            )
        examples = [trees.structure(tree) for tree in (arguments, result) if tree is not None]
        in_tree = _decode(plan, "arguments", call.arguments, examples)
        out_tree = _decode(plan, "result", call.result, [in_tree, *examples])
        inputs, results = plan.arguments, plan.results
        for what, tree, infos in (
            ("arguments", in_tree, inputs),
            ("result", out_tree, results),
        ):
            if tree.num_leaves != len(infos):
                raise PlanMismatchError(
                    f"the tree has {tree.num_leaves} leaves for {len(infos)} arrays",
                    where=f"plan of {plan.name}: call.{what}",
                )
        count = len(in_tree.children()) + len(call.static)
        if call.names and len(call.names) != count:
            raise PlanMismatchError(
                f"{len(call.names)} names for {count} arguments",
                where=f"plan of {plan.name}: call.names",
            )
        for number, rounds in call.interleaved.items():
            info = inputs[number] if number < len(inputs) else None
            if info is None or info.kind != "batch" or input_rows(plan, info) % rounds:
                raise PlanMismatchError(
                    f"argument {number} is no batch whose rows alternate between {rounds} rounds",
                    where=f"plan of {plan.name}: call.interleaved",
                )
        return cls(
            plan.name,
            plan.num_micro_batches,
            in_tree,
            out_tree,
            tuple(_leaf(x, call.input_keys.get(i)) for i, x in enumerate(inputs)),
            tuple(_leaf(x, call.output_keys.get(i)) for i, x in enumerate(results)),
            tuple(x.kind == "batch" for x in inputs),
            call.static,
            plan.added_inputs,
            call.interleaved,
            call.batch_of_rounds,
            call.names,
        )


def input_rows(plan: Plan, info: InputInfo) -> int:
    """Rows of a batch argument in a whole batch."""
    return info.shape[0] * plan.num_micro_batches if info.shape else 0


def regrouped(value: Any, rounds: int) -> Any:
    """An array with the rows of one round behind those of another, whose rows alternate between
    so many rounds. Those that a loader placed are grouped already.

    Example:
        >>> regrouped(np.array([0, 1, 2, 0, 1, 2]), 3)
        array([0, 0, 1, 1, 2, 2])
    """
    if rounds == 1 or isinstance(value, WholeArray):
        return value
    x = with_auto_axes(value) if isinstance(value, jax.Array) else np.asarray(value)
    if not x.ndim or x.shape[0] % rounds:
        return x  # The caller's mistake, and named where shapes are checked.
    return x.reshape(-1, rounds, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def positional(
    names: Sequence[str | None], args: Sequence[Any], named: Mapping[str, Any], where: str
) -> tuple[Any, ...]:
    """All arguments in their order, those that were given by name too.

    Raises:
        ArgumentMismatchError: there is no argument of that name, it is given twice, or one
            before it is not given.

    Example:
        >>> positional(("state", "batch"), (1,), {"batch": 2}, "step")
        (1, 2)
    """
    left = dict(named)
    found = list(args)
    for name in names[len(args) :]:
        if name is None or name not in left:
            break
        found.append(left.pop(name))
    if left:
        name = next(iter(left))
        what = "comes after one that is not given" if name in names else "is unknown"
        what = "is given twice" if name in names[: len(args)] else what
        known = ", ".join(name or "a Python value" for name in names)
        raise ArgumentMismatchError(
            f"the argument {name!r} {what}", where=where, fix=f"give {known}, in this order"
        )
    return tuple(found)


def _aval_of(value: Any, name: str) -> Any:
    is_shape = isinstance(value, _jax.ShapeDtypeStruct)
    try:
        if not is_shape:
            return _jax.typeof(value)
    except TypeError:
        pass
    raise ArgumentMismatchError(
        f"got a {type(value).__name__}, which is no array",
        where=name,
        fix="pass an array" + ("; shapes are for lower(..) and plan(..)" if is_shape else ""),
    )


def typed_value(value: Any, leaf: Aval) -> Any:
    """A value of the plan as the caller has it: key data become keys again, and numbers weak."""
    if not leaf.key_impl:
        is_weak = leaf.weak_type and isinstance(value, jax.Array | WholeArray)
        return with_weak_type(value) if is_weak else value
    if in_workers(value):
        return DistributedKeys(value, leaf.key_impl, leaf.shape, leaf.dtype)
    data = _with_whole_keys(jnp.asarray(value), len(leaf.shape))
    return _jax.random.wrap_key_data(data, impl=leaf.key_impl)


def _with_whole_keys(data: Any, rank: int) -> Any:
    """Key data of which devices hold whole keys, as JAX wants them; `rank` is that of the keys."""
    sharding = data.sharding
    spec: tuple[Any, ...] = tuple(getattr(sharding, "spec", ()))
    if not any(spec[rank:]):
        return data
    whole = _jax.sharding.PartitionSpec(*spec[:rank])
    return _jax.device_put(data, _jax.sharding.NamedSharding(sharding.mesh, whole))


def static_arguments(args: Sequence[Any], positions: Sequence[int]) -> tuple[StaticArgument, ...]:
    """Positions and values; a value is kept if it is a name or a finite number."""

    def text(value: Any) -> str | None:
        is_plain = value is None or type(value) in (str, int, bool)
        is_number = type(value) is float and math.isfinite(value)
        return repr(value) if is_plain or is_number else None

    return tuple(StaticArgument(i, text(args[i])) for i in positions)


def _decode(plan: Plan, what: str, value: Any, examples: list[Any]) -> Any:
    where = f"plan of {plan.name}: call.{what}"
    try:
        return trees.decode(value, examples)
    except trees.UnknownTreeError as error:
        example = "arguments=(..)" if what == "arguments" else "result=.."
        raise PlanMismatchError(
            str(error),
            where=where,
            fix=f"import its module first, or give an example: alpa_mlir.load(folder, {example})",
        ) from None
    except (ValueError, TypeError) as error:
        raise PlanMismatchError(str(error), where=where, fix="save the plan again") from None


def _leaf(info: Any, key_impl: str | None) -> Aval:
    try:
        dtype = jnp.dtype(info.dtype)
    except TypeError:
        raise PlanMismatchError(f"dtype {info.dtype!r} is unknown", where=info.name) from None
    if key_impl is None:
        return Aval(info.name, info.shape, dtype, info.shape, info.dtype)
    data = _jax.ShapeDtypeStruct(info.shape, dtype)
    key = _jax.eval_shape(partial(_jax.random.wrap_key_data, impl=key_impl), data)
    return Aval(info.name, key.shape, key.dtype, info.shape, info.dtype, key_impl)


# Arguments and results of a step as its caller sees them, and as the plan has them: in pieces.


def result_shape(plan: Plan, index: int) -> tuple[int, ...]:
    """The shape of a result of the plan, that of all micro-batches where they are joined."""
    info = plan.outputs[index]
    if info.reduction != "concat" or not info.shape:
        return info.shape
    return (info.shape[0] * plan.num_micro_batches, *info.shape[1:])


def input_shape(plan: Plan, index: int) -> tuple[int, ...]:
    """The shape of input `index` of the plan, batches whole."""
    info = plan.inputs[index]
    if info.kind == "state" or not info.shape:
        return info.shape
    return (info.shape[0] * plan.num_micro_batches, *info.shape[1:])


def check_argument(x: Any, info: InputInfo, shape: tuple[int, ...]) -> Any:
    """The argument itself, or as a NumPy array if it is a Python number.

    Raises:
        ArgumentMismatchError: shape or dtype differ from the plan's.
    """
    if isinstance(x, bool | int | float | complex):
        x = np.asarray(x, jnp.dtype(info.dtype))
    found = tuple(np.shape(x))
    if found != shape:
        raise ArgumentMismatchError(
            f"shape {list(found)}, expected {list(shape)}",
            where=info.name,
            fix="give what the step was planned for, or plan it again for this shape",
        )
    dtype = _jax.dtypes.canonicalize_dtype(x.dtype) if hasattr(x, "dtype") else np.asarray(x).dtype
    if dtype != jnp.dtype(info.dtype):
        raise ArgumentMismatchError(
            f"dtype {dtype}, expected {info.dtype}",
            where=info.name,
            fix=f"convert it with .astype({info.dtype!r})",
        )
    return x if x.dtype == dtype else np.asarray(x, dtype)


@dataclass(frozen=True)
class Group:
    """The inputs or outputs of a plan that are one argument or result of the caller.

    Attributes:
        members: their numbers in the plan; one if it is not in pieces.
        sizes: rows of each piece; empty if it is not in pieces.
        axis: the dimension that these are of.
        row: which row of its one member it is; None if it is all of it.
    """

    members: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    axis: int = 0
    row: int | None = None

    @property
    def is_stack(self) -> bool:
        """Whether the caller's array is a stack that the plan has otherwise."""
        return len(self.members) > 1 or self.axis != 0

    @property
    def is_array(self) -> bool:
        """Whether the caller's array is the plan's."""
        return not self.is_stack and self.row is None

    def shape(self, infos: Sequence[InputInfo] | Sequence[OutputInfo]) -> tuple[int, ...]:
        """That of the caller's array.

        Args:
            infos: the plan's inputs or outputs.
        """
        first = infos[self.members[0]]
        if self.row is not None and first.rows is not None:
            return first.rows.shape
        return whole_shape(first.shape, sum(self.sizes), self.axis) if self.sizes else first.shape

    def joined(self, pieces: Sequence[Any], shape: tuple[int, ...]) -> Any:
        """The caller's array, of that shape, of its members."""
        return of_pieces(pieces, self.axis, self.row, shape)


def groups(infos: Sequence[InputInfo] | Sequence[OutputInfo], where: str) -> list[Group]:
    """What belongs together: pieces of one thing stand one after another, by rising rows.

    Returns:
        For each argument or result of the caller, what it is.

    Raises:
        PlanMismatchError: a piece, or a row, is not where it belongs.
    """
    found: dict[int, Group] = {}
    last: PieceInfo | None = None
    for index, (info, owners) in enumerate(zip(infos, owner_numbers(infos), strict=True)):
        piece = info.piece
        if info.rows is not None:
            if info.shape != info.rows.stacked or len(set(owners) - set(found)) < len(owners):
                raise PlanMismatchError(
                    f"{list(info.shape)} of rows {list(owners)}", where=f"{where}[{index}]"
                )
            found.update((number, Group((index,), row=row)) for row, number in enumerate(owners))
        elif piece is None:
            found[owners[0]] = Group((index,))
        elif piece.offset == 0:
            found[owners[0]] = Group((index,), (piece.size,), piece.axis)
        elif last is None or (piece.of, piece.axis, piece.offset) != (
            last.of,
            last.axis,
            last.offset + last.size,
        ):
            raise PlanMismatchError(
                f"rows {piece.offset} and on do not follow what stands before",
                where=f"{where}[{index}]",
            )
        else:
            group = found[owners[0]]
            members, sizes = (*group.members, index), (*group.sizes, piece.size)
            found[owners[0]] = Group(members, sizes, group.axis)
        if piece is not None and (
            piece.of != owners[0] or len(info.shape) <= piece.axis or info.shape[0] != piece.size
        ):
            raise PlanMismatchError(
                f"a piece of {piece.size} rows of {piece.of}, but {list(info.shape)} of "
                f"{owners[0]}",
                where=f"{where}[{index}]",
            )
        last = piece
    if sorted(found) != list(range(len(found))):
        raise PlanMismatchError(f"no argument or result {_missing(found)}", where=where)
    return [found[number] for number in range(len(found))]


def _missing(found: Mapping[int, Group]) -> int:
    return next(number for number in range(len(found)) if number not in found)


class Boundary:
    """Cuts the caller's stacks into the plan's pieces, puts arrays that are alike together to
    the plan's stacks, and hands results out as the caller has them.

    Args:
        check: `(argument, info, shape)` gives the argument, or raises ArgumentMismatchError.

    Raises:
        PlanMismatchError: the pieces do not make whole arrays.
    """

    def __init__(self, plan: Plan, check: Callable[[Any, InputInfo, tuple[int, ...]], Any]) -> None:
        self._plan = plan
        self._check = check
        self._inputs = groups(plan.inputs, "inputs")
        self._outputs = groups(plan.outputs, "outputs")
        self._takes_arrays = all(group.is_array for group in self._inputs)
        self._gives_arrays = all(group.is_array for group in self._outputs)
        self._result_shapes = [group.shape(plan.outputs) for group in self._outputs]
        # What arrays that are not carried were made into, so that they are placed only once. By
        # number of the argument in pieces, or of the input with rows.
        self._kept: dict[int, tuple[Any, list[Any]]] = {}
        self._kept_rows: dict[int, tuple[list[Any], Any]] = {}

    def take_apart(self, args: Sequence[Any], place: Callable[[int, Any], Any]) -> Sequence[Any]:
        """One array for each input of the plan.

        Args:
            place: puts an array for input `i` of the plan where it is wanted first.

        Raises:
            ArgumentMismatchError: another number of arguments, or a stack of another form.
        """
        if len(args) != len(self._inputs):
            raise ArgumentMismatchError(
                f"{len(args)} arguments, expected {len(self._inputs)}", where=self._plan.name
            )
        if self._takes_arrays:
            return args
        found: list[Any] = [None] * len(self._plan.inputs)
        rows: dict[int, list[Any]] = {}
        for number, (x, group) in enumerate(zip(args, self._inputs, strict=True)):
            (first, *_), row = group.members, group.row
            if row is not None:
                info = self._plan.inputs[first]
                assert info.rows is not None
                rows.setdefault(first, [None] * len(info.rows.of))[row] = x
            elif not group.is_stack:
                found[first] = x
            else:
                form = group.sizes, group.axis
                is_ours = isinstance(x, StackedArray) and (x.sizes, x.axis) == form
                pieces = x.pieces if is_ours else self._cut(number, x, group, place)
                for index, piece in zip(group.members, pieces, strict=True):
                    found[index] = piece
        for index, values in rows.items():
            found[index] = self._stack(index, values, place)
        return found

    def _cut(
        self, number: int, x: Any, group: Group, place: Callable[[int, Any], Any]
    ) -> Sequence[Any]:
        info = self._plan.inputs[group.members[0]]
        kept = self._kept.get(number)
        if kept is not None and kept[0]() is x and not x.is_deleted():
            return kept[1]
        whole = replace(info, name=info.name.removesuffix("[0]"))
        check_is_there(x, whole.name)
        shape = group.shape(self._plan.inputs)
        rows = to_front(np.asarray(self._check(x, whole, shape)), group.axis)
        cuts = np.split(rows, np.cumsum(group.sizes)[:-1])
        pieces: list[Any] = [np.ascontiguousarray(cut) for cut in cuts]
        if isinstance(x, jax.Array) and info.carried_by is None:
            placed = list(map(place, group.members, pieces))
            self._kept[number] = (weakref.ref(x), placed)
            return placed
        return pieces

    def _stack(self, index: int, values: list[Any], place: Callable[[int, Any], Any]) -> Any:
        """One array of the arguments that are its rows; as an earlier step returned them, none of
        them is moved."""
        info = self._plan.inputs[index]
        rows = info.rows
        assert rows is not None
        stack = common_stack(values, rows)
        if stack is not None:
            return stack
        kept = self._kept_rows.get(index)
        if kept is not None and all(
            ref() is x and not x.is_deleted() for ref, x in zip(kept[0], values, strict=True)
        ):
            return kept[1]
        whole = np.empty(info.shape, jnp.dtype(info.dtype))
        for row, (x, name) in enumerate(zip(values, rows.names, strict=True)):
            check_is_there(x, name)
            of_row = replace(info, name=name)
            whole[row] = np.asarray(self._check(x, of_row, rows.shape)).reshape(info.shape[1:])
        placed = place(index, whole)
        if info.carried_by is None and all(isinstance(x, jax.Array) for x in values):
            self._kept_rows[index] = ([weakref.ref(x) for x in values], placed)
        return placed

    def put_together(self, results: list[Any]) -> list[Any]:
        """One array for each result of the caller."""
        if self._gives_arrays:
            return results
        return [
            group.joined([results[i] for i in group.members], shape)
            for group, shape in zip(self._outputs, self._result_shapes, strict=True)
        ]


def check_is_there(x: Any, name: str) -> None:
    """Raise an error if an array was deleted, by a step or by others."""
    if not isinstance(x, jax.Array | WholeArray | PlacedBatch) or not x.is_deleted():
        return
    if isinstance(x, jax.Array) and not are_own([x]):
        raise ArgumentMismatchError(
            "the array was deleted, or donated to another function", where=name, fix="make it anew"
        )
    raise ArgumentMismatchError(
        "the array was donated to an earlier step",
        where=name,
        fix="use the state that the last step returned, or donate_state=False",
    )
