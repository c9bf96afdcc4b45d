"""Workers on the hosts of a launch, one on each: no service is needed, only ways between the hosts.

On every host an `Agent` dials the driver, again and again until there is one, and starts worker
processes for it. The driver listens where all hosts know it to be (`Meeting`), and connects to the
workers as to those of Ray. `launch` starts agents and driver.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from alpa_runtime.cache import CacheLike
from alpa_runtime.errors import (
    DevicesError,
    TransportError,
    WorkerError,
    WorkerLostError,
    check_type,
)
from alpa_runtime.hosts.process import (
    Platform,
    ProcessFacts,
    out_of_memory_kills,
    portable_error,
)
from alpa_runtime.hosts.process_group import Limits, ProcessGroup, is_beside, load_options
from alpa_runtime.hosts.rpc import (
    OUT_OF_MEMORY,
    DriverEnds,
    Entrance,
    Lane,
    MessageStream,
    RpcClient,
    connect,
)
from alpa_runtime.hosts.subprocesses import how_it_ended, local_gpus, start_worker
from alpa_runtime.plan import Plan
from alpa_runtime.transport.connection import Address, Reception, dial
from alpa_runtime.transport.device import check_choice
from alpa_runtime.transport.framing import PROTOCOL
from alpa_runtime.transport.tls import TlsStream, decrypted, listening_context
from alpa_runtime.worker_group import Placement, Progress

#: Names the descriptor from which a driver reads its meeting.
MEETING_DESCRIPTOR = "ALPA_MLIR_LAUNCH_DESCRIPTOR"
LEAST_KEY = 16  # Characters.

_DIAL_SECONDS = 5.0
_REDIAL_SECONDS = 0.2
_ASK_SECONDS = 10.0
_SECONDS_TO_END = 3.0  # For a process whose connection has ended.
_RPC = ("-m", "alpa_runtime.hosts.rpc")


@dataclass(frozen=True)
class Meeting:
    """Where the hosts of a launch meet their driver.

    Attributes:
        host, port: where the driver listens; a name, or an address.
        num_hosts: ranks are from 0; the driver runs on host 0.
        key: secret, and the same on all hosts.
        encrypt: whether all that goes over TCP is encrypted; the same on all hosts.
    """

    host: str
    port: int
    num_hosts: int
    key: str
    encrypt: bool = False

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Meeting:
        """What `to_text` gave."""
        return Meeting(**json.loads(text))

    def driver(self) -> Address:
        """The driver's end.

        Raises:
            TransportError: nobody knows the host's name.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise TransportError(
                f"{self.host} has no address ({error.strerror or error})",
                where="launch",
                fix="give --coordinator the name or address of the first host",
            ) from None
        ip = str(found[0][4][0])
        key = self._key_of("driver")
        return Address(
            PROTOCOL, self.num_hosts, key, "", "", ip, self.port, "the driver", self.encrypt
        )

    def agent(self, rank: int) -> Address:
        """The end of a host, which only dials."""
        name = f"host {rank}"
        return Address(PROTOCOL, rank, self._key_of(name), "", "", "", -1, name, self.encrypt)

    def _key_of(self, end: str) -> str:
        """Whoever overhears one end's key does not know the others'."""
        words = f"alpa-mlir launch, {self.num_hosts} hosts, {end}"
        return hmac.new(self.key.encode(), words.encode(), hashlib.sha256).hexdigest()

    def listen(self) -> socket.socket:
        """The driver's socket.

        Raises:
            TransportError: nobody can listen there, or there is no certificate for TLS.
        """
        own = self.driver()
        if self.encrypt:
            listening_context()
        family = socket.AF_INET6 if ":" in own.ip else socket.AF_INET
        try:
            return socket.create_server((own.ip, own.port), family=family, backlog=1024)
        except OSError as error:
            raise TransportError(
                f"cannot listen at {own.ip}:{own.port} ({error.strerror or error})",
                where="launch",
                fix="run the driver on the host that --coordinator names, at a free port",
            ) from None


@dataclass(frozen=True)
class HostFacts:
    """What an agent says of its host.

    Attributes:
        name: of the host.
        gpus: as CUDA names them.
    """

    name: str
    gpus: tuple[str, ...]


class _Started:
    """A worker process that an agent has started, or is about to start."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.popen: Any = None
        self.is_over = False
        self.out_of_memory = out_of_memory_kills()


class Agent:
    """Starts worker processes on one host, for one driver after the other.

    Args:
        rank: of this host.
        output: a descriptor for what workers print.
    """

    def __init__(self, meeting: Meeting, rank: int, output: int = 2) -> None:
        self.meeting = meeting
        self.rank = rank
        self._output = output
        self._workers: dict[int, _Started] = {}
        self._lock = threading.Lock()
        # Workers end with the thread that started them.
        self._spawner = ThreadPoolExecutor(1, "alpa-mlir spawner")
        self._over = threading.Event()
        self._stream: MessageStream | None = None  # Of the driver that is served.

    def close(self) -> None:
        """Serve no more."""
        with self._lock:
            self._over.set()
            if self._stream is not None:
                self._stream.end()

    def serve(self, seconds: float = math.inf) -> int:
        """Serve drivers until one says that all is over.

        Args:
            seconds: how long to wait for the first driver, and for another one after each.

        Returns:
            The status that the driver's program ended with, or 0 if the agent was closed.

        Raises:
            WorkerError: no driver came in time; the error says what the last try met.
        """
        deadline, last = time.monotonic() + seconds, ""
        while not self._over.is_set():
            try:
                stream = dial(
                    self.meeting.agent(self.rank),
                    self.meeting.driver(),
                    time.monotonic() + _DIAL_SECONDS,
                )
            except TransportError as error:
                last = error.what
                if time.monotonic() > deadline:
                    place = f"{self.meeting.host}:{self.meeting.port}"
                    raise WorkerError(
                        f"no driver within {seconds:g} s at {place}: {last}",
                        where=f"host {self.rank}",
                        fix="start the launch on the first host too, with the same key, and let "
                        "this host connect to it by TCP",
                    ) from None
                self._over.wait(_REDIAL_SECONDS)
                continue
            status = self._answer(MessageStream(stream), str(stream.getsockname()[0]))
            if status is not None:
                return status
            deadline = time.monotonic() + seconds
        return 0

    def _answer(self, stream: MessageStream, ip: str) -> int | None:
        """Do what a driver asks until it is gone; a status once it says that all is over."""
        pool = ThreadPoolExecutor(8, "alpa-mlir agent")
        with self._lock:
            self._stream = stream
            if self._over.is_set():
                stream.end()
        try:
            while True:
                number, method, args = stream.receive()
                if method == "leave":
                    return int(args[0])
                pool.submit(self._do, stream, number, getattr(self, f"do_{method}"), ip, args)
        except (EOFError, OSError):
            return None
        finally:
            with self._lock:
                self._stream = None
            self._end_all()
            pool.shutdown(wait=False)
            stream.close()

    @staticmethod
    def _do(
        stream: MessageStream, number: int, method: Callable[..., Any], ip: str, args: Any
    ) -> None:
        try:
            answer = (number, True, method(ip, *args))
        except Exception as error:
            answer = (number, False, portable_error(error))
        with contextlib.suppress(OSError, ValueError):  # The driver is gone.
            stream.send(answer)

    # What a driver asks.

    def do_describe(self, ip: str) -> HostFacts:
        """Who is this?"""
        return HostFacts(socket.gethostname(), local_gpus())

    def do_start(
        self,
        ip: str,
        number: int,
        program: Sequence[str],
        environment: Mapping[str, str],
        driver: DriverEnds,
        seconds: float,
    ) -> str:
        """Wait, in a thread, for the driver, and start a worker process that answers it.

        Returns:
            Where the driver has to connect to.
        """
        entrance = Entrance(ip, driver)
        started = _Started()
        with self._lock:
            self._workers[number] = started

        def wait() -> None:
            with contextlib.suppress(TransportError):  # The driver knows that it has not come.
                streams = entrance.wait(seconds)
                # TLS is of this process.
                ends = [
                    decrypted(end) if isinstance(end, TlsStream) else end
                    for end in (streams.work, streams.beside)
                ]
                options = ["--die-with-parent", "--address", ip]
                with started.lock:
                    if started.is_over:
                        for end in ends:
                            end.close()
                        return
                    begin = self._spawner.submit(
                        start_worker, program, ends, options, environment, self._output
                    )
                    started.popen = begin.result()

        threading.Thread(target=wait, name="alpa-mlir entrance", daemon=True).start()
        return entrance.address

    def do_how_it_ended(self, ip: str, number: int) -> tuple[str, bool]:
        """Why a worker's connection has ended, and whether for want of memory."""
        started = self._workers.get(number)
        if started is None or started.popen is None:
            return "its connection ended", False
        try:
            code = started.popen.wait(_SECONDS_TO_END)
        except Exception:
            return "its connection ended", False
        killed = out_of_memory_kills() > started.out_of_memory
        return how_it_ended(code, killed), code == OUT_OF_MEMORY

    def do_end(self, ip: str, number: int) -> None:
        """End a worker at once."""
        with self._lock:
            started = self._workers.pop(number, None)
        if started is not None:
            _end(started)

    def _end_all(self) -> None:
        with self._lock:
            numbers = sorted(self._workers, reverse=True)
        for number in numbers:
            self.do_end("", number)


def _end(started: _Started) -> None:
    with started.lock:
        started.is_over = True
        if started.popen is not None:
            started.popen.kill()
            started.popen.wait()


@dataclass(frozen=True)
class _Host:
    """A host whose agent is connected."""

    rank: int
    lane: Lane
    facts: HostFacts

    def ask(self, method: str, *args: Any, seconds: float = _ASK_SECONDS) -> Any:
        """What the agent answers.

        Raises:
            WorkerLostError: it is gone, or does not answer in time.
            AlpaError: what it says.
        """
        return _result(self.lane.send(method, args), seconds, f"host {self.rank}")


def _result(future: Future[Any], seconds: float, where: str) -> Any:
    try:
        succeeded, value = future.result(seconds)
    except FutureTimeoutError:
        raise WorkerLostError(f"no answer for {seconds:g} s", where=where) from None
    if succeeded:
        return value
    raise value


class Hall:
    """The driver's side of a meeting: who is there. Any thread may call.

    Raises:
        TransportError: nobody can listen there.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self._hosts: dict[int, _Host] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._listener = meeting.listen()
        self._count = 0
        threading.Thread(target=self._receive, name="alpa-mlir hall", daemon=True).start()

    def _receive(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                missing = [r for r in range(self.meeting.num_hosts) if r not in self._hosts]
                if not missing:
                    self._changed.wait(_REDIAL_SECONDS)
                    continue
            expected = {rank: self.meeting.agent(rank) for rank in missing}
            reception = Reception(self.meeting.driver(), [self._listener], expected)
            known = len(missing)

            def stale(known: int = known) -> bool:
                there = len(self._hosts)
                return self._closed.is_set() or self.meeting.num_hosts - there != known

            try:
                came = reception.wait(math.inf, stale, least=1)
            except (TransportError, OSError):
                continue
            for rank, stream in came.items():
                self._meet(rank, stream)
        self._listener.close()

    def _meet(self, rank: int, stream: socket.socket) -> None:
        gone = threading.Event()
        lane = Lane(MessageStream(stream), partial(self._lose, rank, gone))
        lane.start()
        try:
            facts = _result(lane.send("describe", ()), _ASK_SECONDS, f"host {rank}")
        except Exception:  # It dials again.
            lane.end()
            return
        with self._changed:
            if not gone.is_set():
                self._hosts[rank] = _Host(rank, lane, facts)
                self._changed.notify_all()

    def _lose(self, rank: int, gone: threading.Event, why: str | None) -> WorkerLostError:
        with self._changed:
            if not gone.is_set():
                gone.set()
                self._hosts.pop(rank, None)
                self._changed.notify_all()
        return WorkerLostError(why or "its launch ended", where=f"host {rank}", rank=-1)

    def wait(self, fits: Callable[[Sequence[_Host]], list[_Host] | None], seconds: float) -> Any:
        """Hosts that fit, once there are such; None after so many seconds."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                found = fits([self._hosts[rank] for rank in sorted(self._hosts)])
                left = deadline - time.monotonic()
                if found is not None or left <= 0:
                    return found
                self._changed.wait(min(left, 1.0))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Hosts that are there."""
        with self._changed:
            return tuple(sorted(self._hosts))

    def next_number(self) -> int:
        """Of a worker."""
        with self._changed:
            self._count += 1
            return self._count

    def leave(self, status: int) -> None:
        """Tell all hosts that are there that all is over."""
        with self._changed:
            hosts = list(self._hosts.values())
        for host in hosts:
            host.lane.send("leave", (status,))

    def close(self) -> None:
        """Listen no more."""
        self._closed.set()


_halls: dict[str, Hall] = {}
_halls_lock = threading.Lock()


def _hall() -> Hall:
    """That of this process's launch.

    Raises:
        WorkerError: the process was not started by a launch.
        TransportError: nobody can listen where the hosts look for the driver.
    """
    with _halls_lock:
        if "" not in _halls:
            number = os.environ.pop(MEETING_DESCRIPTOR, "")
            try:
                with os.fdopen(int(number), "r") as file:
                    meeting = Meeting.from_text(file.read())
            except (OSError, ValueError, TypeError):
                raise WorkerError(
                    "this process is not the driver of a launch",
                    where="LaunchedWorkers",
                    fix="start it with `alpa-mlir launch -- python train.py`, on every host",
                ) from None
            _halls[""] = Hall(meeting)
        return _halls[""]


class LaunchedGroup(ProcessGroup):
    """Worker processes on hosts of a launch; `LaunchedWorkers.start` makes it."""

    def __init__(
        self,
        hosts: Sequence[_Host],
        numbers: Sequence[int],
        calls: Sequence[RpcClient],
        platform: Platform,
        limits: Limits,
    ) -> None:
        super().__init__(len(hosts), limits)
        self._hosts = hosts
        self._numbers = numbers
        self._calls = calls
        self._is_gpu = platform == "gpu"
        self._facts: dict[int, ProcessFacts] = {}
        self._release_now = weakref.finalize(self, _end_workers, hosts, numbers, calls)

    def _send(self, rank: int, method: str, args: tuple[Any, ...]) -> Future[Any]:
        return self._calls[rank].send(method, args, is_beside(method))

    def _end(self, rank: int) -> None:
        _end_workers([self._hosts[rank]], [self._numbers[rank]], [self._calls[rank]])

    def _release(self) -> None:
        self._release_now()

    def met(self, facts: Sequence[ProcessFacts]) -> None:
        self._facts.update(enumerate(facts))

    def environment_of(self, rank: int, placement: Placement) -> Mapping[str, str]:
        if not self._is_gpu:
            return {}
        own = self._hosts[rank].facts.gpus[: len(placement.workers[rank])]
        return {"CUDA_VISIBLE_DEVICES": ",".join(own)}

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the workers' processes on their hosts, by rank."""
        return tuple(self._facts[rank].pid for rank in range(self.size))


def _end_workers(
    hosts: Sequence[_Host], numbers: Sequence[int], calls: Sequence[RpcClient]
) -> None:
    """The last one first: it leaves a world before the process that the world meets at."""
    for host, number, client in reversed(list(zip(hosts, numbers, calls, strict=True))):
        client.expect_end("the workers were closed")
        with contextlib.suppress(Exception):  # With its launch a host's workers end anyway.
            host.ask("end", number, seconds=_SECONDS_TO_END)
        client.end()


class LaunchedWorkers:
    """Starts the workers of a plan on the hosts of this launch (`alpa-mlir launch`), one on each.

    The hosts of the lowest ranks that have the devices are taken; others stand ready to replace
    one that is lost.

    Args:
        placement: by default one worker for each host of the plan's cluster.
        platform: "cpu" for virtual devices, "gpu" for the hosts' GPUs; by default "gpu" if a host
            has any.
        environment: variables of the workers, besides those of the launch on their hosts.
        hosts_seconds: how long to wait for hosts that are missing, such as those whose launch is
            being started again.
        limits: how long things may take.
        device_transport: how values go from device to device: "auto" (the best of what all have
            installed, for GPUs), "nccl", "nixl", or "host".
        encrypt: refuse a launch that does not encrypt (`--encrypt`).

    Raises:
        TransportError: there is no such `device_transport`.

    Example:
        >>> step = alpa_mlir.load("my_plan", workers=LaunchedWorkers())  # doctest: +SKIP
    """

    def __init__(
        self,
        placement: Placement | None = None,
        *,
        platform: Platform | None = None,
        environment: Mapping[str, str] | None = None,
        hosts_seconds: float = 60.0,
        limits: Limits | None = None,
        device_transport: str = "auto",
        encrypt: bool = False,
    ) -> None:
        check_type("LaunchedWorkers", "placement", placement, Placement, None)
        check_type("LaunchedWorkers", "limits", limits, Limits, None)
        self.platform: Platform | None = platform
        self.hosts_seconds = hosts_seconds
        self.limits: Limits = limits or Limits()
        self.device_transport: str = check_choice(device_transport)
        self.encrypt: bool = encrypt
        self._placement = placement
        self._environment = dict(environment or {})

    def num_hosts(self) -> int:
        """How many hosts of the launch are there now.

        Raises:
            WorkerError: this process was not started by a launch.
        """
        return len(_hall().ranks)

    def start(
        self,
        plan: Plan,
        placement: Placement | None = None,
        *,
        donate_state: bool = True,
        backend: str = "auto",
        cache: CacheLike = True,
        progress: Progress | None = None,
    ) -> tuple[Placement, LaunchedGroup]:
        """Start one process on a host for each worker, and load the plan; see `Hosts.start`."""
        placement = placement or self._placement or Placement.by_hosts(plan)
        placement.check(plan)
        hall = _hall()
        encrypt = hall.meeting.encrypt
        if self.encrypt and not encrypt:
            raise WorkerError(
                "the launch does not encrypt",
                where="LaunchedWorkers",
                fix="start it with `alpa-mlir launch --encrypt`, on every host",
            )
        options = load_options(
            plan, placement, donate_state, backend, cache, self.device_transport, encrypt
        )
        wanted = [len(own) for own in placement.workers]
        hosts = hall.wait(lambda there: self._fitting(there, wanted), self.hosts_seconds)
        if hosts is None:
            raise self._missing(hall, plan, wanted)
        platform = self._platform(hosts)
        group = self._group(hall, hosts, platform)
        group.start(plan, placement, platform, options, progress)
        return placement, group

    def _platform(self, hosts: Sequence[_Host]) -> Platform:
        return self.platform or ("gpu" if any(host.facts.gpus for host in hosts) else "cpu")

    def _fitting(self, there: Sequence[_Host], wanted: Sequence[int]) -> list[_Host] | None:
        """A host for each worker, in order."""
        is_cpu = self._platform(there) == "cpu"
        chosen: list[_Host] = []
        for count in wanted:
            free = [host for host in there if host not in chosen]
            found = next((h for h in free if is_cpu or len(h.facts.gpus) >= count), None)
            if found is None:
                return None
            chosen.append(found)
        return chosen

    def _missing(self, hall: Hall, plan: Plan, wanted: Sequence[int]) -> DevicesError:
        there = hall.ranks
        absent = [rank for rank in range(hall.meeting.num_hosts) if rank not in there]
        names = f"; hosts {', '.join(map(str, absent))} are not there" if absent else ""
        counts = ", ".join(map(str, wanted))
        return DevicesError(
            f"the plan needs {len(wanted)} hosts of {counts} devices, {len(there)} of the launch's "
            f"{hall.meeting.num_hosts} came within {self.hosts_seconds:g} s{names}",
            where=f"plan of {plan.name}",
            fix="start the launch on the hosts that are missing, or plan for fewer",
        )

    def _group(self, hall: Hall, hosts: Sequence[_Host], platform: Platform) -> LaunchedGroup:
        seconds = self.limits.start_seconds
        deadline = time.monotonic() + seconds
        numbers = [hall.next_number() for _ in hosts]
        calls: list[RpcClient] = []
        try:
            for host, number in zip(hosts, numbers, strict=True):
                ends = DriverEnds.make(hall.meeting.encrypt)
                address = host.ask("start", number, _RPC, self._environment, ends, seconds)
                where = f"worker {len(calls)} on {host.facts.name}"
                streams = connect(ends, address, deadline - time.monotonic(), where)
                ended = partial(_how_it_ended, host, number)
                calls.append(RpcClient(streams, ended, f"worker {len(calls)}"))
        except BaseException:
            started = len(calls)
            _end_workers(hosts[:started], numbers[:started], calls)
            raise
        return LaunchedGroup(hosts, numbers, calls, platform, self.limits)


def _how_it_ended(host: _Host, number: int) -> tuple[str, bool]:
    try:
        return host.ask("how_it_ended", number, seconds=2 * _SECONDS_TO_END)
    except WorkerLostError as error:
        return f"host {host.rank} is gone: {error.what}", False
