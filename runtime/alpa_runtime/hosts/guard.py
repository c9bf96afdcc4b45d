"""Runs a program for another process, and ends with it, or with that process, all that it started.

Run: python guard.py ALIVE_DESCRIPTOR ERROR_DESCRIPTOR HANDED_DESCRIPTOR PROGRAM ..

ALIVE is the reading end of a pipe: the program is ended when the writing end is gone, however the
process that has it ended. If the program cannot be started, the error's number is written to ERROR.
HANDED goes to the program. The status is the program's, 128 and the signal's number if it died.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TERMINATE_SECONDS = 10.0  # From SIGTERM to SIGKILL, for the program.
LEFT_SECONDS = 5.0  # The same for what it leaves behind.
_LOOK_SECONDS = 0.05
_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Of a whole group: not meant for it.


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends, even if it is stopped."""
    _prctl(_DIE_WITH_PARENT, int(signal.SIGKILL))


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those have, as far as they have not ended."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            text = entry.read_text(errors="replace")
            state, parent = text[text.rindex(")") + 2 :].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


class _Program:
    """The program, and whatever of its processes comes to this one when their parents end."""

    def __init__(self, command: Sequence[str]) -> None:
        _prctl(_ADOPT_ORPHANS, 1)
        self.woken, wake = os.pipe()
        for end in (self.woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, _wake)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}

        def prepare() -> None:
            for number, handler in before.items():
                usual = handler == signal.default_int_handler
                signal.signal(number, signal.SIG_DFL if usual else handler)
            die_with_parent()

        self._process = subprocess.Popen(command, close_fds=False, preexec_fn=prepare)
        self.status: int | None = None

    def look(self, seconds: float | None, alive: int | None = None) -> bool:
        """Wait until a process ends or `alive` does; whether the latter still goes on."""
        watched = [self.woken] if alive is None else [self.woken, alive]
        ready = select.select(watched, [], [], seconds)[0]
        if self.woken in ready:
            os.read(self.woken, 4096)
        self._reap()
        return alive not in ready or bool(os.read(alive, 4096))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._process.pid:
                    code = os.waitstatus_to_exitcode(found[1])
                    self.status = code if code >= 0 else 128 - code
                    self._process.returncode = code

    def terminate(self) -> None:
        """Ask it to end, and wait a while."""
        if self.status is None:
            _signal(self._process.pid, signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_SECONDS
        while self.status is None and (left := deadline - time.monotonic()) > 0:
            self.look(left)

    def end_all(self) -> None:
        """End what is left of it."""
        own = os.getpid()
        for pid in descendants(own):
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + LEFT_SECONDS
        while left := descendants(own):
            if time.monotonic() > deadline:
                for pid in left:
                    _signal(pid, signal.SIGKILL)
            self.look(_LOOK_SECONDS)
        self._reap()


def _wake(number: int, frame: object) -> None:
    """A signal that is handled is written to the descriptor that `look` reads."""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def main(arguments: Sequence[str]) -> int:
    """Run it; see the module."""
    alive, error, handed = map(int, arguments[:3])
    for end in (alive, error):
        os.set_inheritable(end, False)
    try:
        program = _Program(arguments[3:])
    except OSError as failure:
        os.write(error, str(failure.errno or 0).encode())
        return 1
    os.close(error)
    os.close(handed)
    while program.status is None:
        if not program.look(None, alive):
            program.terminate()
            break
    program.end_all()
    return 128 + signal.SIGKILL if program.status is None else program.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
