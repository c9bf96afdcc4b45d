"""What all groups of worker processes have in common: how they start, are watched and end."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from alpa_runtime.cache import CacheLike
from alpa_runtime.errors import (
    AlpaError,
    TransportError,
    WorkerError,
    WorkerLostError,
    WorkerStalledError,
)
from alpa_runtime.hosts.process import CONTROL, LoadOptions, Platform, ProcessFacts, Start, versions
from alpa_runtime.hosts.watchdog import Limits, watch
from alpa_runtime.plan import Plan
from alpa_runtime.worker_group import Placement, Progress, part_of_plan
from alpa_runtime.workers.worker import Worker

_jax: Any = jax
_LOOK_SECONDS = 0.5  # How often a waiting call looks whether a worker was lost.
_CLOSE_SECONDS = 2.0  # For workers to finish what they do before they are ended.
_GRACE_SECONDS = 5.0  # For others to answer, or fail by themselves.


def is_beside(method: str) -> bool:
    """Whether a call of this method waits for no other one."""
    return method in Worker.BESIDE or method in CONTROL


class ProcessGroup(ABC):
    """Worker processes, one for each rank, each with a `HostProcess`.

    Workers get copies of what they are given. A group never recovers: once a worker is lost, every
    call raises WorkerLostError, and a new group takes its place. Nobody needs to close a group: its
    processes end when it is collected, or with this process.
    """

    shares_memory = False

    def __init__(self, size: int, limits: Limits) -> None:
        self.size = size
        self.limits = limits
        self.encrypt: bool = False
        self._lost: WorkerLostError | None = None
        self.lost_at: float = math.inf
        self.closed: threading.Event = threading.Event()
        self._losing = threading.Lock()

    @abstractmethod
    def _send(self, rank: int, method: str, args: tuple[Any, ...]) -> Any:
        """Start a call; a future whose result is what HostProcess.answer gives."""

    @abstractmethod
    def _end(self, rank: int) -> None:
        """End a process at once, whatever state it is in."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what the group holds, its processes first; nothing happens a second time."""

    def call(self, rank: int, method: str, *args: Any) -> Call:
        """Call a method in a worker; at most one program-starting call runs there at a time.

        Raises:
            WorkerLostError: a worker of the group was lost before.
            WorkerError: the group was closed.
        """
        self.check()
        return Call(self, rank, method, self._send(rank, method, args))

    def check(self) -> None:
        """Raise what `call` would raise."""
        if self._lost is not None:
            raise self._error(self._lost)
        if self.closed.is_set():
            raise WorkerError("the workers were closed")

    @property
    def lost(self) -> tuple[int, str] | None:
        """Rank of the first worker that was lost (-1 for all of them), and how."""
        return None if self._lost is None else (self._lost.rank, self._lost.what)

    def lose(self, rank: int, how: str, *, out_of_memory: bool = False) -> WorkerLostError:
        """Note that a worker is lost, and make sure that its process is gone.

        Args:
            how: in words.
            out_of_memory: for want of memory.

        Returns:
            The error that names the worker that was lost first.
        """
        first = self._lose(
            WorkerLostError(how, where=f"worker {rank}", rank=rank, out_of_memory=out_of_memory)
        )
        self._end(rank)
        return first

    def stalled(self, seconds: float, waits_for: Sequence[str]) -> WorkerLostError:
        """Note that no worker makes progress, and make sure that their processes are gone.

        Args:
            seconds: for how long.
            waits_for: what each worker waits for.

        Returns:
            As `lose`.
        """
        each = "; ".join(f"worker {rank} {what}" for rank, what in enumerate(waits_for))
        first = self._lose(
            WorkerStalledError(
                f"no progress for {seconds:.0f} s: {each}",
                where="workers",
                fix="if a program may take so long, give Limits(stalled_seconds=..)",
            )
        )
        for rank in reversed(range(self.size)):
            self._end(rank)
        return first

    def _lose(self, error: WorkerLostError) -> WorkerLostError:
        with self._losing:
            if self._lost is None:
                if self.closed.is_set():
                    return error  # Who is ended with its group was not lost.
                self._lost = error
                self.lost_at = time.monotonic()
        return self._error(self._lost)

    @staticmethod
    def _error(lost: WorkerLostError) -> WorkerLostError:
        """One of its own for everybody who raises it."""
        return type(lost)(
            lost.what,
            where=lost.where,
            fix=lost.fix,
            rank=lost.rank,
            out_of_memory=lost.out_of_memory,
        )

    def ping(self, rank: int, timeout: float | None = None) -> dict[str, Any]:
        """What the worker says of itself, during a step as well.

        Raises:
            WorkerLostError: it does not answer within `timeout` seconds; the worker is left as
                it is.
        """
        seconds = self.limits.frozen_seconds if timeout is None else timeout
        try:
            return self.call(rank, "ping").result(seconds)
        except TimeoutError:
            raise WorkerLostError(
                f"no answer for {seconds:g} s", where=f"worker {rank}", rank=rank
            ) from None

    def kill(self, rank: int) -> None:
        """End a worker at once; the group is of no use afterwards."""
        self.lose(rank, "killed")

    def close(self) -> None:
        """End all workers. May be called again."""
        with self._losing:
            if self.closed.is_set():
                return
            self.closed.set()
        if self._lost is None:
            calls: list[Any] = []
            deadline = time.monotonic() + _CLOSE_SECONDS
            with contextlib.suppress(AlpaError):
                for rank in range(self.size):
                    calls.append(self._send(rank, "close", ()))
                while not all(c.done() for c in calls) and time.monotonic() < deadline:
                    time.sleep(0.005)
        self._release()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How a group starts.

    def start(
        self,
        plan: Plan,
        placement: Placement,
        platform: Platform,
        options: LoadOptions,
        progress: Progress | None,
    ) -> None:
        """Make devices, connect the workers and load the plan in them; end them if that fails.

        Raises:
            WorkerError: a worker has other versions, or they are not up in time.
            DevicesError: a host has fewer devices than the plan says.
        """
        self.encrypt = options.encrypt
        try:
            self._bring_up(plan, placement, platform, options, progress)
        except BaseException:
            self.close()
            raise

    def _bring_up(
        self,
        plan: Plan,
        placement: Placement,
        platform: Platform,
        options: LoadOptions,
        progress: Progress | None,
    ) -> None:
        deadline = time.monotonic() + self.limits.start_seconds
        done = 0

        def up(rank: int, facts: ProcessFacts) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, self.size, f"worker {rank} on {facts.host}")

        facts: list[ProcessFacts] = self.all("describe", deadline=deadline, each=up)
        check_versions(facts)
        self.met(facts)
        threading.Thread(target=watch, args=(weakref.ref(self),), daemon=True).start()
        worlds = placement.worlds(plan)
        leaders = [world[0] for world in worlds if len(world) > 1]
        ports = self.all("open_port", ranks=leaders, deadline=deadline)
        meeting = {
            leader: f"{_bracketed(facts[leader].address)}:{port}"
            for leader, port in zip(leaders, ports, strict=True)
        }
        starts = {
            rank: Start(
                rank,
                placement.workers,
                world,
                meeting.get(world[0], ""),
                platform,
                bool(_jax.config.jax_enable_x64),
                max(10, round(2 * self.limits.frozen_seconds)),
                max(1, round(deadline - time.monotonic())),
                self.environment_of(rank, placement),
                options.encrypt,
            )
            for world in worlds
            for rank in world
        }
        addresses = self.all("prepare", lambda rank: (starts[rank],), deadline=deadline)
        self.all("connect", lambda _: (tuple(addresses),), deadline=deadline)
        parts = [part_of_plan(plan, placement.meshes_of(plan, rank)) for rank in range(self.size)]
        self.all(
            "load",
            lambda rank: (parts[rank], placement, options),
            meanwhile=None if progress is None else lambda: self._show_compiling(progress),
        )

    def _show_compiling(self, progress: Progress) -> None:
        counts = [self.ping(rank)["compiled"] for rank in range(self.size)]
        done, total = (sum(count[i] for count in counts) for i in (0, 1))
        label = next((count[2] for count in counts if count[0] < count[1]), "")
        if total:
            progress(done, total, label)

    def environment_of(self, rank: int, placement: Placement) -> Mapping[str, str]:
        """Variables that a worker sets before JAX looks at its devices."""
        return {}

    @abstractmethod
    def met(self, facts: Sequence[ProcessFacts]) -> None:
        """Called once it is known who the processes are."""

    def all(
        self,
        method: str,
        args: Callable[[int], tuple[Any, ...]] = lambda _: (),
        *,
        ranks: Sequence[int] | None = None,
        deadline: float | None = None,
        each: Callable[[int, Any], None] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Call a method in several workers at once; the first error of any of them is raised.

        Args:
            args: of each rank.
            deadline: a time of `time.monotonic`.
            each: called with rank and result, in the order in which they come.
            meanwhile: called again and again while there is something to wait for.

        Raises:
            WorkerLostError: a worker is lost, or does not answer before the deadline.
        """
        ranks = range(self.size) if ranks is None else ranks
        waiting = {rank: self.call(rank, method, *args(rank)) for rank in ranks}
        results: dict[int, Any] = {}
        pause = 0.0005
        while waiting:
            for rank in [r for r, c in waiting.items() if c.done()]:
                results[rank] = waiting.pop(rank).result()
                if each is not None:
                    each(rank, results[rank])
                pause = 0.0005
            if waiting and deadline is not None and time.monotonic() > deadline:
                rank = next(iter(waiting))
                raise self.lose(rank, f"{method}: not done within {self.limits.start_seconds:g} s")
            if waiting and meanwhile is not None:
                meanwhile()
            time.sleep(pause if waiting else 0.0)
            pause = min(2 * pause, 0.2 if meanwhile else 0.02)
        return [results[rank] for rank in ranks]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@dataclass(frozen=True)
class Call:
    """A call under way."""

    group: ProcessGroup
    rank: int
    method: str
    future: Any

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return bool(self.future.done())

    def result(self, timeout: float | None = None) -> Any:
        """What the method gave.

        Raises:
            WorkerLostError: the worker died before it answered.
            TimeoutError: it has not answered within `timeout` seconds.
            AlpaError: what the method raised; a `WorkerError` if it was no error of ours.
        """
        try:
            succeeded, value = self._wait(timeout)
        except WorkerLostError as error:
            raise self.group.lose(
                self.rank, error.what, out_of_memory=error.out_of_memory
            ) from None
        if succeeded:
            return value
        raise value

    def _wait(self, timeout: float | None) -> tuple[bool, Any]:
        """The answer; once another worker is lost, for which this one may wait, not for long."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            end = min(end, self.group.lost_at + _GRACE_SECONDS)
            try:
                return self.future.result(max(0.0, min(end - time.monotonic(), _LOOK_SECONDS)))
            except TimeoutError:
                if time.monotonic() >= end:
                    self.group.check()
                    raise


def load_options(
    plan: Plan,
    placement: Placement,
    donate_state: bool,
    backend: str,
    cache: CacheLike,
    device_transport: str,
    encrypt: bool,
) -> LoadOptions:
    """Those of a start.

    Raises:
        WorkerError, TransportError: something of it goes where nothing encrypts it.
    """
    if encrypt:
        where = f"plan of {plan.name}"
        spanning = [world for world in placement.worlds(plan) if len(world) > 1]
        if spanning:
            raise WorkerError(
                f"meshes span workers {', '.join(map(str, spanning[0]))}: JAX does not encrypt "
                "their collectives",
                where=where,
                fix="take a plan whose meshes lie within hosts, or leave encryption to the network",
            )
        if device_transport not in ("auto", "host"):
            raise TransportError(
                f"{device_transport} does not encrypt",
                where=where,
                fix='take device_transport="host", or leave encryption to the network',
            )
        device_transport = "host"
    return LoadOptions(donate_state, backend, cache, device_transport, encrypt)


def check_versions(facts: Sequence[ProcessFacts]) -> None:
    """Raises a WorkerError that names the first worker whose versions are not the driver's."""
    own = versions()
    for rank, found in enumerate(facts):
        for name, version in own.items():
            theirs = found.versions.get(name, "none")
            if theirs != version:
                raise WorkerError(
                    f"has {name} {theirs}, the driver has {version}",
                    where=f"worker {rank} on {found.host}",
                    fix=f"install {name} {version} there",
                )
