"""When a worker did what: begin and end of every action on its clock, and when results were there.

Nothing waits for what is recorded: threads of their own wait for results, so that what is traced
runs as it does otherwise.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from alpa_runtime.backends.xla import num_bytes
from alpa_runtime.execution.actions import (
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
    makes_of,
)
from alpa_runtime.plan import Plan

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
            sorted(makes_of(action), key=lambda v: (v in given, sizes[v])) for action in actions
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
