"""A worker process whose messages are lost from some step on: test_stalled.py starts it.

Run: python losing_worker.py FOLDER DESCRIPTOR DESCRIPTOR [--die-with-parent]
FOLDER has `lose`, "RANK STEP": worker RANK's messages are lost from its step STEP on. The worker
that loses them takes the file away, so that a later one does not.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from alpa_runtime.hosts import rpc


class _Losing:
    """A transport whose messages may get lost."""

    def __init__(self, transport):
        self.transport = transport
        self.loses = False

    def send(self, *args):
        from alpa_runtime.transport.interface import DONE

        return DONE if self.loses else self.transport.send(*args)

    def __getattr__(self, name):
        return getattr(self.transport, name)


def losing_worker(folder):
    from alpa_runtime.workers.worker import Worker

    class LosingWorker(Worker):
        def __init__(self, plan, placement, rank, devices, transport, **options):
            self.losing = _Losing(transport)
            super().__init__(plan, placement, rank, devices, self.losing, **options)

        def step(self, request):
            mark = folder / "lose"
            with contextlib.suppress(FileNotFoundError):  # Taken away, perhaps just now.
                if mark.read_text() == f"{self.rank} {request.number}":
                    mark.unlink()
                    self.losing.loses = True
            return super().step(request)

    return LosingWorker


class _Host(rpc.HostProcess):
    def load(self, plan, placement, options):
        from alpa_runtime.workers import worker

        worker.Worker = losing_worker(Path(sys.argv[1]))
        super().load(plan, placement, options)


if __name__ == "__main__":
    rpc.main(sys.argv[2:], host=_Host("127.0.0.1"))
