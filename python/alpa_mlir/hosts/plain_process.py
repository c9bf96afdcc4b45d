"""The main program of a worker process that no service started: reads calls from a socket.

Run: python -m alpa_mlir.hosts.plain_process FILE_DESCRIPTOR [--die-with-parent]
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from alpa_mlir.hosts.process import (
    CONTROL,
    HostProcess,
    die_with_parent,
    portable_error,
)


def main(descriptor: int, die: bool, host: HostProcess | None = None) -> None:
    """Answer calls until the other end of the socket is gone, then end at once.

    Args:
        descriptor: of the socket.
        die: end when the thread that started this process does.
        host: what answers.

    A message is (number, method, arguments), its answer (number, succeeded, result).
    """
    if die:
        die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends us.
    connection: Any = Connection(descriptor)
    host = host or HostProcess("127.0.0.1")
    sending = threading.Lock()
    lanes = {name: ThreadPoolExecutor(1) for name in ("work", "control")}
    lanes["beside"] = ThreadPoolExecutor(4)

    def answer(number: int, method: str, args: tuple[Any, ...]) -> None:
        succeeded, result = host.answer(method, args)
        try:
            message = pickle.dumps((number, succeeded, result), protocol=5)
        except Exception as error:
            message = pickle.dumps((number, False, portable_error(error)), protocol=5)
        with sending:
            connection.send_bytes(message)

    try:
        while True:
            number, method, args = pickle.loads(connection.recv_bytes())
            lane = "control" if method in CONTROL else "beside" if method in host.beside else "work"
            lanes[lane].submit(answer, number, method, args)
    except (EOFError, OSError):
        os._exit(0)  # JAX would wait for the others of its world.


if __name__ == "__main__":
    main(int(sys.argv[1]), "--die-with-parent" in sys.argv[2:])
