"""A worker process that takes TCP to workers on its own host: test_tls.py starts it.

Run: python tcp_worker.py FOLDER DESCRIPTOR DESCRIPTOR [--die-with-parent]
It writes the kinds of its streams to FOLDER/RANK.
"""

from __future__ import annotations

import sys
from pathlib import Path

from alpa_runtime.hosts import rpc


class _Host(rpc.HostProcess):
    def prepare(self, start):
        from alpa_runtime.transport import connection

        self._rank = start.rank
        connection.can_share = lambda: False
        return super().prepare(start)

    def connect(self, addresses):
        super().connect(addresses)
        streams = [made.stream for made in self._transport._connections.values()]
        kinds = " ".join(f"{stream.family.name} {type(stream).__name__}" for stream in streams)
        Path(sys.argv[1], str(self._rank)).write_text(kinds)


if __name__ == "__main__":
    rpc.main(sys.argv[2:], host=_Host("127.0.0.1"))
