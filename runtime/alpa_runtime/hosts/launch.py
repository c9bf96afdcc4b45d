"""Starting a training program over hosts that Slurm, Kubernetes, SSH or a person give.

`launch` runs on every host: it serves the driver as an agent (`launched.Agent`), and on host 0 it
also runs the program, which drives all hosts with `LaunchedWorkers`. A program that fails is
started again, and goes on from its checkpoints.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from alpa_runtime.errors import WorkerError
from alpa_runtime.hosts import guard
from alpa_runtime.hosts.launched import LEAST_KEY, MEETING_DESCRIPTOR, Agent, Hall, Meeting
from alpa_runtime.hosts.subprocesses import how_it_ended

#: The variable that may hold the key.
KEY_VARIABLE = "ALPA_MLIR_LAUNCH_KEY"
#: As of a cluster.
_MOST_HOSTS = 1 << 16
_LEAVE_SECONDS = 10.0
_LONGEST_KEY = 4096
_SECONDS_TO_TERMINATE = guard.TERMINATE_SECONDS + 2 * guard.LEFT_SECONDS
_RESTART_SECONDS = 1.0
_LONGEST_RESTART_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_LAST_LINES = 5
_LAST_WORDS_SECONDS = 1.0
_log = logging.getLogger("alpa_mlir.launch")


@dataclass(frozen=True)
class Place:
    """Where this launch runs among all.

    Attributes:
        rank, num_hosts: of this host.
        host, port: where the driver, on host 0, listens.
        found_by: what said so, for people.
        job: a name that all hosts of a Slurm step share, or "".
    """

    rank: int
    num_hosts: int
    host: str
    port: int
    found_by: str
    job: str = ""


def first_of_nodelist(text: str) -> str:
    """The first name of a Slurm node list.

    Example:
        >>> first_of_nodelist("gpu[003-010,12],login1")
        'gpu003'
    """
    name = re.split(r",(?![^\[]*\])", text)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", name)


def find_place(
    environment: Mapping[str, str],
    rank: int | None = None,
    num_hosts: int | None = None,
    coordinator: str | None = None,
) -> Place:
    """Which host this is, by what is given, else by the variables of Slurm, of torchrun's kind, or
    of an indexed job of Kubernetes; else the only one.

    Args:
        coordinator: `HOST:PORT` of host 0.

    Raises:
        WorkerError: they say half of it, contradict each other, or start several on one host.

    Example:
        >>> place = find_place({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"})
        >>> place.rank, place.host, place.port
        (1, 'a', 29400)
    """
    found = _given_by(environment, rank, num_hosts)
    rank, num_hosts = found.rank, found.num_hosts
    host, port = found.host, found.port
    if coordinator is not None:
        host, _, text = coordinator.rpartition(":")
        if not host or not text.isdecimal() or not 0 < int(text) < 1 << 16:
            raise WorkerError(
                f"--coordinator {coordinator}: expected HOST:PORT",
                where="launch",
                fix="name host 0 and a free port there, such as node0:29400",
            )
        host, port = host.strip("[]"), int(text)
    if num_hosts > _MOST_HOSTS:
        raise WorkerError(
            f"{num_hosts} hosts, by {found.found_by}, are more than {_MOST_HOSTS}",
            where="launch",
            fix="correct it: launch runs once on each host, not once for each GPU",
        )
    if num_hosts < 1 or not 0 <= rank < num_hosts:
        raise WorkerError(
            f"rank {rank} of {num_hosts} hosts, by {found.found_by}",
            where="launch",
            fix="give --num-hosts, and each host a --rank from 0 to --num-hosts less one",
        )
    if not 0 <= port < 1 << 16:
        raise WorkerError(f"port {port}, by {found.found_by}", where="launch", fix="correct it")
    if num_hosts > 1 and not host:
        raise WorkerError(
            f"{num_hosts} hosts, and nothing says where host 0 is",
            where="launch",
            fix="give --coordinator HOST:PORT, the same on all hosts",
        )
    return Place(rank, num_hosts, host or "127.0.0.1", port, found.found_by, found.job)


DEFAULT_PORT = 29400


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise WorkerError(
            f"{name}={environment[name]}: expected a number", where="launch", fix="correct it"
        ) from None


def _place(
    environment: Mapping[str, str],
    variables: tuple[str, str],
    given: tuple[int | None, int | None],
) -> tuple[int, int]:
    """Rank and number of hosts, each by its option, else by its variable."""
    found: list[int] = []
    for name, other, option in zip(variables, reversed(variables), given, strict=True):
        if option is None and name not in environment:
            raise WorkerError(
                f"{other} is set in the environment, and {name} is not",
                where="launch",
                fix=f"set {name} too, or unset {other}, or give --rank and --num-hosts",
            )
        found.append(_number(environment, name) if option is None else option)
    return found[0], found[1]


def _given_by(environment: Mapping[str, str], rank: int | None, num_hosts: int | None) -> Place:
    """By options, and by the first scheduler whose variables are there."""
    given = rank, num_hosts
    one_each = "start it once on each host: `srun --ntasks-per-node=1`, one process for each node"
    if "SLURM_PROCID" in environment and "SLURM_STEP_NODELIST" in environment:
        if environment.get("SLURM_LOCALID", "0") != "0":
            raise WorkerError("several tasks on one host", where="launch", fix=one_each)
        job, step = (environment.get(f"SLURM_{name}_ID", "0") for name in ("JOB", "STEP"))
        port = 20000 + (int(job) if job.isdecimal() else 0) % 20000
        return Place(
            *_place(environment, ("SLURM_PROCID", "SLURM_NTASKS"), given),
            first_of_nodelist(environment["SLURM_STEP_NODELIST"]),
            port,
            "Slurm's variables",
            f"{job}.{step}",
        )
    is_indexed = "JOB_COMPLETION_INDEX" in environment
    ranked = {"RANK", "WORLD_SIZE"} & environment.keys()
    if len(ranked) > is_indexed:  # Half of it is nobody's where a job says all.
        if environment.get("LOCAL_RANK", "0") != "0":
            raise WorkerError("several processes on one host", where="launch", fix=one_each)
        return Place(
            *_place(environment, ("RANK", "WORLD_SIZE"), given),
            environment.get("MASTER_ADDR", ""),
            _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else DEFAULT_PORT,
            "RANK and WORLD_SIZE",
        )
    if is_indexed:
        return Place(
            *_place(environment, ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"), given),
            environment.get("MASTER_ADDR", ""),
            DEFAULT_PORT,
            "JOB_COMPLETION_INDEX",
        )
    return Place(rank or 0, 1 if num_hosts is None else num_hosts, "", 0, "nothing")


def find_key(
    place: Place, environment: Mapping[str, str], file: Path | None, seconds: float
) -> str:
    """The secret that all hosts of a launch share.

    Args:
        file: that holds it; for its owner only.
        seconds: how long to wait for a file that host 0 makes for a Slurm step.

    Raises:
        WorkerError: there is none, it is short, or others may read its file.
    """
    fix = (
        f"put a key of {LEAST_KEY} characters or more, the same on all hosts, into the variable "
        f"{KEY_VARIABLE} (a secret of the job), or into a file (mode 600) and give --key-file"
    )
    if file is not None:
        key = _read_key(file, fix)
    elif KEY_VARIABLE in environment:
        key = environment[KEY_VARIABLE].strip()
    elif place.num_hosts == 1:
        return secrets.token_hex(32)
    elif place.job:
        key = _key_of_job(place, seconds, fix)
    else:
        raise WorkerError("several hosts, and no key that they share", where="launch", fix=fix)
    if len(key) < LEAST_KEY:
        raise WorkerError(f"a key of {len(key)} characters", where="launch", fix=fix)
    return key


def _read_key(file: Path, fix: str) -> str:
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise WorkerError(
                f"{file} is no file that its owner alone may read", where="launch", fix="chmod 600"
            )
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkerError(f"the key cannot be read: {error}", where="launch", fix=fix) from None


def job_key_file(place: Place) -> Path:
    """Where host 0 of a Slurm step puts the key: the home folder, which all hosts share."""
    return Path.home() / ".alpa_mlir" / f"launch-{place.job}.key"


def _key_of_job(place: Place, seconds: float, fix: str) -> str:
    file = job_key_file(place)
    if place.rank == 0:
        try:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            file.unlink(missing_ok=True)
            fresh = file.with_suffix(f".{secrets.token_hex(4)}")
            with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as to:
                to.write(secrets.token_hex(32))
            fresh.replace(file)
        except OSError as error:
            raise WorkerError(
                f"the key cannot be written: {error}", where="launch", fix=fix
            ) from None
    deadline = time.monotonic() + seconds
    begin = time.time() - 3600  # An older file is of another start of the step.
    while not file.exists() or file.stat().st_mtime < begin:
        if time.monotonic() > deadline:
            raise WorkerError(
                f"no key within {seconds:g} s in {file}: the hosts may not share their home",
                where="launch",
                fix=fix,
            )
        time.sleep(0.2)
    return _read_key(file, fix)


class _Logs:
    """Where programs print to: files of a folder, or what the launch prints to."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: list[IO[bytes]] = []
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WorkerError(
                    f"no logs can be written: {error}", where="launch", fix="give another folder"
                ) from None

    def of(self, name: str, usual: int) -> int:
        """A descriptor."""
        if self._folder is None:
            return usual
        self._files.append(open(self._folder / f"{name}.log", "ab"))  # noqa: SIM115
        return self._files[-1].fileno()

    def close(self) -> None:
        for file in self._files:
            file.close()


def launch(
    command: Sequence[str],
    place: Place,
    key: str,
    *,
    restarts: int = 3,
    logs: Path | None = None,
    start_seconds: float = 600.0,
    encrypt: bool = False,
) -> int:
    """Serve as a host, and on host 0 run a program that drives all hosts.

    Args:
        command: the program and its arguments.
        restarts: how often it is started again when it fails.
        logs: a folder: `driver.log`, and `host-RANK.log` of the workers of each host.
        start_seconds: how long a host waits for the driver, also while it is started again.
        encrypt: encrypt what goes over TCP; the same on all hosts.

    Returns:
        The status that the program ended with, on all hosts.

    Raises:
        WorkerError: no driver came, or the program cannot be started.
        TransportError: nobody can listen at the place.
    """
    port = place.port or _free_port()
    meeting = Meeting(place.host, port, place.num_hosts, key, encrypt)
    output = _Logs(logs)
    try:
        agent = Agent(meeting, place.rank, output.of(f"host-{place.rank}", 2))
        if place.rank > 0:
            return agent.serve(start_seconds)
        meeting.listen().close()  # Rather an error now than in the program.
        serving = threading.Thread(target=agent.serve, name="alpa-mlir agent", daemon=True)
        serving.start()
        status = _drive(command, meeting, restarts, output)
        agent.close()
        serving.join(_LEAVE_SECONDS)
        if place.num_hosts > 1:
            _dismiss(meeting, status)
        return status
    finally:
        output.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _drive(command: Sequence[str], meeting: Meeting, restarts: int, output: _Logs) -> int:
    out, errors = (output.of("driver", usual) for usual in (1, 2))
    status = 0
    for attempt in range(restarts + 1):
        with _driver(command, meeting, out, errors) as process:
            status = process.wait()
        if status == 0:
            break
        status = 128 - status if status < 0 else status
        if attempt < restarts:
            _log.warning(
                "the program ended with status %d: starting it again (%d of %d)",
                status,
                attempt + 1,
                restarts,
            )
            time.sleep(min(_RESTART_SECONDS * 2**attempt, _LONGEST_RESTART_SECONDS))
    return status


@contextlib.contextmanager
def _driver(
    command: Sequence[str], meeting: Meeting, out: int, errors: int
) -> Generator[subprocess.Popen[bytes], None, None]:
    """The program, which reads the meeting from a descriptor, under a guard that ends it and all
    that it has started when this process ends."""
    reading, writing = os.pipe()
    alive, end = os.pipe()
    refusal, refuse = os.pipe()
    handed = (alive, refuse, reading)
    guard_command = [sys.executable, "-I", "-S", guard.__file__, *map(str, handed), *command]
    try:
        with os.fdopen(writing, "w") as to:
            to.write(meeting.to_text())
        process = subprocess.Popen(
            guard_command,
            pass_fds=handed,
            stdout=out,
            stderr=errors,
            env={**os.environ, MEETING_DESCRIPTOR: str(reading)},
        )
    finally:
        for number in handed:
            os.close(number)
    try:
        with os.fdopen(refusal, "r") as said:
            why = said.read()
        if why:
            raise WorkerError(
                f"{shlex.join(command)} cannot be started ({os.strerror(int(why))})",
                where="launch",
                fix="give a program behind `--`, as on a command line",
            )
        yield process
    finally:
        os.close(end)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_TERMINATE)
        process.kill()
        process.wait()


def _dismiss(meeting: Meeting, status: int) -> None:
    """Tell the other hosts, which dial again, that all is over."""
    hall = Hall(meeting)
    deadline = time.monotonic() + _LEAVE_SECONDS
    others = set(range(1, meeting.num_hosts))
    told: set[int] = set()
    while told < others and time.monotonic() < deadline:
        there = set(hall.ranks) - told
        if there:
            hall.leave(status)
            told |= there
        time.sleep(0.05)
    hall.close()
    if missing := sorted(others - told):
        _log.warning("hosts %s have not heard of the end", ", ".join(map(str, missing)))


class _Remote:
    """What goes to one host: shows what it says as an error, and remembers the end of it.

    Raises:
        WorkerError: it cannot be started.
    """

    def __init__(self, ssh: Sequence[str], host: str, line: str, key: str) -> None:
        self.host = host
        self._command = shlex.join(ssh)
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._reported = False
        try:
            self.process = subprocess.Popen(
                [*ssh, host, line], stdin=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise WorkerError(
                f"{ssh[0]} cannot be started ({error.strerror or error})",
                where="launch",
                fix="install it, or give --ssh",
            ) from None
        self._reader = threading.Thread(target=self._read, name="alpa-mlir ssh", daemon=True)
        self._reader.start()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{key}\n".encode())
            self.process.stdin.flush()  # It stays open: with it the host's launch ends.

    def _read(self) -> None:
        stream: Any = self.process.stderr
        for line in stream:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
            self._last.append(line.rstrip())

    def report(self, expected: int = 0) -> None:
        """Say, once, if it has ended with another status."""
        code = self.process.poll()
        if self._reported or code is None or code == expected:
            return
        self._reported = True
        self._reader.join(_LAST_WORDS_SECONDS)  # What it left behind may have its output open.
        lines = [line.decode(errors="replace") for line in list(self._last) if line]
        said = f"; its last lines: {' | '.join(lines)}" if lines else "; it said nothing"
        _log.warning("host %s: `%s` %s%s", self.host, self._command, how_it_ended(code), said)

    def end(self) -> None:
        """End the launch there."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_SECONDS_TO_TERMINATE)
        self.process.kill()
        self.process.wait()


def launch_by_ssh(
    command: Sequence[str],
    hosts: Sequence[str],
    *,
    coordinator: str | None = None,
    ssh: Sequence[str] = ("ssh", "-o", "BatchMode=yes"),
    restarts: int = 3,
    logs: Path | None = None,
    start_seconds: float = 600.0,
    encrypt: bool = False,
) -> int:
    """Start a launch on each of some hosts, host 0 being the first; the key goes through SSH.

    Every host has this folder and this Python, at the same place.

    Args:
        coordinator: `HOST:PORT` of host 0; by default its name, at `DEFAULT_PORT`.
        ssh: the command that runs a line on a host; both are added to it.
        command, restarts, logs, start_seconds, encrypt: as of `launch`.

    Returns:
        The status that the program ended with.

    Raises:
        WorkerError: SSH cannot be started.
    """
    key = secrets.token_hex(32)
    coordinator = coordinator or f"{hosts[0].rpartition('@')[2]}:{DEFAULT_PORT}"
    started: list[_Remote] = []
    options = ["--restarts", str(restarts), "--start-seconds", f"{start_seconds:g}"]
    options += ["--logs", str(logs)] if logs else []
    options += ["--encrypt"] if encrypt else []
    path = os.environ.get("PYTHONPATH", "")
    try:
        for rank, host in enumerate(hosts):
            words = [sys.executable, "-m", "alpa_mlir", "launch", "--key-from-input"]
            words += ["--rank", str(rank), "--num-hosts", str(len(hosts))]
            words += ["--coordinator", coordinator, *options, "--"]
            line = f"cd {shlex.quote(os.getcwd())} && PYTHONPATH={shlex.quote(path)} exec "
            line += shlex.join([*words, *command])
            started.append(_Remote(ssh, host, line, key))
        first, *others = started
        while (code := first.process.poll()) is None:
            for remote in others:  # The run may go on without it, and waits for it a while.
                remote.report()
            time.sleep(_LOOK_SECONDS)
        first.report()
        deadline = time.monotonic() + 2 * _LEAVE_SECONDS
        for remote in others:
            with contextlib.suppress(subprocess.TimeoutExpired):
                remote.process.wait(max(0.0, deadline - time.monotonic()))
            remote.report(expected=code)
        return code if code >= 0 else 128 - code
    finally:
        for remote in started:
            remote.end()


def end_with_input() -> str:
    """The key, the first line of the input; this process ends when the input does."""
    reading = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # The program has no part in it.
    os.close(nothing)
    key = b""
    while not key.endswith(b"\n") and len(key) < _LONGEST_KEY:
        more = os.read(reading, 1)
        if not more:
            break
        key += more

    def watch() -> None:
        while os.read(reading, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="alpa-mlir input", daemon=True).start()
    return key.decode(errors="replace").strip()
