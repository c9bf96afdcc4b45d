"""What a step takes: leaves of its state and batch, and the inputs of the plan that they are; state
made where it belongs; where arguments are wanted and results lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

from alpa_runtime import trees
from alpa_runtime.arrays import (
    RowArray,
    StackedArray,
    common_stack,
    in_workers,
    keys_in_workers,
    of_pieces,
)
from alpa_runtime.backends.interface import Job
from alpa_runtime.backends.xla import HOST_MEMORY
from alpa_runtime.calling_convention import (
    Aval,
    CallingConvention,
    Group,
    groups,
    is_typed_key,
    regrouped,
    typed_value,
)
from alpa_runtime.checkpoint.save_restore import StateTarget, Wanted
from alpa_runtime.errors import ArgumentMismatchError, TraceError
from alpa_runtime.jax_internals import without_context_mesh
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import InputInfo, OutputInfo, PiecePlace, RowsInfo
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    InputOp,
    Instruction,
    OutputOp,
    RecvOp,
    ReshardOp,
    RunOp,
    ZeroOp,
)
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec


@dataclass(frozen=True)
class StateLeaf:
    """A leaf of the state.

    Attributes:
        name: its place in the state, as code.
        inputs: the plan's inputs that it is made of: one, or its pieces by rising rows.
        places: for each of them where it lies in the leaf.
        of: the row of its one input that it is; None if it is all of it.
    """

    name: str
    leaf: Aval
    inputs: tuple[int, ...]
    places: tuple[PiecePlace, ...]
    of: int | None = None


@dataclass(frozen=True)
class StepState:
    """Everything of a step's arguments that is no batch.

    Attributes:
        tree: that of the one argument, or of the tuple of them where they are several.
        leaves: in the order of the tree.
    """

    tree: Any
    leaves: tuple[StateLeaf, ...]

    def target(
        self, plan: Plan, sharding_of: Callable[[int], Any], workers: Any = None
    ) -> StateTarget:
        """What has to be read of a checkpoint.

        Args:
            sharding_of: where an input of the plan is wanted first; None if nowhere.
            workers: the plan, if its workers are to read what they need.
        """
        wanted: list[Wanted] = []
        for item in self.leaves:
            leaf = item.leaf
            pieces = tuple(
                (place, plan.inputs[i].shape, sharding_of(i))
                for place, i in zip(item.places, item.inputs, strict=True)
            )
            stack = None if item.of is None else (item.inputs[0], item.of)
            if stack is not None and pieces[0][2] is None:
                pieces = ((PiecePlace(), leaf.data_shape, None),)
            form = item.name, leaf.data_shape, leaf.data_dtype, pieces, leaf.key_impl
            wanted.append(Wanted(*form, of_data=True, row_of=stack))
        inputs = tuple(item.inputs for item in self.leaves)
        return StateTarget(self.tree, tuple(wanted), inputs, workers)


@dataclass(frozen=True)
class StepBatch:
    """The batch of a step: the one argument, or the tuple of them where they are several.

    Attributes:
        leaves: in the order of the tree.
        several: whether it is several arguments.
        inputs: for each leaf the plan's input that it is; None for typed keys, which travel as
            their data.
        rounds: for each leaf, between how many its rows alternate (`CallInfo.interleaved`).
    """

    name: str
    tree: Any
    several: bool
    leaves: tuple[Aval, ...]
    inputs: tuple[int | None, ...]
    rounds: tuple[int, ...]

    def flatten(self, batch: Any) -> list[Any]:
        """The leaves of a batch, with rows as the plan's inputs have them.

        Raises:
            ArgumentMismatchError: it has another tree; names the first leaf that differs.
        """
        leaves, tree = trees.flatten(batch)
        if tree != self.tree:
            dummy = trees.unflatten(self.tree, range(len(self.leaves)))
            known, got = (
                {trees.text(path) for path, _ in trees.flatten_with_path(t)[0]}
                for t in (dummy, batch)
            )
            what = f"no leaf {min(known - got)}" if known - got else "other containers"
            what = f"an unknown leaf {min(got - known)}" if got - known else what
            raise ArgumentMismatchError(
                f"the batch has another tree than the step's: {what}",
                where=self.name,
                fix="give batches like the one that the step was planned for",
            )
        return [regrouped(x, rounds) for x, rounds in zip(leaves, self.rounds, strict=True)]


def step_batch(form: CallingConvention, plan: Plan) -> StepBatch:
    """The batch that a step takes."""
    numbers, tree, count = _arguments(form, batches=True)
    arguments = groups(plan.inputs, "inputs")
    leaves = tuple(form.in_leaves[number] for number in numbers)
    inputs = tuple(
        None if leaf.key_impl else arguments[number].members[0]
        for leaf, number in zip(leaves, numbers, strict=True)
    )
    rounds = tuple(form.interleaved.get(number, 1) for number in numbers)
    return StepBatch(plan.name, tree, count != 1, leaves, inputs, rounds)


def _arguments(
    form: CallingConvention, *, batches: bool, count: int | None = None
) -> tuple[list[int], Any, int]:
    """Leaf numbers, tree and number of those arguments that are batches, or of the others; of the
    first `count` of them."""
    arguments: tuple[Any, ...] = trees.unflatten(form.in_tree, range(form.in_tree.num_leaves))
    is_batch = form.batches
    chosen = [
        a for a in arguments if any(is_batch[int(leaf)] for leaf in trees.leaves(a)) is batches
    ][:count]
    numbers, tree = trees.flatten(chosen[0] if len(chosen) == 1 else tuple(chosen))
    return numbers, tree, len(chosen)


def step_state(form: CallingConvention, plan: Plan, count: int | None = None) -> StepState:
    """The state that a step takes: its arguments that are no batch, or the first `count` of them.

    Example:
        >>> [leaf.name for leaf in step_state(step.form, step.plan).leaves]    # doctest: +SKIP
        ["['w']", "['b']"]
    """
    arguments = groups(plan.inputs, "inputs")
    numbers, tree, _ = _arguments(form, batches=False, count=count)
    paths = [path for path, _ in trees.flatten_with_path(trees.unflatten(tree, numbers))[0]]
    leaves: list[StateLeaf] = []
    for path, number in zip(paths, numbers, strict=True):
        group = arguments[number]
        pieces = [plan.inputs[i].piece for i in group.members]
        places = tuple(PiecePlace() if piece is None else piece.place for piece in pieces)
        leaf = form.in_leaves[number]
        leaves.append(StateLeaf(trees.text(path), leaf, group.members, places, group.row))
    return StepState(tree, tuple(leaves))


# State made where it belongs, from a function: a program for each mesh, with its leaves only.

_jax: Any = jax
_jnp: Any = jax.numpy
_core: Any = core


class RunsOnce(Protocol):
    """A loaded plan."""

    @property
    def platform(self) -> str:
        """What programs for its devices are lowered for: `cpu`, `cuda`, `rocm`."""
        ...

    def run_once(self, jobs: Sequence[Job], arguments: Sequence[Any]) -> list[list[Any]]:
        """Compile and run programs of the plan's meshes; the results of each."""
        ...


@dataclass(frozen=True)
class InitProgram:
    """Makes those parts of the state that one mesh owns.

    Attributes:
        job: the program; all arguments are held whole by every device.
        inputs: of the plan, one for each of the program's results.
    """

    job: Job
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class InitTrace:
    """An init function as JAX traced it, compared with the state of a step.

    Attributes:
        closed: its jaxpr; arguments and results are flat.
        arguments: the flat arguments as arrays on the host, keys as their data.
        key_impls: for each argument the generator of a typed key, or None.
    """

    closed: Any
    arguments: tuple[Any, ...]
    key_impls: tuple[str | None, ...]


def trace_init(init_fn: Callable[..., Any], args: Sequence[Any], state: StepState) -> InitTrace:
    """Trace an init function once, and compare what it makes with what the step takes.

    Raises:
        TraceError: it cannot be traced.
        ArgumentMismatchError: names the first leaf that is missing, too many, or of another form.
    """
    name = getattr(init_fn, "__name__", type(init_fn).__name__)
    try:
        closed, shapes = _jax.make_jaxpr(init_fn, return_shape=True)(*args)
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"cannot be traced: {str(error).splitlines()[0]}",
            where=f"init function {name}",
            fix="give it arrays, and what is no array by functools.partial",
        ) from error
    _compare(name, shapes, state)
    flat: list[Any] = []
    impls: list[str | None] = []
    for value, aval in zip(trees.leaves(tuple(args)), closed.in_avals, strict=True):
        is_key = is_typed_key(aval)
        impls.append(str(_jax.random.key_impl(value)) if is_key else None)
        data = _jax.device_get(_jax.random.key_data(value) if is_key else value)
        flat.append(np.asarray(data, None if is_key else aval.dtype))
    return InitTrace(closed, tuple(flat), tuple(impls))


def _compare(name: str, shapes: Any, state: StepState) -> None:
    found = trees.flatten_with_path(shapes)[0]
    made = {trees.text(path): shape for path, shape in found}
    where, fix = f"result of init function {name}", "make the state that the step was planned for"
    for item in state.leaves:
        shape, leaf = made.pop(item.name, None), item.leaf
        here = f"{where}: {item.name or 'all of it'}"
        if shape is None:
            raise ArgumentMismatchError("no such leaf, the step takes one", where=here, fix=fix)
        if (shape.shape, shape.dtype) != (leaf.shape, leaf.dtype):
            raise ArgumentMismatchError(
                f"{shape.dtype}{list(shape.shape)}, the step takes {leaf.dtype}{list(leaf.shape)}",
                where=here,
                fix=fix,
            )
    if made:
        here = f"{where}: {next(iter(made))}"
        raise ArgumentMismatchError("the step takes no such leaf", where=here, fix=fix)
    if [trees.text(path) for path, _ in found] != [item.name for item in state.leaves]:
        raise ArgumentMismatchError("the leaves are in another order", where=where, fix=fix)


def init_programs(
    trace: InitTrace, state: StepState, plan: Plan, platform: str
) -> tuple[list[InitProgram], list[int]]:
    """One program for each mesh that owns state.

    What a mesh's leaves do not need is not in its program.

    Args:
        platform: what to lower for: `cpu`, `cuda`, `rocm`.

    Returns:
        The programs, and those leaves of the state that no mesh reads.
    """
    places = _places(plan)
    owned: dict[int, dict[int, _MadeInput]] = {}
    unread: list[int] = []
    for number, leaf in enumerate(state.leaves):
        if not any(index in places for index in leaf.inputs):
            unread.append(number)
        for place, index in zip(leaf.places, leaf.inputs, strict=True):
            if index in places:
                mesh, tensor = places[index]
                made = owned.setdefault(mesh, {}).setdefault(index, _MadeInput(tensor, place, {}))
                made.leaves[leaf.of or 0] = number
    return [
        _program(trace, state.leaves, plan, mesh, parts, platform) for mesh, parts in owned.items()
    ], unread


@dataclass(frozen=True)
class _MadeInput:
    """An input of the plan: its form, where it lies in the leaf that it is a piece of, and its
    leaves by row, one if that is all of it."""

    tensor: TensorSpec
    place: PiecePlace
    leaves: dict[int, int]


def _places(plan: Plan) -> dict[int, tuple[int, TensorSpec]]:
    """Mesh and form of every input that is state."""
    return {
        op.arg: (program.mesh, op.tensor)
        for program in plan.programs
        for op in program.only(InputOp)
        if plan.inputs[op.arg].kind == "state"
    }


def _program(
    trace: InitTrace,
    leaves: Sequence[StateLeaf],
    plan: Plan,
    mesh: int,
    parts: Mapping[int, _MadeInput],
    platform: str,
) -> InitProgram:
    info = plan.meshes[mesh]
    outputs = tuple(part.tensor for part in parts.values())
    numbers = [number for part in parts.values() for _, number in sorted(part.leaves.items())]
    inputs = tuple(TensorSpec(x.shape, str(x.dtype), ((),) * len(x.shape)) for x in trace.arguments)

    def make(*data: Any) -> tuple[Any, ...]:
        made = dict(zip(numbers, made_leaves(trace, leaves, numbers, data), strict=True))

        def part_of(part: _MadeInput) -> Any:
            shape, rows = part.tensor.shape, [made[n] for _, n in sorted(part.leaves.items())]
            if leaves[part.leaves[min(part.leaves)]].of is not None:
                return _jnp.stack([x.reshape(shape[1:]) for x in rows])
            return part.place.cut(rows[0], shape[0]) if shape else rows[0]

        return tuple(map(part_of, parts.values()))

    jitted = _jax.jit(
        make,
        in_shardings=tuple(_sharding(info, x) for x in inputs),
        out_shardings=tuple(_sharding(info, x) for x in outputs),
        keep_unused=True,
    )
    shapes = [_jax.ShapeDtypeStruct(x.shape, x.dtype) for x in trace.arguments]
    lowered = jitted.trace(*shapes).lower(lowering_platforms=(platform,))
    job = Job(f"mesh {mesh} initial state", lowered.as_text(), mesh, inputs, outputs)
    return InitProgram(job, tuple(parts))


def made_leaves(
    trace: InitTrace, leaves: Sequence[StateLeaf], numbers: Sequence[int], data: Sequence[Any]
) -> list[Any]:
    """Some leaves of the state, keys as their data; for tracing."""
    arguments = [
        x if impl is None else _jax.random.wrap_key_data(x, impl=impl)
        for x, impl in zip(data, trace.key_impls, strict=True)
    ]
    made = _jax.core.eval_jaxpr(_only(trace.closed.jaxpr, numbers), trace.closed.consts, *arguments)
    return [
        _jax.random.key_data(x) if leaves[number].leaf.key_impl else x
        for number, x in zip(numbers, made, strict=True)
    ]


def _sharding(info: MeshInfo, tensor: TensorSpec) -> NamedSharding:
    mesh: Any = AbstractMesh(info.shape, info.axes)
    spec = P(*[axes or None for axes in tensor.spec])
    return NamedSharding(mesh, spec, memory_kind=HOST_MEMORY if tensor.on_host else None)


def initial_state(
    init_fn: Callable[..., Any],
    args: Sequence[Any],
    state: StepState,
    plan: Plan,
    loaded: RunsOnce,
) -> Any:
    """What `ParallelStep.init` returns."""
    trace = trace_init(init_fn, args, state)
    with without_context_mesh():
        return _initial_state(trace, state, plan, loaded)


def _initial_state(trace: InitTrace, state: StepState, plan: Plan, loaded: RunsOnce) -> Any:
    programs, unread = init_programs(trace, state, plan, loaded.platform)
    results = loaded.run_once([program.job for program in programs], trace.arguments)
    arrays = {
        index: array
        for program, made in zip(programs, results, strict=True)
        for index, array in zip(program.inputs, made, strict=True)
    }

    def make(*data: Any) -> list[Any]:
        return made_leaves(trace, state.leaves, unread, data)

    others = dict(zip(unread, _jax.jit(make)(*trace.arguments) if unread else (), strict=True))
    leaves: list[Any] = []
    for number, item in enumerate(state.leaves):
        pieces = [arrays[index] for index in item.inputs] if number not in others else []
        value: Any = others.get(number)
        if pieces:
            value = of_pieces(pieces, item.places[0].axis, item.of, item.leaf.data_shape)
        if item.leaf.key_impl is not None:
            if in_workers(value):
                value = keys_in_workers(value, item.leaf.key_impl)
            else:
                value = _jax.random.wrap_key_data(_jnp.asarray(value), impl=item.leaf.key_impl)
        leaves.append(value)
    return trees.unflatten(state.tree, leaves)


def _only(jaxpr: Any, places: Sequence[int]) -> Any:
    """The part of a jaxpr that makes these results."""
    outvars = [jaxpr.outvars[place] for place in places]
    needed = {v for v in outvars if not isinstance(v, _core.Literal)}
    eqns: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            eqns.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, _core.Literal))
    debug = jaxpr.debug_info.with_unknown_names()
    return _core.Jaxpr(jaxpr.constvars, jaxpr.invars, outvars, eqns[::-1], jaxpr.effects, debug)


# Where a step wants its arguments and leaves its results, and arguments placed there ahead.


@dataclass(frozen=True)
class PlacementSpec:
    """How an argument or a result of a step lies on meshes.

    Attributes:
        shape, dtype: of the whole array; a batch at the size of one micro-batch, a typed key as
            its data.
        mesh_ids: of the plan's meshes, those that hold it or a piece of it; none if no mesh
            reads it.
        sharding_specs: on each of them, in axes of that mesh.
    """

    shape: tuple[int, ...]
    dtype: str
    mesh_ids: tuple[int, ...]
    sharding_specs: tuple[PartitionSpec, ...]


class Places(Protocol):
    """A loaded plan."""

    def put(self, index: int, x: Any) -> Any:
        """Place an array for an input of the plan."""
        ...


class OnMeshes(Protocol):
    """A loaded plan."""

    def devices_of(self, mesh: int) -> tuple[Any, ...]:
        """The devices of a mesh, in row-major order; none where they are those of workers."""
        ...


def input_placement(form: CallingConvention, plan: Plan) -> tuple[Any, ...]:
    """A tree of `PlacementSpec`s for each argument; None for static ones."""
    specs = argument_placements(plan)[: len(form.in_leaves)]
    return with_static(form, trees.unflatten(form.in_tree, specs))


def output_placement(form: CallingConvention, plan: Plan) -> Any:
    """A tree of `PlacementSpec`s like the result."""
    return trees.unflatten(form.out_tree, result_placements(plan))


def argument_placements(plan: Plan) -> list[PlacementSpec]:
    """Of the arguments' leaves, and behind them of the inputs that callers do not give."""
    found: dict[int, dict[int, TensorSpec]] = {}
    for program in plan.programs:
        for op in program.only(InputOp):
            found.setdefault(op.arg, {}).setdefault(program.mesh, op.tensor)
    return [_spec(plan.inputs, leaf, found) for leaf in groups(plan.inputs, "inputs")]


def result_placements(plan: Plan) -> list[PlacementSpec]:
    """Of the result's leaves."""
    found: dict[int, dict[int, TensorSpec]] = {}
    for program in plan.programs:
        held: dict[int, TensorSpec] = {}
        for op in program.instructions:
            if isinstance(op, OutputOp):
                found.setdefault(op.result, {}).setdefault(program.mesh, held[op.slot])
            else:
                held.update(_made(plan, op, held))
    return [_spec(plan.outputs, leaf, found) for leaf in groups(plan.outputs, "outputs")]


def input_shardings(form: CallingConvention, plan: Plan, loaded: OnMeshes) -> tuple[Any, ...]:
    """A tree of shardings for each argument; None for static ones."""
    specs = argument_placements(plan)[: len(form.in_leaves)]
    found = [_shardings(spec, plan, loaded) for spec in specs]
    return with_static(form, trees.unflatten(form.in_tree, found))


def output_shardings(form: CallingConvention, plan: Plan, loaded: OnMeshes) -> Any:
    """A tree of shardings like the result."""
    found = [_shardings(spec, plan, loaded) for spec in result_placements(plan)]
    return trees.unflatten(form.out_tree, found)


def _shardings(spec: PlacementSpec, plan: Plan, loaded: OnMeshes) -> Any:
    """One sharding, several of pieces on several meshes, None of what no mesh reads."""
    found: list[NamedSharding] = []
    for number, of_mesh in zip(spec.mesh_ids, spec.sharding_specs, strict=True):
        info = plan.meshes[number]
        mesh: Any = AbstractMesh(info.shape, info.axes)
        devices = loaded.devices_of(number)
        if devices:
            grid: Any = np.array(devices, object)
            mesh = Mesh(grid.reshape(info.shape), info.axes)
        found.append(NamedSharding(mesh, of_mesh))
    return (found[0] if len(found) == 1 else tuple(found)) if found else None


def with_static(form: CallingConvention, dynamic: Sequence[Any], static: Sequence[Any] = ()) -> Any:
    """All arguments in order: those of the step, and Python values between them.

    Args:
        static: by position; None in their places if it is empty.
    """
    positions = [item.position for item in form.static]
    result: list[Any] = []
    rest = iter(dynamic)
    for position in range(len(dynamic) + len(positions)):
        if position in positions:
            result.append(static[position] if static else None)
        else:
            result.append(next(rest))
    return tuple(result)


def placed_arguments(
    form: CallingConvention, plan: Plan, loaded: Places, args: Sequence[Any]
) -> Any:
    """What `ParallelStep.place` returns."""
    flat = form.flatten_args(*args)
    values = trees.leaves(form.dynamic(args))
    result: list[Any] = []
    arguments = groups(plan.inputs, "inputs")
    stacks: dict[int, Any] = {}
    for number, (leaf, argument) in enumerate(zip(form.in_leaves, arguments, strict=False)):
        if form.batches[number] and leaf.key_impl:
            result.append(values[number])  # Keys of a batch travel as their data, with the step.
            continue
        value, members = flat[number], argument.members
        if argument.row is not None:
            (index,) = members
            rows = plan.inputs[index].rows
            assert rows is not None
            if index not in stacks:
                stacks[index] = loaded.put(index, _stacked([flat[i] for i in rows.of], rows))
            result.append(RowArray(stacks[index], argument.row, rows.shape))
            continue
        if isinstance(value, StackedArray) and (value.sizes, value.axis) == (
            argument.sizes,
            argument.axis,
        ):
            pieces: list[Any] = list(value.pieces)
        else:
            pieces = _rows(plan.inputs, members, value) if argument.is_stack else [value]
        pieces = [loaded.put(i, piece) for i, piece in zip(members, pieces, strict=True)]
        result.append(typed_value(argument.joined(pieces, leaf.data_shape), leaf))
    return with_static(form, trees.unflatten(form.in_tree, result), args)


def _stacked(values: Sequence[Any], rows: RowsInfo) -> Any:
    stack = common_stack(values, rows)
    if stack is not None:
        return stack
    return np.stack([np.asarray(x) for x in values]).reshape(rows.stacked)


def _rows(inputs: Sequence[InputInfo], members: Sequence[int], value: Any) -> list[Any]:
    rows: list[Any] = []
    for index in members:
        piece = inputs[index].piece
        assert piece is not None
        rows.append(piece.place.cut(value, piece.size))
    return rows


def _spec(
    infos: Sequence[InputInfo] | Sequence[OutputInfo],
    group: Group,
    found: dict[int, dict[int, TensorSpec]],
) -> PlacementSpec:
    held: dict[int, PartitionSpec] = {}
    first = infos[group.members[0]]
    shape = group.shape(infos)
    for index in group.members:
        for mesh, tensor in found.get(index, {}).items():
            axes = [axes or None for axes in tensor.spec]
            if group.row is not None:  # Dimension 0 counts the rows, and no axis splits it.
                axes = axes[len(axes) - len(shape) :]
            axes[: group.axis + 1] = [*axes[1 : group.axis + 1], *axes[:1]]
            held.setdefault(mesh, PartitionSpec(*axes))
    return PlacementSpec(shape, first.dtype, tuple(held), tuple(held.values()))


def _made(plan: Plan, op: Instruction, held: dict[int, TensorSpec]) -> dict[int, TensorSpec]:
    """What an instruction writes into slots."""
    match op:
        case InputOp() | RecvOp() | ReshardOp() | ZeroOp():
            return {op.slot: op.tensor}
        case RunOp():
            outputs = plan.stages[op.stage].functions[op.function].outputs
            return dict(zip(op.outputs, outputs, strict=True))
        case AccumulateOp():
            return {slot: held[left] for slot, left in zip(op.slots, op.lefts, strict=True)}
        case AllReduceOp():
            return {op.slot: held[op.operand]}
        case _:
            return {}
