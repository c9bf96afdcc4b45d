"""The main program of a worker process that no service started: reads calls from two sockets.

Run: python -m alpa_runtime.hosts.worker_main WORK_DESCRIPTOR BESIDE_DESCRIPTOR [--die-with-parent]
"""

from __future__ import annotations

import socket
import sys

from alpa_runtime.hosts.process import HostProcess, die_with_parent
from alpa_runtime.hosts.rpc import Streams, answer_calls


def main(work: int, beside: int, die: bool, host: HostProcess | None = None) -> None:
    """Answer calls until the other end of a socket is gone, then end at once.

    Args:
        work, beside: descriptors of the sockets of `Streams`.
        die: end when the thread that started this process does.
        host: what answers.
    """
    if die:
        die_with_parent()
    streams = Streams(socket.socket(fileno=work), socket.socket(fileno=beside))
    answer_calls(streams, host or HostProcess("127.0.0.1"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "--die-with-parent" in sys.argv[3:])
