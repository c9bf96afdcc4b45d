"""A worker: runs its share of a plan's steps, and keeps arrays between them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy
from jax.sharding import NamedSharding

from alpa_runtime.backends import make_backend
from alpa_runtime.backends.interface import Job, Progress
from alpa_runtime.backends.xla import Device
from alpa_runtime.cache import CacheLike
from alpa_runtime.devices import mesh_on
from alpa_runtime.errors import (
    AlpaError,
    DevicesError,
    PlacementError,
    TransportError,
    WorkerError,
    is_out_of_memory,
    worker_error,
)
from alpa_runtime.execution.executor import (
    MAX_IN_FLIGHT,
    BoundStep,
    Ends,
    Event,
    bind_step,
    clock,
    describe,
)
from alpa_runtime.execution.host_shards import (
    Filling,
    RowFilling,
    StackFilling,
    parts_of,
    shifted,
)
from alpa_runtime.execution.program_merge import (
    Accumulate,
    Action,
    Exchange,
    Place,
    Reshard,
    Run,
    Send,
    Zero,
    meshes_of_inputs,
    remote_parts,
    worker_step,
)
from alpa_runtime.execution.reshard_steps import Incoming
from alpa_runtime.execution.transfers import PointToPoint
from alpa_runtime.foreign_errors import says_used_up
from alpa_runtime.jax_internals import as_any
from alpa_runtime.plan import Plan
from alpa_runtime.plan.reshard import Box
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.transport.device import DeviceTransport
from alpa_runtime.transport.interface import Transport
from alpa_runtime.version import VERSION
from alpa_runtime.worker_group import Held, Parts, Placement, StepReply, StepRequest

if TYPE_CHECKING:
    from alpa_runtime.checkpoint.shards import Copies, RestoreTask, SaveTask


_jax: Any = jax


def check_ends(placement: Placement, rank: int, transport: Transport | None) -> None:
    """Whether a worker is one of its placement, and can reach the others."""
    if not 0 <= rank < placement.size:
        raise PlacementError(f"rank {rank} of {placement.size} workers")
    if transport is None and placement.size > 1:
        raise PlacementError(
            f"{placement.size} workers without a transport",
            where=f"worker {rank}",
            fix="give each worker a connected end of a transport",
        )
    if transport is not None and transport.rank != rank:
        raise PlacementError(f"a transport of rank {transport.rank}", where=f"worker {rank}")


def check_devices(
    plan: Plan, placement: Placement, rank: int, devices: Mapping[int, Device]
) -> None:
    """Whether a worker has a device for each number of its meshes, its own in its own process."""
    where = f"worker {rank} of plan {plan.name}"
    seen: dict[Any, int] = {}
    for mesh in placement.meshes_of(plan, rank):
        for number in plan.meshes[mesh].devices:
            device = devices.get(number)
            if device is None:
                raise DevicesError(
                    f"device {number} of mesh {mesh} is missing",
                    where=where,
                    fix="start the worker with as many devices as its placement says",
                )
            if seen.setdefault(device, number) != number:
                raise DevicesError(
                    f"device {device} is given twice, as {seen[device]} and {number}", where=where
                )
            owner = placement.owners[number]
            here = device.process_index == _jax.process_index()
            if here != (owner == rank):
                raise DevicesError(
                    f"device {number} is worker {owner}'s, but {device} is one of "
                    + ("this process" if here else f"process {device.process_index}"),
                    where=where,
                    fix="place each mesh on one worker, or start workers as processes of one world",
                )


class FailedValues:
    """Looks for values of this process that hold an error.

    A program of XLA on the CPU that finds no memory for one result says so to who reads that
    result; who reads another one of its results waits forever (jaxlib 0.10). The error is there to
    be found, though, as long as the value is.
    """

    def __init__(self) -> None:
        self._settled = -1

    def look(self, begun: int | None) -> Exception | None:
        """An error that a value holds, if there is one.

        Args:
            begun: what has been begun so far; once all of its values are there, they are looked at
                no more. None while something is being started.
        """
        if begun == self._settled:
            return None
        waiting = False
        for array in _jax.live_arrays():
            try:
                if array.is_ready():
                    array.block_until_ready()
                else:
                    waiting = True
            except RuntimeError as error:
                # Arrays are used up and given away meanwhile.
                if not says_used_up(error):
                    return error
        if not waiting and begun is not None:
            self._settled = begun
        return None


# How an array is held: mesh, form, and the micro-batch if it is one's part.
Form = tuple[int, TensorSpec, int | None]
# An array may be held in several forms, where several meshes or micro-batches read it.
HeldForms = Mapping[Form, jax.Array]

_REMEMBERED = 1 << 16  # Arrays that are gone, for the message of an error.


class ArrayStore:
    """Arrays by number, for several threads; it says why there will be no more once there are.

    Args:
        rank: of the worker, for messages.
    """

    def __init__(self, rank: int) -> None:
        self.error: BaseException | None = None
        self._rank = rank
        self._changed = threading.Condition()
        self._arrays: dict[int, HeldForms] = {}
        self._gone: deque[int] = deque(maxlen=_REMEMBERED)
        self._closed = False

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, uid: int) -> HeldForms | None:
        """An array, if it is here."""
        return self._arrays.get(uid)

    def keep(self, arrays: Mapping[int, HeldForms]) -> None:
        """Add arrays."""
        with self._changed:
            self._arrays.update(arrays)
            self._changed.notify_all()

    def free(self, uids: Iterable[int]) -> None:
        """Drop arrays that nobody needs any more."""
        with self._changed:
            for uid in uids:
                if self._arrays.pop(uid, None) is not None:
                    self._gone.append(uid)
            self._changed.notify_all()

    def awaited(self, uid: int) -> HeldForms:
        """An array; waits until it is here.

        Raises:
            WorkerError, TransportError: it is gone, or will never come.
        """
        with self._changed:
            self._changed.wait_for(lambda: uid in self._arrays or uid in self._gone or self.is_over)
            found = self._arrays.get(uid)
        if found is None:
            self.check_open()
            raise WorkerError(f"array {uid} is gone", where=f"worker {self._rank}")
        return found

    @property
    def is_over(self) -> bool:
        """Whether no array will be added."""
        return self._closed or self.error is not None

    def fail(self, error: BaseException) -> bool:
        """Nothing more will come, for this reason; False if there is one already."""
        with self._changed:
            if self.is_over:
                return False
            self.error = error
            self._changed.notify_all()
        return True

    def close(self) -> bool:
        """Drop everything; False if that has been done."""
        with self._changed:
            if self._closed:
                return False
            self._closed = True
            self._arrays.clear()
            self._changed.notify_all()
        return True

    def check_open(self) -> None:
        """Raises what ended it: of another worker's failure a TransportError, else a
        WorkerError."""
        if (error := self.error) is not None:
            kind = TransportError if isinstance(error, TransportError) else WorkerError
            raise kind(f"failed before: {error}", where=f"worker {self._rank}") from error
        if self._closed:
            raise WorkerError("is closed", where=f"worker {self._rank}")


_jnp: Any = jax.numpy


class StepInputs:
    """Finds and places the inputs of steps.

    Args:
        donate_state: a step uses up carried state.
        where: the worker, for messages.
    """

    def __init__(self, bound: BoundStep, store: ArrayStore, donate_state: bool, where: str) -> None:
        self._bound = bound
        self._store = store
        self._donate = donate_state
        self._where = where

    def form(self, place: Place) -> Form:
        """How a place holds its input."""
        value = self._bound.step.values[place.value]
        return value.mesh, value.tensor, place.micro_batch

    def state(self, place: Place, request: StepRequest) -> jax.Array:
        """The array of a place that takes state."""
        given, target = self._given(place, request), self._bound.shardings[place.value]
        if not isinstance(given, Held):
            return self._bound.cutters[place.value].put(given, self._name(place))
        array = self._held(place, given.uid, target)
        is_given = self._donate and place.value in self._bound.given
        return _jnp.copy(array) if given.copy and is_given else array

    def batch(self, place: Place, request: StepRequest, target: NamedSharding) -> jax.Array:
        """The array of a place that takes a part of a batch."""
        given = self._given(place, request)
        if isinstance(given, Held):
            return self._held(place, given.uid, target)
        return self._bound.cutters[place.value].put(given, self._name(place))

    def _name(self, place: Place) -> str:
        return f"{self._where}: {self._bound.plan.inputs[place.arg].name}"

    def _given(self, place: Place, request: StepRequest) -> Held | Parts:
        given = request.inputs.get(place.arg)
        if given is None:
            raise WorkerError("has not been given", where=self._name(place))
        return given

    def _held(self, place: Place, uid: int, target: NamedSharding | None) -> jax.Array:
        """An array that is here, as the place wants it."""
        arrays = self._store.get(uid)
        if arrays is None:
            raise WorkerError(f"array {uid} is not here", where=self._name(place))
        mesh, tensor, micro_batch = form = self.form(place)
        array = arrays.get(form)
        if array is not None:
            return array
        for (held_mesh, held, part), candidate in arrays.items():
            if (held_mesh, part) == (mesh, micro_batch) and held.shape == tensor.shape:
                return _jax.jit(_same, out_shardings=target)(candidate)
        raise WorkerError(
            f"array {uid} is not on mesh {mesh} as {tensor.as_text()}", where=self._name(place)
        )


def _same(x: jax.Array) -> jax.Array:
    return x


_PROGRAMS = (Run, Accumulate, Zero, Reshard)


class WorkInFlight:
    """Looks at the steps of one worker.

    Args:
        step: the worker's share.
        placement: who has which mesh.
        rank: of the worker.
        wires: its connections to others, if there are any.
    """

    def __init__(
        self, bound: BoundStep, placement: Placement, rank: int, wires: PointToPoint | None
    ) -> None:
        self._bound = bound
        self._placement = placement
        self._rank = rank
        self._wires = wires
        self._actions: list[Action] = list(bound.started.values())
        self._programs = [
            action for action in self._actions if isinstance(action, _PROGRAMS) and action.makes
        ]
        self._taking_time = 0

    @contextlib.contextmanager
    def takes_time(self) -> Generator[None]:
        """What is done within, such as compiling, may take as long as it takes."""
        self._taking_time += 1
        try:
            yield
        finally:
            self._taking_time -= 1

    def mark(self, stepping: bool) -> tuple[int, ...] | None:
        """Differs from the last one if anything was done meanwhile; None if all is done.

        Args:
            stepping: the worker is in a step.
        """
        if self._taking_time:
            return (time.monotonic_ns(),)
        flight = self._bound.flight
        left, unfinished = length_hint(self._bound.calls), _unfinished(flight.started)
        if not stepping and not unfinished:
            return None
        messages = 0 if self._wires is None else self._wires.messages
        return left, flight.added, len(unfinished), messages

    def waits_for(self, step: int, stepping: bool, counted_from: int) -> str:
        """What keeps the worker, in words.

        Args:
            step: the number of the step under way, or of the next one.
            counted_from: what the step of number 0 is called.

        Example: "in step 4 at instruction 3 of 8: receive 0 on mesh 1, from worker 0".
        """
        step += counted_from
        found: list[str] = []
        count = len(self._actions)
        position = count - length_hint(self._bound.calls) - 1
        if stepping and 0 <= position < count:
            action = self._actions[position]
            where = f"in step {step} at instruction {position + 1} of {count}"
            found.append(f"{where}: {self._name(action)}")
        flight = self._bound.flight
        unfinished = _unfinished(flight.started)
        if unfinished and self._programs:
            oldest = flight.added - len(flight.started) + unfinished[0]
            number, program = divmod(oldest, len(self._programs))
            name = self._name(self._programs[program])
            found.append(f"not done of step {number + counted_from}: {name}")
        return "; ".join(found) or f"done with all before step {step}"

    def _name(self, action: Action) -> str:
        plan = self._bound.plan
        event = describe(plan, self._bound.step, action)
        match action:
            case Exchange():
                part = self._bound.part_of(action.by).then
                verb, peers = "from", {op.source for op in part if isinstance(op, Incoming)}
            case Send():
                verb, peers = "to", {op.to for op in self._bound.part_of(action.by).first}
            case _:
                ranks = self._placement.ranks_of(self._bound.plan, event.mesh)
                verb, peers = "with", set(ranks) - {self._rank}
        whom = f", {verb} {_workers(peers)}" if peers else ""
        return f"{event.name} on mesh {event.mesh}{whom}"


def _workers(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"worker{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _unfinished(arrays: Iterable[Any]) -> list[int]:
    """The places, in a queue that another thread changes, of arrays that are not there yet."""
    found: list[int] = []
    while True:
        try:
            there = list(arrays)
            break
        except RuntimeError:  # It was changed meanwhile.
            continue
    for i, array in enumerate(there):
        try:
            if not array.is_ready():
                found.append(i)
        except RuntimeError:  # Given to a later program, which is in the queue as well.
            continue
    return found


# Results of at most this size are sent along with the reply to a later step.
SMALL_BYTES = 4096


class Worker:
    """The share of one process in the steps of a plan.

    Methods are called one after the other, except for those of `BESIDE`.

    Args:
        plan: with the modules of this worker's stages at least (`part_of_plan`).
        rank: which of the placement's workers this is.
        devices: device of JAX for each device number of this worker's meshes; some of them may
            belong to other processes of one world of `jax.distributed`.
        transport: a connected end with this rank; None where there is one worker only.
        donate_state: a step uses up the carried state that it is given.
        max_in_flight: programs that may be started and not finished.
        backend, cache: who compiles, and whether programs are kept on disk, as in
            `loaded_plan.load`.
        progress: called with (done, total, label) as programs are compiled.
        device_transport: what reaches devices of other workers, over `transport`.

    Raises:
        PlanMismatchError: the parts of the plan contradict each other.
        PlacementError: the placement is not one of this plan.
        DevicesError: devices are missing, given twice, or those of another process.
    """

    # Methods that wait, and may be called while others run.
    BESIDE: ClassVar[frozenset[str]] = frozenset({"fetch", "wait", "ping", "write_copies"})

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        rank: int,
        devices: Mapping[int, Device],
        transport: Transport | None,
        *,
        donate_state: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        backend: str = "auto",
        cache: CacheLike = True,
        progress: Progress | None = None,
        device_transport: DeviceTransport | None = None,
    ) -> None:
        self.rank = rank
        self._plan = plan
        self._donate = donate_state
        self._transport = transport
        placement.check(plan)
        check_ends(placement, rank, transport)
        check_devices(plan, placement, rank, devices)
        own = {number: devices[number] for number in placement.workers[rank]}
        share = worker_step(plan, placement, rank)
        meshes = {m: mesh_on(plan.meshes[m], devices) for m in placement.meshes_of(plan, rank)}
        self._store = ArrayStore(rank)
        ends = None
        if transport is not None:
            self._wires = PointToPoint(transport, self._fail, device_transport)
            parts = remote_parts(plan, share, placement, rank)
            ends = Ends(parts, own, self._wires)
        else:
            self._wires = None
        self._bound = bind_step(
            plan,
            share,
            meshes,
            donate_state=donate_state,
            max_in_flight=max_in_flight,
            backend=make_backend(backend, cache, plan.binaries),
            progress=progress,
            ends=ends,
        )
        self._under_way = WorkInFlight(self._bound, placement, rank, self._wires)
        self._inputs = StepInputs(self._bound, self._store, donate_state, f"worker {rank}")
        self._read_on = meshes_of_inputs(plan)
        carried = {info.carried_by for info in plan.inputs}
        self._prefetched = set(range(len(plan.outputs))) - carried
        self._placed: dict[int, int] = {}  # Inputs that arrays were put for.
        self._small: deque[tuple[int, jax.Array]] = deque()
        self._copies: dict[str, Copies] = {}
        self._next = 0
        self._counted_from = 0
        self._begun = 0  # Steps and other work that starts programs.
        self._stepping = False
        self._failed = FailedValues()
        if self._wires is not None:
            self._wires.open(own)

    def put(self, uid: int, index: int, shards: Parts) -> None:
        """Keep parts of input `index` of the plan on this worker's devices, under a number.

        Args:
            shards: what lies where in the whole array; they may hold more than is needed, and
                must not be changed afterwards.
        """
        self._store.check_open()
        where = f"worker {self.rank}: {self._plan.inputs[index].name}"
        arrays = {
            self._inputs.form(place): self._bound.cutters[place.value].put(shards, where)
            for place in (*self._bound.state_places, *self._bound.batch_places)
            if place.arg == index
        }
        self._placed[uid] = index
        self._store.keep({uid: arrays})

    def copy_state(self, ticket: str, tasks: Sequence[SaveTask]) -> None:
        """Copy what this worker has of arrays that are going to be saved; waits for their values.

        Steps may use them up afterwards.
        """
        from alpa_runtime.checkpoint.shards import copied

        self._store.check_open()
        self._copies[ticket] = copied(
            tasks, lambda uid: next(iter(self._store.awaited(uid).values()))
        )

    def write_copies(self, ticket: str, folder: str) -> dict[int, dict[int, str]]:
        """Write what `copy_state` copied; returns its checksums, as `write_shards` does.

        Raises:
            CheckpointError: it cannot be written.
        """
        return self._copies.pop(ticket).write(folder)

    def drop_copies(self, ticket: str) -> None:
        """Forget what was copied: nobody is going to write it."""
        self._copies.pop(ticket, None)

    def restore(self, folder: str, tasks: Sequence[RestoreTask]) -> None:
        """Read what this worker needs of arrays of a checkpoint, and nothing else.

        Raises:
            CheckpointError: a shard is missing or damaged. Nothing is kept.
        """
        from alpa_runtime.checkpoint.shards import Piece, fill

        self._store.check_open()
        forms: dict[int, dict[Form, Filling]] = {task.index: {} for task in tasks}
        for place in self._bound.state_places:
            if place.arg in forms:
                cutter = self._bound.cutters[place.value]
                forms[place.arg][self._inputs.form(place)] = cutter.filling()
        stacks = {
            t.index: StackFilling(
                list(forms[t.index].values()), t.leaf.shape, self._plan.inputs[t.index].shape[0]
            )
            for t in tasks
            if t.of is not None
        }
        pieces = [
            Piece(
                t.leaf,
                t.dtype,
                t.at,
                list(forms[t.index].values())
                if t.of is None
                else [RowFilling(stacks[t.index], t.of)],
            )
            for t in tasks
        ]
        with self._under_way.takes_time():
            for _ in fill(Path(folder), pieces):
                pass
        for uid, index in {task.uid: task.index for task in tasks}.items():
            self._placed[uid] = index
            made = {form: filling.array() for form, filling in forms[index].items()}
            self._store.keep({uid: made})

    def step(self, request: StepRequest) -> StepReply:
        """Start a step; returns when all of it is started, not when it is done.

        Steps come in the order of their numbers, and ask every worker of the plan. A step that
        fails ends the worker's part in all later ones, and lets the others know.

        Raises:
            WorkerError, TransportError: the step could not be started.
        """
        self._store.check_open()
        self._stepping = True
        self._begun += 1
        self._counted_from = request.counted_from
        try:
            self.free(request.free)
            return self._step(request)
        except BaseException as error:
            self._fail(error)
            cause = self._store.error or error  # A thread that sends may have failed before.
            if isinstance(cause, AlpaError) or not isinstance(cause, Exception):
                raise cause from None
            number = request.number + request.counted_from
            raise worker_error(cause, f"worker {self.rank}, step {number}") from cause
        finally:
            self._stepping = False

    def run_once(
        self, jobs: Sequence[Job], arguments: Sequence[Any], uids: Sequence[Sequence[int]]
    ) -> None:
        """Compile and run programs on this worker's meshes, and keep their results.

        Args:
            arguments: arrays of NumPy, which every device of each program's mesh holds whole.
            uids: for each program those of its results.
        """
        self._store.check_open()
        with self._under_way.takes_time():
            results = self._bound.run_once(jobs, arguments)
        self._begun += 1
        self._store.keep(
            {
                uid: {(job.mesh, tensor, None): array}
                for job, own, made in zip(jobs, uids, results, strict=True)
                for uid, tensor, array in zip(own, job.outputs, made, strict=True)
            }
        )

    def fetch(self, uid: int) -> Parts:
        """What this worker has of an array: part by part, each once over all workers.

        Waits until the array is there and its value too.

        Raises:
            WorkerError: the array is gone, or the worker failed before it was made.
        """
        held = self._store.awaited(uid)
        index = self._placed.get(uid)
        if index is None:
            return parts_of(next(iter(held.values())))
        found: list[tuple[Box, Any]] = []
        for (mesh, tensor, micro_batch), array in held.items():
            if self._read_on.get((index, micro_batch)) == mesh:
                rows = (micro_batch or 0) * (tensor.shape[0] if tensor.shape else 0)
                found += [(shifted(box, rows), data) for box, data in parts_of(array)]
        return tuple(found)

    def wait(self, uid: int) -> None:
        """Waits like `fetch`, and gives nothing."""
        for array in self._store.awaited(uid).values():
            array.block_until_ready()

    def free(self, uids: Iterable[int]) -> None:
        """Drop arrays that nobody needs any more."""
        uids = tuple(uids)
        self._store.free(uids)
        for uid in uids:
            self._placed.pop(uid, None)

    def ping(self) -> dict[str, Any]:
        """Who this is, how far it has come, and what ended it, if something did.

        While something of a step is under way, `progress` changes with all that is done of it.
        """
        error = self._store.error
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "version": VERSION,
            "jax": _jax.__version__,
            "platform": self._bound.platform,
            "step": self._next,
            "progress": self._under_way.mark(self._stepping),
            "arrays": len(self._store),
            "error": None if error is None else worker_error(error, "").what,
            "out_of_memory": error is not None and is_out_of_memory(error),
            "lost_another": isinstance(error, TransportError),
        }

    def waits_for(self) -> str:
        """What keeps this worker, in words: the instruction, and the workers that it concerns."""
        return self._under_way.waits_for(self._next, self._stepping, self._counted_from)

    def notice_failed_values(self) -> None:
        """Fail if a program did while who waits for it does not learn of that: see `FailedValues`.

        Only for a process of its own: it looks at all that JAX has there.
        """
        if not self._store.is_over:
            begun = self._begun  # Read first: a step that begins meanwhile is looked at as well.
            error = self._failed.look(None if self._stepping else begun)
            if error is not None:
                self._fail(error)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes on each device that XLA needs for each function, by `stage/function`."""
        return self._bound.memory_bytes()

    def memory_stats(self) -> dict[str, dict[str, int]]:
        """The same in parts, as XLA has them."""
        return self._bound.memory_stats()

    def peak_bytes(self) -> dict[int, int]:
        """The most that a device of each own mesh holds in a step, by the compiler's count."""
        return self._bound.peak_bytes(self._donate)

    def clock(self) -> int:
        """The clock of recorded events, in nanoseconds."""
        return clock()

    def start_trace(self) -> None:
        """Record the following steps."""
        self._bound.start_trace()

    def stop_trace(self) -> list[Event]:
        """What was recorded, when all of it is done."""
        return self._bound.stop_trace()

    def close(self) -> None:
        """Drop everything and end the connections. May be called twice."""
        if self._store.close():
            self._small.clear()
            if self._transport is not None:
                self._transport.close()
            if self._wires is not None:
                self._wires.close()

    def _fail(self, error: BaseException) -> None:
        """No more steps: others that wait for something from here learn it at once."""
        if self._store.fail(error) and self._transport is not None:
            self._transport.close()

    def _step(self, request: StepRequest) -> StepReply:
        if request.number != self._next:
            raise WorkerError(
                f"step {request.number} where {self._next} is next", where=f"worker {self.rank}"
            )
        inputs = self._inputs
        states = {p.value: inputs.state(p, request) for p in self._bound.state_places}
        if self._donate:
            self._use_up(request)

        def feed(place: Place, target: NamedSharding) -> jax.Array:
            return inputs.batch(place, request, target)

        results = self._bound(states, feed)
        del states
        outputs: dict[int, dict[Form, jax.Array]] = {}
        for index, uid in request.outputs.items():
            array = results[index]
            if array is None:
                raise WorkerError(
                    f"makes nothing of result {self._plan.outputs[index].name}",
                    where=f"worker {self.rank}",
                )
            value = self._bound.step.values[self._bound.step.results[index][0]]
            outputs[uid] = {(value.mesh, value.tensor, None): array}
            if index in self._prefetched and array.nbytes <= SMALL_BYTES:
                array.copy_to_host_async()
                self._small.append((uid, array))
        self._store.keep(outputs)
        self._next += 1
        return StepReply(request.number, self._ready())

    def _use_up(self, request: StepRequest) -> None:
        """Carried state that the step is given has no other name from here on."""
        carried = [
            given.uid
            for index, given in request.inputs.items()
            if isinstance(given, Held)
            and not given.copy
            and self._plan.inputs[index].carried_by is not None
        ]
        self.free(carried)

    def _ready(self) -> dict[int, Parts]:
        """Small results of earlier steps that are there by now; the newest are left to run."""
        found: dict[int, Parts] = {}
        while self._small:
            uid, array = self._small[0]
            if self._store.get(uid) is not None:
                if not as_any(array).is_ready():
                    break
                parts = parts_of(array)
                if parts:
                    found[uid] = parts
            self._small.popleft()
        return found
