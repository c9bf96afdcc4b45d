"""A plan on several workers: one call to each of them a step, arrays stay where they are."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy
import numpy as np
from numpy.typing import NDArray

from alpa_runtime.arrays import DistributedArray
from alpa_runtime.backends.interface import Job
from alpa_runtime.calling_convention import Boundary, check_argument, input_shape, result_shape
from alpa_runtime.errors import (
    ArgumentMismatchError,
    TransportError,
    WorkerError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerStalledError,
    is_out_of_memory,
)
from alpa_runtime.execution.host_shards import assembled, covering, shifted, slices
from alpa_runtime.execution.program_merge import MergedStep, Place, merge_programs
from alpa_runtime.plan import Plan
from alpa_runtime.plan.reshard import Box, held_boxes
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.plan.text import bytes_text
from alpa_runtime.worker_group import (
    Held,
    Parts,
    Placement,
    Reply,
    StepReply,
    StepRequest,
    WorkerGroup,
)

_jnp: Any = jax.numpy


@dataclass(frozen=True)
class InputInWorkers:
    """What workers need of an input.

    Attributes:
        boxes: for each rank, parts of the whole array.
        mesh: the one that all of it goes to; None if that are several.
        tensor: as it is held there.
    """

    boxes: Mapping[int, Sequence[Box]]
    mesh: int | None
    tensor: TensorSpec | None


@dataclass(frozen=True)
class OutputInWorkers:
    """Where a result is made, and its form at the size that the caller sees."""

    mesh: int
    tensor: TensorSpec
    dtype: Any
    ranks: tuple[int, ...]


@dataclass
class CallToWorkers:
    """What a call gives to the workers, as it is put together."""

    inputs: list[dict[int, Held | Parts]]
    drop: list[tuple[int, tuple[int, ...]]] = field(
        default_factory=list[tuple[int, tuple[int, ...]]]
    )
    used_up: dict[int, DistributedArray] = field(default_factory=dict[int, DistributedArray])
    sent: list[DistributedArray] = field(default_factory=list[DistributedArray])


def inputs_in_workers(plan: Plan, placement: Placement, step: MergedStep) -> list[InputInWorkers]:
    """What workers need of each input of the plan."""
    places: list[list[Place]] = [[] for _ in plan.inputs]
    for action in step.actions:
        if isinstance(action, Place):
            places[action.arg].append(action)
    return [_input(plan, placement, step, of_input) for of_input in places]


def _input(
    plan: Plan, placement: Placement, step: MergedStep, places: Sequence[Place]
) -> InputInWorkers:
    boxes: dict[int, list[Box]] = {}
    for place in places:
        value = step.values[place.value]
        rows = (place.micro_batch or 0) * (value.tensor.shape[0] if value.tensor.shape else 0)
        for device, box in held_boxes(value.tensor, plan.meshes[value.mesh]).items():
            boxes.setdefault(placement.owners[device], []).append(shifted(box, rows))
    values = {(step.values[a.value].mesh, step.values[a.value].tensor) for a in places}
    meshes = {mesh for mesh, _ in values}
    return InputInWorkers(
        {rank: covering(wanted) for rank, wanted in sorted(boxes.items())},
        meshes.pop() if len(meshes) == 1 else None,
        next(iter(values))[1] if len(values) == 1 else None,
    )


def outputs_in_workers(plan: Plan, placement: Placement, step: MergedStep) -> list[OutputInWorkers]:
    """Where each result of the plan is made."""
    return [_output(plan, placement, step, index) for index in range(len(plan.outputs))]


def _output(plan: Plan, placement: Placement, step: MergedStep, index: int) -> OutputInWorkers:
    value = step.values[step.results[index][0]]
    tensor = TensorSpec(result_shape(plan, index), value.tensor.dtype, value.tensor.spec)
    dtype = np.dtype(_jnp.dtype(tensor.dtype))
    return OutputInWorkers(value.mesh, tensor, dtype, placement.ranks_of(plan, value.mesh))


_SECONDS_FOR_OTHERS = 10.0  # To hear what else went wrong when a worker has failed.


@dataclass(frozen=True)
class Failure:
    """The worker that failed by itself, in which step, and what happened."""

    rank: int
    number: int
    cause: Exception


class PendingSteps:
    """Replies to steps, in their order."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, Sequence[Reply]]] = deque()

    def add(self, number: int, replies: Sequence[Reply]) -> None:
        """Wait for these, too: one of each worker."""
        self._steps.append((number, replies))

    def hear(self, left: int, arrive: Callable[[int, Parts], None]) -> Failure | None:
        """Take the replies of all steps but the last `left`, and of those that are there.

        Args:
            arrive: called with the number and the parts of each small result that comes along.

        Returns:
            What failed, if something did: then no other reply matters.
        """
        while self._steps:
            number, replies = self._steps[0]
            if len(self._steps) <= left and not all(reply.done() for reply in replies):
                break
            self._steps.popleft()
            failures: list[Failure] = []
            for rank, reply in enumerate(replies):
                try:
                    answer: StepReply = reply.result(_SECONDS_FOR_OTHERS if failures else None)
                except TimeoutError:
                    continue  # It waits for the one that failed, or is slow: no cause.
                except Exception as error:
                    failures.append(Failure(rank, number, error))
                else:
                    for uid, parts in answer.ready.items():
                        arrive(uid, parts)
            if failures:
                return self._first(failures)
        return None

    def _first(self, failures: list[Failure]) -> Failure:
        """The one that failed by itself: others hear nothing more of it, even in a step before."""
        for number, replies in self._steps:
            for rank, reply in enumerate(replies):
                try:
                    reply.result(_SECONDS_FOR_OTHERS)
                except TimeoutError:
                    continue
                except Exception as error:
                    failures.append(Failure(rank, number, error))
        causes = [found for found in failures if not isinstance(found.cause, TransportError)]
        return (causes or failures)[0]


_SECONDS_TO_ANSWER = 5.0  # To hear from the others what happened when one fails.
_FIX = "load the plan again, and go on from the last checkpoint"
_MEMORY_FIX = (
    "use more micro-batches, rematerialization or more devices, or end what else runs there"
)


def cause_behind(group: WorkerGroup, failure: Failure) -> Failure:
    """What a worker says that failed after it had answered, or that does not answer.

    Args:
        failure: of a worker that lost another one.
    """
    silent: Failure | None = None
    for rank in range(group.size):
        try:
            said = group.ping(rank, _SECONDS_TO_ANSWER)
        except WorkerError as error:
            silent = silent or Failure(rank, failure.number, error)
            continue  # Perhaps it is only slow, and another one knows what happened.
        if said["error"] is not None and not said["lost_another"]:
            kind = WorkerMemoryError if said["out_of_memory"] else WorkerError
            return Failure(rank, failure.number, kind(said["error"]))
    return silent or failure


def failed_worker(rank: int, cause: BaseException, number: int | None) -> WorkerError:
    """The error of a worker that failed, perhaps in a step."""
    when = "" if number is None else f" in step {number}"
    kind: Callable[..., WorkerError] = WorkerError
    fix = _FIX
    if is_out_of_memory(cause):
        kind, fix = WorkerMemoryError, _MEMORY_FIX
    elif isinstance(cause, WorkerStalledError):
        return WorkerStalledError(cause.what, where=f"workers{when}", fix=cause.fix)
    text = str(cause)
    if isinstance(cause, WorkerLostError) and cause.rank >= 0:
        rank, text = cause.rank, cause.what  # Whoever was asked: this one is gone.
        if kind is WorkerError:
            kind = partial(WorkerLostError, rank=rank)
    return kind(f"failed{when}: {text}", where=f"worker {rank}", fix=fix)


def unreadable(name: str, cause: BaseException) -> WorkerError:
    """The error of an array that cannot be fetched."""
    kind = WorkerMemoryError if is_out_of_memory(cause) else WorkerError
    return kind(f"cannot be read: {cause}", where=name)


Array = NDArray[Any]

# Steps that may be asked for before the workers have started the first of them.
MAX_AHEAD = 3


class DistributedPlan:
    """A plan on a group of workers. Calls return before the work is done.

    Args:
        plan: the whole plan; its modules are not needed.
        group: workers that have loaded it on this placement.
        donate_state: as the workers were told.
    """

    def __init__(
        self, plan: Plan, placement: Placement, group: WorkerGroup, donate_state: bool
    ) -> None:
        step = merge_programs(plan)
        placement.check(plan)
        self.plan = plan
        self.placement = placement
        self.group = group
        self._donate = donate_state
        self._boundary = Boundary(plan, check_argument)
        self._inputs = inputs_in_workers(plan, placement, step)
        self._outputs = outputs_in_workers(plan, placement, step)
        self._lock = threading.RLock()
        self._uids = itertools.count()
        self._number = 0
        self._counted_from = 0
        self._pending = PendingSteps()
        # Filled by finalizers, in any thread: appending takes no lock.
        self._released: deque[tuple[int, tuple[int, ...]]] = deque()
        self._small: weakref.WeakValueDictionary[int, DistributedArray] = (
            weakref.WeakValueDictionary()
        )
        self._came: dict[int, list[tuple[Box, Array]]] = {}
        self._placed: dict[int, tuple[Any, DistributedArray]] = {}
        self._failure: WorkerError | None = None
        self._closed = False
        self._end = weakref.finalize(self, group.close)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Start one step.

        Args:
            args: as `LoadedPlan` takes them; state that an earlier call returned stays in its
                workers, other arrays are sent there.

        Returns:
            One `DistributedArray` per result of the function; a stack whose layers have several
            owners is a `StackedArray` of them.

        Raises:
            ArgumentMismatchError: an argument has another shape or dtype than the plan's, or was
                used up.
            WorkerError: a worker failed, in this step or an earlier one.
        """
        with self._lock:
            self._check_open()
            self._hear(MAX_AHEAD - 1)
            pieces = self._boundary.take_apart(args, self.put)
            call = self._prepare([self._checked(i, x) for i, x in enumerate(pieces)])
            return self._boundary.put_together(self._start(call))

    def put(self, index: int, x: Any) -> DistributedArray:
        """Send an array for input `index` of the plan to the workers that need it, ahead of the
        step that takes it.

        Raises:
            ArgumentMismatchError: it has another shape or dtype than the plan's.
        """
        with self._lock:
            self._check_open()
            info, wanted = self.plan.inputs[index], self._inputs[index]
            shape = input_shape(self.plan, index)
            host = np.asarray(check_argument(x, info, shape))
            there = self.handle(index)
            for rank in there.workers:
                self._told(rank, "put", there.uid, index, self._parts(host, wanted.boxes[rank]))
            return there

    def handle(self, index: int) -> DistributedArray:
        """An array for an input of the plan, of which the workers know nothing yet."""
        info, wanted = self.plan.inputs[index], self._inputs[index]
        shape = input_shape(self.plan, index)
        mesh = 0 if wanted.mesh is None else wanted.mesh
        spec = ((),) * len(shape) if wanted.tensor is None else wanted.tensor.spec
        tensor = TensorSpec(shape, info.dtype, spec)
        uid, ranks, dtype = next(self._uids), tuple(wanted.boxes), np.dtype(_jnp.dtype(info.dtype))
        return DistributedArray(
            self, uid, info.name, tensor, dtype, mesh, self.plan.meshes[mesh], ranks, index
        )

    def is_read(self, index: int) -> bool:
        """Whether a worker takes input `index` of the plan."""
        return bool(self._inputs[index].boxes)

    def ask(self, rank: int, method: str, *args: Any) -> Reply:
        """Call a method of a worker, in the order of all calls.

        Raises:
            WorkerError: it is gone, or one failed before.
        """
        with self._lock:
            self._check_open()
            return self._told(rank, method, *args)

    def synchronize(self) -> None:
        """Wait until the workers have started everything that they were asked for.

        Raises:
            WorkerError: a worker failed.
        """
        with self._lock:
            self._check_open()
            self._hear(0)

    def close(self) -> None:
        """End the workers. Arrays that live there are gone."""
        self._closed = True
        self._end()

    def memory_bytes(self) -> dict[str, int]:
        """Bytes on each device that XLA needs for each function, by `stage/function`."""
        return self._of_workers("memory_bytes")

    def memory_stats(self) -> dict[str, dict[str, int]]:
        """The same in parts, as XLA has them."""
        return self._of_workers("memory_stats")

    def peak_bytes(self) -> dict[int, int]:
        """The most that a device of each mesh holds in a step, by the compiler's count."""
        return self._of_workers("peak_bytes")

    def _of_workers(self, method: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for rank in range(self.placement.size):
            found.update(self.group.call(rank, method).result())
        return found

    def devices_of(self, mesh: int) -> tuple[Any, ...]:
        """None: they are those of the workers."""
        del mesh
        return ()

    def as_text(self) -> str:
        """The devices of each worker, and each function's memory."""
        lines = [
            f"worker {rank}: devices {' '.join(map(str, devices))}"
            for rank, devices in enumerate(self.placement.workers)
        ]
        lines += [f"{name}: {bytes_text(n)} a device" for name, n in self.memory_bytes().items()]
        return "\n".join(lines)

    @property
    def platform(self) -> str:
        """What programs for the workers' devices are lowered for: `cpu`, `cuda`, `rocm`."""
        return str(self.group.call(0, "ping").result()["platform"])

    def run_once(self, jobs: Sequence[Job], arguments: Sequence[Any]) -> list[list[Any]]:
        """Compile and run programs beside the step's, such as those that make its state.

        Args:
            jobs: their meshes are those of the plan.
            arguments: arrays of NumPy, which every device of each program's mesh holds whole.

        Returns:
            A `DistributedArray` for each result of each program.
        """
        with self._lock:
            self._check_open()
            made = [[next(self._uids) for _ in job.outputs] for job in jobs]
            replies: list[tuple[int, Reply]] = []
            ranks_of = [self.placement.ranks_of(self.plan, job.mesh) for job in jobs]
            for rank in range(self.placement.size):
                own = [i for i, ranks in enumerate(ranks_of) if rank in ranks]
                if own:
                    given = [jobs[i] for i in own], list(arguments), [made[i] for i in own]
                    replies.append((rank, self._told(rank, "run_once", *given)))
            for rank, reply in replies:
                try:
                    reply.result()
                except Exception as error:
                    raise self._fail(rank, error) from error
        return [
            [
                DistributedArray(
                    self,
                    uid,
                    job.label,
                    tensor,
                    np.dtype(_jnp.dtype(tensor.dtype)),
                    job.mesh,
                    self.plan.meshes[job.mesh],
                    ranks,
                )
                for uid, tensor in zip(uids, job.outputs, strict=True)
            ]
            for job, uids, ranks in zip(jobs, made, ranks_of, strict=True)
        ]

    # What arrays ask of their home.

    def fetch(self, array: DistributedArray) -> list[Reply]:
        """Ask the workers for the parts of an array."""
        self._check_open()
        return [self.group.call(rank, "fetch", array.uid) for rank in array.workers]

    def gather(self, array: DistributedArray, replies: list[Reply]) -> Array:
        """The array from its workers' answers."""
        parts = [part for parts in self._answers(array, replies) for part in parts]
        return assembled(parts, array.shape, array.dtype)

    def wait(self, array: DistributedArray) -> None:
        """Returns when an array's value has been computed."""
        self._check_open()
        self._answers(array, [self.group.call(r, "wait", array.uid) for r in array.workers])

    def release(self, uid: int, ranks: tuple[int, ...]) -> None:
        """Free an array with the next step."""
        self._released.append((uid, ranks))

    def _answers(self, array: DistributedArray, replies: list[Reply]) -> list[Any]:
        try:
            return [reply.result() for reply in replies]
        except Exception as error:
            with self._lock:
                self._hear(0)  # What failed is the cause, if something did.
            raise unreadable(array.name, error) from error

    def _checked(self, index: int, x: Any) -> Any:
        if isinstance(x, DistributedArray) and x.is_deleted():
            try:
                x.check()
            except RuntimeError as error:
                raise ArgumentMismatchError(
                    getattr(error, "what", str(error)),
                    where=self.plan.inputs[index].name,
                    fix="use the state that the last step returned, or donate_state=False",
                ) from None
        if isinstance(x, jax.Array) and x.is_deleted():
            raise ArgumentMismatchError("the array was deleted", where=self.plan.inputs[index].name)
        return check_argument(x, self.plan.inputs[index], input_shape(self.plan, index))

    def _is_there(self, index: int, x: Any) -> bool:
        """Whether the workers have the array where input `index` needs it."""
        if not isinstance(x, DistributedArray) or x.home is not self:
            return False
        if x.placed_for is not None:
            return x.placed_for == index
        wanted = self._inputs[index]
        is_state = self.plan.inputs[index].kind == "state"
        return is_state and wanted.mesh == x.mesh_number

    def _prepare(self, args: Sequence[Any]) -> CallToWorkers:
        call = CallToWorkers([{} for _ in range(self.placement.size)])
        held = Counter(x.uid for i, x in enumerate(args) if self._is_there(i, x))
        for index, x in enumerate(args):
            info, wanted = self.plan.inputs[index], self._inputs[index]
            gives = self._donate and info.carried_by is not None
            if info.kind != "state" and not self._is_there(index, x):
                host = np.asarray(x)
                for rank, boxes in wanted.boxes.items():
                    call.inputs[rank][index] = self._parts(host, boxes)
                continue
            there = x if self._is_there(index, x) else self._send(index, x, gives)
            call.sent.append(there)  # Kept until the step is asked for, so that it is not freed.
            twice = held[there.uid] > 1
            for rank in wanted.boxes:
                call.inputs[rank][index] = Held(there.uid, copy=gives and twice)
            if gives and there is x and x.uid not in call.used_up:
                call.used_up[x.uid] = x
                if twice:  # Copies were used up; the array itself is dropped behind the step.
                    call.drop.append((x.uid, x.workers))
        return call

    def _send(self, index: int, x: Any, gives: bool) -> DistributedArray:
        """An array for a state input; one of JAX that no step uses up is sent once, as long as it
        is given again."""
        known = self._placed.get(index)
        if known is not None and known[0]() is x:
            return known[1]
        there = self.put(index, x)
        if not gives and isinstance(x, jax.Array):
            self._placed[index] = (weakref.ref(x), there)
        if gives:
            there.used_up(self._number + self._counted_from)  # By the step itself, under this name.
        return there

    def _parts(self, host: Array, boxes: Sequence[Box]) -> Parts:
        """Parts that nobody changes: of an array that workers would share, copies."""
        copies = self.group.shares_memory
        return tuple(
            (box, np.array(part) if copies else np.asarray(part, order="C"))
            for box in boxes
            for part in (host[slices(box)],)
        )

    def _start(self, call: CallToWorkers) -> list[DistributedArray]:
        for array in call.used_up.values():
            if array.is_being_read:
                array.on_host()
        outputs = [next(self._uids) for _ in self._outputs]
        free: list[list[int]] = [[] for _ in range(self.placement.size)]
        while self._released:
            uid, ranks = self._released.popleft()
            self._came.pop(uid, None)
            for rank in ranks:
                free[rank].append(uid)
        self._released.extend(call.drop)
        number = self._number + self._counted_from
        replies: list[Reply] = []
        for rank in range(self.placement.size):
            made = {
                index: uid
                for index, (uid, output) in enumerate(zip(outputs, self._outputs, strict=True))
                if rank in output.ranks
            }
            request = StepRequest(
                self._number, call.inputs[rank], made, tuple(free[rank]), self._counted_from
            )
            replies.append(self._told(rank, "step", request))
        self._pending.add(number, replies)
        self._number += 1
        for array in call.used_up.values():
            array.used_up(number)
        return [self._result(index, uid) for index, uid in enumerate(outputs)]

    def count_steps_from(self, number: int) -> None:
        """Let the next step have this number in what is said of it, and later ones follow."""
        with self._lock:
            self._counted_from = number - self._number

    def _result(self, index: int, uid: int) -> DistributedArray:
        output, info = self._outputs[index], self.plan.outputs[index]
        mesh = self.plan.meshes[output.mesh]
        array = DistributedArray(
            self, uid, info.name, output.tensor, output.dtype, output.mesh, mesh, output.ranks
        )
        self._small[uid] = array
        return array

    def _told(self, rank: int, method: str, *args: Any) -> Reply:
        try:
            return self.group.call(rank, method, *args)
        except WorkerError as error:
            raise self._fail(rank, error) from error

    def _hear(self, left: int) -> None:
        failure = self._pending.hear(left, self._arrive)
        if failure is not None:
            if isinstance(failure.cause, TransportError):
                failure = cause_behind(self.group, failure)
            raise self._fail(failure.rank, failure.cause, failure.number) from failure.cause

    def _arrive(self, uid: int, parts: Parts) -> None:
        array = self._small.get(uid)
        if array is None:
            return
        came = self._came.setdefault(uid, [])
        came.extend(parts)
        if sum(data.size for _, data in came) == array.size:
            array.arrived(assembled(self._came.pop(uid), array.shape, array.dtype))

    def _fail(self, rank: int, cause: BaseException, number: int | None = None) -> WorkerError:
        self._failure = failed_worker(rank, cause, number)
        return self._failure

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise WorkerError("its workers were closed", where=f"plan of {self.plan.name}")
