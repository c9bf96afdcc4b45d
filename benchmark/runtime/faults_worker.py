"""The worker process of faults.py: like any other, until its time has come.

Run by faults.py: python benchmark/runtime/faults_worker.py FOLDER DESCRIPTOR DESCRIPTOR
[--die-with-parent]
FOLDER has `accidents.json`, and `base`, the number of the step that this group begins with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alpa_runtime.hosts import rpc

FOLDER = Path(sys.argv[1])


class _Transport:
    """A transport whose sends can be counted."""

    def __init__(self, transport: Any, sent: Callable[[], None]) -> None:
        self._transport = transport
        self._sent = sent

    def send(self, *args: Any) -> Any:
        sending = self._transport.send(*args)
        self._sent()
        return sending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _dying_worker() -> Any:
    from alpa_runtime.workers.worker import Worker

    class DyingWorker(Worker):
        """Dies, or stops, before an instruction or while a message is on its way, as
        `accidents.json` says.

        A worker that sends nothing to others dies before instructions only.
        """

        def __init__(
            self,
            plan: Any,
            placement: Any,
            rank: int,
            devices: Any,
            transport: Any,
            **options: Any,
        ) -> None:
            self._base = int((FOLDER / "base").read_text())
            self._kill: dict[str, Any] = {}
            self._sends = self._sends_before = 0
            wrapped: Any = _Transport(transport, self._sent)
            super().__init__(plan, placement, rank, devices, wrapped, **options)
            kills = json.loads((FOLDER / "accidents.json").read_text())
            kills = [kill for kill in kills if kill["kind"] in ("kills", "stops")]
            wires: Any = self._wires
            if not wires._senders:  # Nothing of it is ever on its way.
                kills = [kill | {"at": "instruction"} for kill in kills]
            self._kills = {k["step"]: k for k in kills if k["rank"] == rank}
            bound: Any = self._bound
            starts = bound._steps
            self._count = len(starts)
            bound._steps = [self._before(i, start) for i, start in enumerate(starts)]

        def step(self, request: Any) -> Any:
            kill = self._kills.get(self._base + request.number, {})
            if kill and not self._mark(kill).exists():
                self._kill = kill  # Sends of this step may come while the next one is started.
            self._sends, self._sends_before = 0, self._sends or self._sends_before
            return super().step(request)

        def _mark(self, kill: dict[str, Any]) -> Path:
            return FOLDER / f"happened-{kill['step']}"

        def _before(self, index: int, start: Callable[[Any], None]) -> Callable[[Any], None]:
            def run(buffers: Any) -> None:
                kill = self._kill
                if kill.get("at") == "instruction" and index == int(kill["part"] * self._count):
                    self._die(kill)
                start(buffers)

            return run

        def _sent(self) -> None:
            kill, count = self._kill, self._sends
            self._sends += 1
            if kill.get("at") == "transfer" and count >= int(kill["part"] * self._sends_before):
                self._kill = {}
                threading.Timer(kill["delay"], self._die, [kill]).start()

        def _die(self, kill: dict[str, Any]) -> None:
            self._mark(kill).write_text(str(time.monotonic()))
            number = signal.SIGSTOP if kill["kind"] == "stops" else signal.SIGKILL
            os.kill(os.getpid(), number)

    return DyingWorker


class _Finder(rpc.HostProcess):
    """Loads the dying worker in place of the usual one."""

    def load(self, plan: Any, placement: Any, options: Any) -> None:
        from alpa_runtime.workers import worker

        if not hasattr(worker, "Usual"):
            setattr(worker, "Usual", worker.Worker)  # noqa: B010
            setattr(worker, "Worker", _dying_worker())  # noqa: B010
        super().load(plan, placement, options)


if __name__ == "__main__":
    rpc.main(sys.argv[2:], host=_Finder("127.0.0.1"))
