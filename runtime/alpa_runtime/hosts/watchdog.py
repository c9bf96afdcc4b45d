"""The thread that watches a group: who is frozen, who failed, does any worker get on?"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from alpa_runtime.errors import (
    NUMBER,
    AlpaError,
    ArgumentMismatchError,
    WorkerError,
    WorkerLostError,
    check_type,
)

_LOOK_SECONDS = 0.5  # Between two pings of a worker, at most.
_GRACE_SECONDS = 5.0  # For a worker that has failed to say so by itself, or to say what it does.


@dataclass(frozen=True)
class Limits:
    """How long things may take.

    Attributes:
        start_seconds: until all processes are up, their devices made and connected.
        frozen_seconds: a worker that does not answer a ping for so long is lost.
        stalled_seconds: a group in which something of a step is under way, and no worker finishes
            an instruction, a program or a message for so long, is lost. It has to be longer than
            the longest program takes; None waits forever. Compiling and reading do not count.
    """

    start_seconds: float = 120.0
    frozen_seconds: float = 30.0
    stalled_seconds: float | None = 600.0

    def __post_init__(self) -> None:
        for name in ("start_seconds", "frozen_seconds", "stalled_seconds"):
            value: float | None = getattr(self, name)
            check_type("Limits", name, value, NUMBER, None)
            if value is not None and not value > 0:
                raise ArgumentMismatchError(
                    f"{name}={value}", where="Limits", fix="give more than 0 seconds"
                )


class WatchedGroup(Protocol):
    """What the watchdog needs of a group of worker processes."""

    closed: threading.Event

    @property
    def size(self) -> int: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def lost(self) -> tuple[int, str] | None: ...
    def call(self, rank: int, method: str, *args: Any) -> Any: ...
    def lose(self, rank: int, how: str, *, out_of_memory: bool = False) -> WorkerLostError: ...
    def stalled(self, seconds: float, waits_for: Sequence[str]) -> WorkerLostError: ...


class Stillness:
    """For how long no worker of a group has made progress though at least one has work to do.

    A worker gives marks (`Worker.ping`): None if it has nothing to do, else something that changes
    with all that it gets done. Only time between two looks counts, so that it is no stillness of
    the workers if this process was stopped.
    """

    def __init__(self) -> None:
        self.seconds: float = 0.0
        self._marks: dict[int, Any] = {}
        self._looked = math.inf

    def heard(self, rank: int, mark: Any) -> None:
        """What a worker says now."""
        if rank not in self._marks or self._marks[rank] != mark:
            self.seconds = 0.0
        self._marks[rank] = mark

    def look(self, now: float) -> float:
        """Seconds of stillness, by a clock that stands at `now`."""
        passed, self._looked = _passed(now - self._looked), now
        self.seconds += passed
        if all(mark is None for mark in self._marks.values()):
            self.seconds = 0.0
        return self.seconds


def _passed(seconds: float) -> float:
    """What counts of the time between two looks."""
    return min(max(0.0, seconds), 4 * _LOOK_SECONDS)


class Watchdog:
    """Looks at a group again and again."""

    def __init__(self) -> None:
        self._sent: dict[int, Any] = {}  # The answers to pings.
        self._owed: dict[int, float] = {}  # For how many seconds.
        self._looked = math.inf
        self._failed_at: dict[int, float] = {}
        self._stillness = Stillness()

    def look(self, group: WatchedGroup) -> None:
        """Send a ping to every worker that owes no answer, and lose those that owe it too long.

        Only time between two looks counts: an answer may be here and unread if this process was
        stopped.

        Raises:
            WorkerLostError: a worker is lost, or none of them makes progress.
        """
        now, limit = time.monotonic(), group.limits.frozen_seconds
        passed, self._looked = _passed(now - self._looked), now
        for rank in range(group.size):
            if rank in self._sent and self._sent[rank].done():
                self._heard(group, rank, self._sent.pop(rank).result())
            if rank not in self._sent:
                self._sent[rank] = group.call(rank, "ping")
                self._owed[rank] = 0.0
                continue
            self._owed[rank] += passed
            if self._owed[rank] > limit:
                how = f"no answer for {limit:g} s: frozen or unreachable; killed"
                raise group.lose(rank, how)
        stalled = group.limits.stalled_seconds
        if self._stillness.look(now) > (math.inf if stalled is None else stalled):
            raise group.stalled(self._stillness.seconds, waits_for(group))

    def _heard(self, group: WatchedGroup, rank: int, said: Mapping[str, Any]) -> None:
        """A worker that failed tells so in its answers, unless it waits for what never comes."""
        # One that has not loaded its plan compiles, which takes as long as it takes.
        self._stillness.heard(rank, said.get("progress"))
        if said.get("error") is None or said["lost_another"]:
            return
        now = time.monotonic()
        if now - self._failed_at.setdefault(rank, now) > _GRACE_SECONDS:
            raise group.lose(rank, f"failed: {said['error']}", out_of_memory=said["out_of_memory"])


def waits_for(group: WatchedGroup) -> list[str]:
    """What each worker says that it waits for."""
    deadline = time.monotonic() + _GRACE_SECONDS
    calls = [group.call(rank, "waits_for") for rank in range(group.size)]
    found: list[str] = []
    for call in calls:
        try:
            found.append(call.result(max(0.0, deadline - time.monotonic())))
        except (WorkerError, TimeoutError):
            found.append("does not say")
    return found


def watch(held: weakref.ref[WatchedGroup]) -> None:
    """Watch a group until it is closed or lost, or nobody needs it any more."""
    looking = Watchdog()
    while True:
        group = held()
        if group is None or group.lost is not None or group.closed.is_set():
            return
        closed, limit = group.closed, group.limits.frozen_seconds
        stalled = group.limits.stalled_seconds
        try:
            looking.look(group)
        except AlpaError:  # Lost, or closed; whoever calls is told.
            return
        del group  # Between two looks it may be collected.
        closed.wait(min(_LOOK_SECONDS, limit / 4, math.inf if stalled is None else stalled / 4))
