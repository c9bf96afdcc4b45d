"""A step's actions bound to devices: prepared calls that one loop starts, and a record of them."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy
from jax.sharding import Mesh, NamedSharding

from alpa_runtime.backends.interface import Backend, Job, Program, Progress
from alpa_runtime.backends.xla import (
    Device,
    mesh_devices,
    mesh_text,
    mlir_type,
    named_sharding,
    num_bytes,
    sharding_text,
    sum_text,
    zero_text,
)
from alpa_runtime.errors import ArgumentMismatchError, InfeasiblePlanError
from alpa_runtime.execution.compilation import (
    check_memory,
    compile_jobs,
    compiled_peaks,
    run_once,
    stage_jobs,
)
from alpa_runtime.execution.host_shards import Cutter
from alpa_runtime.execution.program_merge import (
    Accumulate,
    Action,
    Copy,
    Exchange,
    MergedStep,
    Place,
    Reshard,
    Run,
    Send,
    Zero,
    sums_of,
)
from alpa_runtime.execution.reshard_steps import ReshardPart
from alpa_runtime.execution.transfers import (
    BoundPart,
    Move,
    PointToPoint,
    Ticket,
    bind_part,
    bind_reshard,
)
from alpa_runtime.execution.whole_step import whole_step
from alpa_runtime.foreign_errors import says_donated
from alpa_runtime.jax_internals import lowering_platform
from alpa_runtime.plan import Plan
from alpa_runtime.plan.tensor import TensorSpec

_log = logging.getLogger("alpa_mlir")

# Nothing waits for what is recorded: threads of their own wait for results, so that what is traced
# runs as it does otherwise.

_WATCHERS = 32


@dataclass(frozen=True, slots=True)
class Event:
    """What one action was, and when; times in nanoseconds on its worker's clock.

    Attributes:
        kind: `run`, `sum`, `zero`, `reshard`, `place`; `copy`, `send` or `receive` of a transfer.
        mesh: where it happened; of a transfer the target's, of a `send` the source's.
        begin, end: when it was started, and when starting it had returned.
        ready: when its results were there; `end` where nobody saw it.
        step: of those that were recorded.
        transfer: tag of the copy; with its meshes it joins the two halves of a transfer.
        bytes: of the tensor that is transferred.
    """

    kind: str
    name: str
    mesh: int
    begin: int = 0
    end: int = 0
    ready: int = 0
    step: int = 0
    stage: int | None = None
    micro_batch: int | None = None
    transfer: int | None = None
    source_mesh: int | None = None
    target_mesh: int | None = None
    bytes: int = 0


def clock() -> int:
    """The clock of events, in nanoseconds; its beginning means nothing."""
    return time.perf_counter_ns()


class Recorder:
    """Records the steps of one worker, or of this process.

    Args:
        actions: those that are run, in order.
        given: values whose buffers an action uses up; others are watched where there is a choice.
    """

    def __init__(
        self, plan: Plan, step: MergedStep, actions: Sequence[Action], given: Collection[int]
    ) -> None:
        self._events = [describe(plan, step, action) for action in actions]
        sizes = {v: num_bytes(value.tensor) for v, value in enumerate(step.values)}
        self._watched = [
            sorted(action.makes, key=lambda v: (v in given, sizes[v])) for action in actions
        ]
        self._pool = ThreadPoolExecutor(_WATCHERS, thread_name_prefix="alpa-mlir-trace")
        self._found: list[tuple[Event, Future[int | None]]] = []
        self._steps = 0

    def run(self, calls: Iterable[Callable[[list[Any]], None]], buffers: list[Any]) -> None:
        """Do the actions of a step."""
        for call, event, watched in zip(calls, self._events, self._watched, strict=True):
            begin = clock()
            call(buffers)
            end = clock()
            arrays = [buffers[v] for v in watched if buffers[v] is not None]
            ready = self._pool.submit(_ready, arrays)
            self._found.append((replace(event, begin=begin, end=end, step=self._steps), ready))
        self._steps += 1

    def stop(self) -> list[Event]:
        """All events, when all results are there."""
        events: list[Event] = []
        for event, ready in self._found:
            time = ready.result()
            events.append(replace(event, ready=event.end if time is None else time))
        self._pool.shutdown()
        self._found.clear()
        return events


def _ready(arrays: Sequence[Any]) -> int | None:
    """When the first array that can be waited for is there; None if all were used up before."""
    for array in arrays:
        try:
            array.block_until_ready()
        except (RuntimeError, ValueError):  # Used up by a later program.
            continue
        return clock()
    return None


def describe(plan: Plan, step: MergedStep, action: Action) -> Event:
    """What an action is, without its times."""
    match action:
        case Run():
            mesh = plan.stages[action.stage].mesh
            part = "" if action.micro_batch is None else f" {action.micro_batch}"
            shared = Counter(stage.mesh for stage in plan.stages)[mesh] > 1
            of = f" of stage {action.stage}" if shared else ""
            name = f"{action.function}{part}{of}"
            stage, number = action.stage, action.micro_batch
            return Event("run", name, mesh, stage=stage, micro_batch=number)
        case Accumulate():
            return Event("sum", f"{len(action.sums)} sums", action.mesh)
        case Zero():
            return Event("zero", "zeros", step.values[action.values[0]].mesh)
        case Reshard():
            return Event("reshard", "other sharding", step.values[action.value].mesh)
        case Place():
            name = plan.inputs[action.arg].name
            mesh, part = step.values[action.value].mesh, action.micro_batch
            return Event("place", f"place {name}", mesh, micro_batch=part)
        case Copy() | Send() | Exchange():
            info = plan.reshards[action.by]
            sends = isinstance(action, Send)
            kind = "send" if sends else "copy" if isinstance(action, Copy) else "receive"
            return Event(
                kind,
                f"{kind} {action.tag}",
                info.source_mesh if sends else info.target_mesh,
                transfer=action.tag,
                source_mesh=info.source_mesh,
                target_mesh=info.target_mesh,
                bytes=num_bytes(info.target),
            )


# A step's actions bound to devices: prepared calls that one loop starts.

MAX_IN_FLIGHT = 32


class ProgramsInFlight:
    """Keeps the number of started programs bounded: XLA's thread pool is finite.

    Attributes:
        added: programs so far.
        started: a result of each of the last ones, in order.
    """

    def __init__(self, limit: int) -> None:
        self.limit: int = max(1, limit)
        self.added: int = 0
        self.started: deque[jax.Array] = deque()

    def add(self, array: jax.Array) -> None:
        self.added += 1
        self.started.append(array)
        while len(self.started) > self.limit:
            oldest = self.started[0]
            if not oldest.is_deleted():  # given to a later program, which is in here as well
                try:
                    oldest.block_until_ready()
                except RuntimeError as error:
                    # A shard that somebody reads is copied instead, and the array counts as there.
                    if not says_donated(error):
                        raise
            self.started.popleft()


def donations(
    plan: Plan, step: MergedStep, donate_state: bool
) -> dict[tuple[int, str], tuple[tuple[int, int], ...]]:
    """For each (stage, function): pairs (input, output) where the output takes the buffer.

    Inputs that are added to outputs (`Run.sums`) count on behind the function's own. An input
    gives its buffer away when every call of the function is its last use, and the caller's arrays
    do only if they are carried state and `donate_state` is set.
    """
    given: dict[tuple[int, str], set[int]] = {}
    origin_arg = {a.value: a.arg for a in step.actions if isinstance(a, Place)}

    def free_to_give(run: Run, value: int) -> bool:
        if value not in run.last or run.inputs.count(value) > 1:
            return False
        if value not in origin_arg:
            return True
        return donate_state and plan.inputs[origin_arg[value]].carried_by is not None

    for action in step.actions:
        if isinstance(action, Run):
            now = {i for i, v in enumerate(action.inputs) if free_to_give(action, v)}
            key = (action.stage, action.function)
            given[key] = given[key] & now if key in given else now
    result: dict[tuple[int, str], tuple[tuple[int, int], ...]] = {}
    carried = _carried_pairs(plan, step, origin_arg)
    sums = sums_of(step)
    for (stage, name), inputs in given.items():
        function = plan.stages[stage].functions[name]
        own = len(function.inputs)
        taken = {j: own + k for k, j in enumerate(sums[stage, name]) if own + k in inputs}
        inputs = {i for i in inputs if i < own}
        for i in sorted(inputs):  # first the buffer of the same piece of state
            j = carried.get((stage, name), {}).get(i)
            if j is not None and function.inputs[i] == function.outputs[j]:
                taken[j] = i
        for i in sorted(inputs - set(taken.values())):
            for j, tensor in enumerate(function.outputs):
                if j not in taken and tensor == function.inputs[i]:
                    taken[j] = i
                    break
        result[stage, name] = tuple(sorted((i, j) for j, i in taken.items()))
    return result


def _carried_pairs(
    plan: Plan, step: MergedStep, origin_arg: dict[int, int]
) -> dict[tuple[int, str], dict[int, int]]:
    """Where a function reads a state argument and makes its next value: input to output."""
    next_value = {
        a.value: step.results[carried][0]
        for a in step.actions
        if isinstance(a, Place)
        and (carried := plan.inputs[a.arg].carried_by) is not None
        and step.results[carried]
    }
    pairs: dict[tuple[int, str], dict[int, int]] = {}
    for action in step.actions:
        if isinstance(action, Run):
            for i, value in enumerate(action.inputs):
                made = next_value.get(value)
                if value in origin_arg and made in action.outputs:
                    found = pairs.setdefault((action.stage, action.function), {})
                    found[i] = action.outputs.index(made)
    return pairs


def action_jobs(plan: Plan, step: MergedStep) -> dict[int, Job]:
    """The programs of those actions that are neither stages' functions nor copies, by number."""
    jobs: dict[int, Job] = {}
    for number, action in enumerate(step.actions):
        match action:
            case Accumulate():
                jobs[number] = _accumulate_job(plan, step, action)
            case Zero():
                jobs[number] = _zero_job(plan, step, action)
            case Reshard():
                jobs[number] = _reshard_job(plan, step, action)
            case _:
                pass
    return jobs


def _job(
    plan: Plan,
    what: str,
    mesh: int,
    arguments: Sequence[tuple[str, TensorSpec, str]],
    body: Sequence[str],
    results: Sequence[tuple[str, TensorSpec]],
) -> Job:
    """A program on whole tensors.

    Args:
        arguments: name, form and further attributes of each.
        results: name and form of each.
    """
    given = [f"{n}: {mlir_type(t)} {{{sharding_text(t)}{more}}}" for n, t, more in arguments]
    gives = ", ".join(f"{mlir_type(t)} {{{sharding_text(t)}}}" for _, t in results)
    names, types = ", ".join(n for n, _ in results), ", ".join(mlir_type(t) for _, t in results)
    text = "\n".join(
        (
            f"module @{what} {{",
            f"  {mesh_text(plan.meshes[mesh])}",
            f"  func.func public @main({', '.join(given)}) -> ({gives}) {{",
            *[f"    {line}" for line in body],
            f"    return {names} : {types}",
            "  }",
            "}",
        )
    )
    inputs, outputs = tuple(t for _, t, _ in arguments), tuple(t for _, t in results)
    return Job(f"mesh {mesh} {what}", text, mesh, inputs, outputs, of_stage=False)


def given_lefts(action: Accumulate) -> set[int]:
    """The left operands whose buffers the sums take over."""
    reads = [v for _, left, right in action.sums for v in (left, right)]
    return {left for _, left, _ in action.sums if left in action.last and reads.count(left) == 1}


def _accumulate_job(plan: Plan, step: MergedStep, action: Accumulate) -> Job:
    """The program of a group of accumulations: left arguments first, then right ones."""
    tensors = [step.values[value].tensor for value, _, _ in action.sums]
    given_away = given_lefts(action)
    arguments: list[tuple[str, TensorSpec, str]] = []
    for i, (tensor, (_, left, _)) in enumerate(zip(tensors, action.sums, strict=True)):
        aliasing = f", tf.aliasing_output = {i} : i32" if left in given_away else ""
        arguments.append((f"%l{i}", tensor, aliasing))
    arguments += [(f"%r{i}", tensor, "") for i, tensor in enumerate(tensors)]
    body = [
        f"%s{i} = {sum_text(tensor.dtype)} %l{i}, %r{i} : {mlir_type(tensor)}"
        for i, tensor in enumerate(tensors)
    ]
    results = [(f"%s{i}", tensor) for i, tensor in enumerate(tensors)]
    return _job(plan, "accumulate", action.mesh, arguments, body, results)


def _zero_job(plan: Plan, step: MergedStep, action: Zero) -> Job:
    tensors = [step.values[value].tensor for value in action.values]
    mesh = step.values[action.values[0]].mesh
    body = [
        f"%z{i} = stablehlo.constant dense<{zero_text(tensor.dtype)}> : {mlir_type(tensor)}"
        for i, tensor in enumerate(tensors)
    ]
    return _job(plan, "zero", mesh, [], body, [(f"%z{i}", t) for i, t in enumerate(tensors)])


def _reshard_job(plan: Plan, step: MergedStep, action: Reshard) -> Job:
    value, source = step.values[action.value], step.values[action.source].tensor
    return _job(plan, "reshard", value.mesh, [("%x", source, "")], [], [("%x", value.tensor)])


_jax: Any = jax
_jnp: Any = jax.numpy
Buffers = list[Any]
Bound = Callable[[Buffers], None]
# Gives the part of one micro-batch (None: all) of a batch argument, sharded as is said.
Feed = Callable[[Place, NamedSharding], jax.Array]

# Behind the values in a step's buffers.
_FEED, _TICKETS = -1, -2


@dataclass(frozen=True)
class Ends:
    """A worker's ends for transfers with others.

    Attributes:
        parts: what it does of each reshard, by number; none where it does all or nothing.
        devices: its own devices, by number of the plan.
    """

    parts: Mapping[int, ReshardPart]
    devices: Mapping[int, Device]
    wires: PointToPoint


class BoundStep:
    """A step, or a worker's share of it, on devices. Calls return before the work is done.

    Attributes:
        shardings: of each value; None where none of its mesh's devices is used here.
        state_places: where state is taken from arrays that the caller has placed.
        given: values of such places that a call uses up.
        recorder: None where nothing is recorded.
        started: the actions of a call, in order, by number.
        calls: those that the call under way has still to start; `length_hint` counts them.
        first_places: where each input is wanted first.
        cutters: for each value that is placed, what puts it on devices from the host.
    """

    def __init__(
        self,
        plan: Plan,
        step: MergedStep,
        meshes: Mapping[int, Mesh],
        stages: Mapping[tuple[int, str], Program],
        others: Mapping[int, Program],
        donated: Mapping[tuple[int, str], Sequence[tuple[int, int]]],
        backend: Backend,
        max_in_flight: int,
        ends: Ends | None,
        apart: Callable[[], BoundStep] | None = None,
    ) -> None:
        self.plan = plan
        self.step = step
        self.stages = stages
        self._make_apart = apart
        self._apart: BoundStep | None = None  # While steps are recorded.
        self.flight: ProgramsInFlight = ProgramsInFlight(max_in_flight)
        self.shardings: list[Any | None] = [
            named_sharding(meshes[v.mesh], v.tensor) if v.mesh in meshes else None
            for v in step.values
        ]
        self._meshes = meshes
        self._backend = backend
        self._ends = ends
        self._movers: dict[int, Move] = {}
        self._parts: dict[int, BoundPart] = {}
        places = [a for a in step.actions if isinstance(a, Place)]
        self.first_places: dict[int, NamedSharding] = {}
        for place in places:
            self.first_places.setdefault(place.arg, self._target(place.value))
        self.cutters: dict[int, Cutter] = {place.value: self._cutter(place) for place in places}
        self.state_places: list[Place] = [a for a in places if plan.inputs[a.arg].kind == "state"]
        self.batch_places: list[Place] = [a for a in places if plan.inputs[a.arg].kind != "state"]
        self.given: set[int] = {
            a.value for a in self.state_places if plan.inputs[a.arg].carried_by is not None
        }
        self._sent = {a.source for a in step.actions if isinstance(a, Send)}
        self.started: dict[int, Action] = {
            i: action
            for i, action in enumerate(step.actions)
            if not (isinstance(action, Place) and plan.inputs[action.arg].kind == "state")
        }
        self._steps = [
            self._bind(action, others.get(i), donated) for i, action in self.started.items()
        ]
        self.calls: Iterator[Bound] = iter(())
        self._donated = donated
        self.recorder: Recorder | None = None
        self._finish = [self._finisher(result) for result in step.results]
        results = {v for result in step.results for v in result}
        self._sent_results = sorted(results & self._sent)
        self._unfinished: list[Ticket] = []

    def __call__(self, states: Mapping[int, jax.Array], feed: Feed) -> list[jax.Array | None]:
        """Start everything.

        Args:
            states: an array for each value of `state_places`, sharded as `shardings` says; those
                of `given` are used up.
            feed: called for each part of a batch when it is needed.

        Returns:
            One array for each result of the plan; None where no part of it is made here.
        """
        if self._apart is not None:
            return self._apart(states, feed)
        for ticket in self._unfinished:
            ticket.wait()
        buffers: Buffers = [None] * (len(self.step.values) + 2)
        for value, array in states.items():
            buffers[value] = array
        buffers[_FEED] = feed
        tickets: dict[int, list[Ticket]] = {}
        buffers[_TICKETS] = tickets
        self.calls = calls = iter(self._steps)
        if self.recorder is None:
            for call in calls:
                call(buffers)
        else:
            self.recorder.run(calls, buffers)
        self._unfinished = [t for value in self._sent_results for t in tickets.get(value, ())]
        return [finish(buffers) for finish in self._finish]

    @property
    def platform(self) -> str:
        """What programs for its devices are lowered for: `cpu`, `cuda`, `rocm`."""
        mesh = next(iter(self._meshes.values()))
        return lowering_platform(mesh_devices(mesh)[0])

    def devices_of(self, mesh: int) -> tuple[Device, ...]:
        """The devices of a mesh, in row-major order."""
        return tuple(mesh_devices(self._meshes[mesh]))

    def run_once(self, jobs: Sequence[Job], arguments: Sequence[Any]) -> list[list[jax.Array]]:
        """Compile and run programs beside the step's on its meshes; see `run_once`."""
        return run_once(jobs, arguments, self._meshes, self._backend)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes on each device that XLA needs for each function, by `stage/function`."""
        return {f"{s}/{name}": e.memory_bytes() for (s, name), e in self.stages.items()}

    def memory_stats(self) -> dict[str, dict[str, int]]:
        """The same in parts, as XLA has them."""
        return {f"{s}/{name}": e.memory_stats() for (s, name), e in self.stages.items()}

    def peak_bytes(self, donate_state: bool) -> dict[int, int]:
        """The most that a device of each own mesh holds in a step, by the compiler's count."""
        needed = {key: program.memory_bytes() for key, program in self.stages.items()}
        peaks = compiled_peaks(self.plan, self.step, needed, donate_state)
        return {peak.mesh: peak.bytes for peak in peaks if peak.mesh in self._meshes}

    def start_trace(self) -> None:
        """Record what the following calls do. A step in one program runs as several meanwhile,
        which are compiled now.

        Raises:
            ArgumentMismatchError: they are recorded already.
        """
        if self.recorder is None and self._apart is None and self._make_apart is not None:
            self._apart = self._make_apart()
            self._apart.start_trace()
            return
        if self.recorder is not None or self._apart is not None:
            raise ArgumentMismatchError(
                "the steps of this plan are recorded already",
                where="step.record",
                fix="leave the first `with` before the second",
            )
        used: set[int] = set()
        for action in self.started.values():
            match action:
                case Run():
                    given = self._donated.get((action.stage, action.function), ())
                    used.update(action.inputs[i] for i, _ in given)
                case Accumulate():
                    used |= given_lefts(action)
                case _:
                    pass
        self.recorder = Recorder(self.plan, self.step, list(self.started.values()), used)

    def stop_trace(self) -> list[Event]:
        """What was recorded, when all of it is done."""
        apart, self._apart = self._apart, None
        if apart is not None:
            return apart.stop_trace()
        recorder, self.recorder = self.recorder, None
        return [] if recorder is None else recorder.stop()

    def _bind(
        self,
        action: Action,
        executable: Program | None,
        donated: Mapping[tuple[int, str], Sequence[tuple[int, int]]],
    ) -> Bound:
        given: set[int] = set()
        match action:
            case Place():
                return self._bind_place(action)
            case Copy():
                return self._bind_copy(action)
            case Send():
                return self._bind_send(action)
            case Exchange():
                return self._bind_exchange(action)
            case Run():
                key = action.stage, action.function
                executable = self.stages[key]
                inputs = action.inputs
                given = {inputs[i] for i, _ in donated.get(key, ())}
            case Accumulate():
                lefts = tuple(left for _, left, _ in action.sums)
                inputs = lefts + tuple(right for _, _, right in action.sums)
                given = given_lefts(action)
            case Zero():
                inputs = ()
            case Reshard():
                inputs = (action.source,)
        assert executable is not None
        call = _bind_call(executable.call, inputs, action.makes, action.last, self.flight)
        waited = sorted(given & self._sent)
        return _after_sends(call, waited) if waited else call

    def _cutter(self, place: Place) -> Cutter:
        value = self.step.values[place.value]
        rows = (place.micro_batch or 0) * (value.tensor.shape[0] if value.tensor.shape else 0)
        info, mesh = self.plan.meshes[value.mesh], self._meshes[value.mesh]
        return Cutter(value.tensor, info, mesh, rows)

    def _target(self, value: int) -> NamedSharding:
        sharding = self.shardings[value]
        assert sharding is not None
        return sharding

    def _bind_place(self, place: Place) -> Bound:
        target, value = self._target(place.value), place.value

        def run(buffers: Buffers) -> None:
            buffers[value] = buffers[_FEED](place, target)

        return run

    def _bind_copy(self, copy: Copy) -> Bound:
        move = self._movers.get(copy.by)
        if move is None:
            source, target = self._target(copy.source), self._target(copy.value)
            info = self.plan.reshards[copy.by]
            move = self._movers[copy.by] = bind_reshard(info, self.plan.meshes, source, target)
        sent, value, last = copy.source, copy.value, copy.last

        def run(buffers: Buffers) -> None:
            buffers[value] = move(buffers[sent])
            for v in last:
                buffers[v] = None

        return run

    def part_of(self, by: int) -> ReshardPart:
        """What this worker does of a reshard between workers."""
        assert self._ends is not None
        return self._ends.parts[by]

    def _part(self, by: int) -> BoundPart:
        """The same, on its devices."""
        part = self._parts.get(by)
        if part is None:
            ends, info = self._ends, self.plan.reshards[by]
            assert ends is not None
            mesh = self._meshes.get(info.target_mesh)
            part = self._parts[by] = bind_part(
                info,
                self.plan.meshes,
                self.part_of(by),
                ends.devices,
                None if mesh is None else named_sharding(mesh, info.target),
                ends.wires,
            )
        return part

    def _number(self, action: Send | Exchange) -> int:
        """One for each copy of the step, the same in all workers."""
        return action.tag * len(self.plan.reshards) + action.by

    def _bind_send(self, send: Send) -> Bound:
        start = self._part(send.by).send
        source, number, last = send.source, self._number(send), send.last

        def run(buffers: Buffers) -> None:
            tickets = start(buffers[source], number)
            if tickets:
                buffers[_TICKETS].setdefault(source, []).extend(tickets)
            for v in last:
                buffers[v] = None

        return run

    def _bind_exchange(self, action: Exchange) -> Bound:
        part = self._part(action.by)
        finish = part.finish
        source = action.source if part.reads_source else None
        value, number, last = action.value, self._number(action), action.last

        def run(buffers: Buffers) -> None:
            made = finish(None if source is None else buffers[source], number)
            if value is not None:
                buffers[value] = made
            for v in last:
                buffers[v] = None

        return run

    def _finisher(self, result: tuple[int, ...]) -> Callable[[Buffers], jax.Array | None]:
        sharding = self.shardings[result[0]] if result else None
        if sharding is None:
            return lambda buffers: None
        if len(result) == 1:
            return lambda buffers: buffers[result[0]]
        join = _jax.jit(_jnp.concatenate, out_shardings=sharding)
        return lambda buffers: join([buffers[v] for v in result])


def bind_step(
    plan: Plan,
    step: MergedStep,
    meshes: Mapping[int, Mesh],
    *,
    donate_state: bool,
    max_in_flight: int,
    backend: Backend,
    progress: Progress | None,
    ends: Ends | None = None,
    in_one: bool = True,
) -> BoundStep:
    """Compile what a step runs and bind it to the devices of meshes.

    Args:
        step: of one process (`merge_step`) or of a worker (`worker_step`).
        meshes: those of which this process has devices, by number.
        in_one: whether a step of one mesh runs as one program where it can (`whole_step`).

    Raises:
        PlanMismatchError: a module lacks a function, or is another one than the tables say.
        InfeasiblePlanError: a stage needs more memory than its devices have.
    """
    donated = donations(plan, step, donate_state)
    stages = stage_jobs(plan, donated, sums_of(step))
    in_one = in_one and backend.name == "xla"
    if in_one and (joined := whole_step(plan, step, stages, donate_state)):
        whole, jobs_of_one = joined
        compiled = compile_jobs(list(jobs_of_one.values()), meshes, progress, backend)
        programs = dict(zip(jobs_of_one, compiled, strict=True))

        def apart() -> BoundStep:
            return bind_step(
                plan,
                step,
                meshes,
                donate_state=donate_state,
                max_in_flight=max_in_flight,
                backend=backend,
                progress=None,
                in_one=False,
            )

        try:
            check_memory(plan, whole, programs, meshes, donate_state)
        except InfeasiblePlanError as error:
            _log.info("the step runs as several programs: in one, %s", error)
            return apart()
        return BoundStep(plan, whole, meshes, programs, {}, {}, backend, max_in_flight, None, apart)
    others = action_jobs(plan, step)
    jobs: list[Job] = [*stages.values(), *others.values()]
    compiled = compile_jobs(jobs, meshes, progress, backend)
    programs = dict(zip(stages, compiled[: len(stages)], strict=True))
    check_memory(plan, step, programs, meshes, donate_state)
    return BoundStep(
        plan,
        step,
        meshes,
        programs,
        dict(zip(others, compiled[len(stages) :], strict=True)),
        donated,
        backend,
        max_in_flight,
        ends,
    )


def _bind_call(
    execute: Callable[[list[Any]], list[jax.Array]],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    last: tuple[int, ...],
    flight: ProgramsInFlight,
) -> Bound:
    def run(buffers: Buffers) -> None:
        made = execute([buffers[v] for v in inputs])
        for v, array in zip(outputs, made, strict=True):
            buffers[v] = array
        for v in last:
            buffers[v] = None
        if made:
            flight.add(made[0])

    return run


def _after_sends(call: Bound, values: Sequence[int]) -> Bound:
    """The call gives buffers away that may be on their way to another worker."""

    def run(buffers: Buffers) -> None:
        tickets = buffers[_TICKETS]
        for value in values:
            for ticket in tickets.pop(value, ()):
                ticket.wait()
        call(buffers)

    return run
