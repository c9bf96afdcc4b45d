"""Trying something in a process of its own, which may crash or hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa_runtime

ANSWER = "alpa_mlir doctor: "


@dataclass(frozen=True)
class Outcome:
    """How a probe ended.

    Attributes:
        facts: what it found; None if it failed.
        error: why it failed, in one line.
    """

    facts: Mapping[str, Any] | None
    error: str = ""


def run_probe(
    name: str, *arguments: str, seconds: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Call a function of `alpa_mlir.doctor.probes` in another process; it leaves nothing behind.

    Args:
        seconds: it is killed after so long.
        environment: variables beside those of this process.
    """
    roots = (Path(__file__).resolve().parents[2], Path(alpa_runtime.__file__).resolve().parents[1])
    path = os.pathsep.join([*map(str, roots), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = [sys.executable, "-P", "-m", "alpa_mlir.doctor.probes", name, *arguments]
    return _outcome(program, seconds, {"PYTHONPATH": path, **(environment or {})})


def _outcome(program: list[str], seconds: float, environment: Mapping[str, str]) -> Outcome:
    ended = run_bounded(program, seconds, environment)
    if isinstance(ended, str):
        return Outcome(None, ended)
    for line in reversed(ended.stdout.splitlines()):
        if line.startswith(ANSWER):
            answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
            if "error" in answer:
                return Outcome(None, str(answer["error"]))
            return Outcome(answer)
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    return Outcome(None, f"{how_it_ended(ended.returncode)}{': ' + said[-1] if said else ''}")


def run_bounded(
    program: list[str], seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | str:
    """Run a program and everything that it starts for so long at most.

    Returns:
        How it ended, or why it did not.
    """
    # Not pipes: they stay open as long as anything that the program started.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen(
                program,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:g} s"
        finally:
            # What it started belongs to its session, and goes with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = [_read(stream) for stream in (out, err)]
    return subprocess.CompletedProcess(program, process.returncode, *texts)


def _read(stream: Any) -> str:
    stream.seek(0)
    return stream.buffer.read().decode(errors="replace")


def how_it_ended(status: int) -> str:
    """An exit status in words.

    Example:
        >>> how_it_ended(-11), how_it_ended(3)
        ('killed by SIGSEGV', 'exit status 3')
    """
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"exit status {status}"
