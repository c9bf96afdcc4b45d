"""What a worker has begun and not finished: whether it moves, and what it waits for.

All of it is read from the side, by the thread that answers pings: the thread that starts programs
writes nothing down for it but the number of programs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable
from operator import length_hint
from typing import Any

from alpa_runtime.execution.actions import (
    Accumulate,
    Action,
    Exchange,
    Reshard,
    Run,
    Send,
    Zero,
    makes_of,
)
from alpa_runtime.execution.executor import BoundStep
from alpa_runtime.execution.point_to_point import Wires
from alpa_runtime.execution.recorder import describe
from alpa_runtime.execution.reshard_part import Incoming
from alpa_runtime.placement import Placement

_PROGRAMS = (Run, Accumulate, Zero, Reshard)


class UnderWay:
    """Looks at the steps of one worker.

    Args:
        step: the worker's share.
        placement: who has which mesh.
        rank: of the worker.
        wires: its connections to others, if there are any.
    """

    def __init__(
        self, bound: BoundStep, placement: Placement, rank: int, wires: Wires | None
    ) -> None:
        self._bound = bound
        self._placement = placement
        self._rank = rank
        self._wires = wires
        self._actions: list[Action] = list(bound.started.values())
        self._programs = [
            action for action in self._actions if isinstance(action, _PROGRAMS) and makes_of(action)
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

    def waits_for(self, step: int, stepping: bool) -> str:
        """What keeps the worker, in words.

        Args:
            step: the number of the step under way, or of the next one.

        Example: "in step 4 at instruction 3 of 8: receive 0 on mesh 1, from worker 0".
        """
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
            found.append(f"not done of step {number}: {self._name(self._programs[program])}")
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
