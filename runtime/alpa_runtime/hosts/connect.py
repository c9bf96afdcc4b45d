"""How a driver connects to a worker process, on this host or another one.

The worker listens, the driver dials twice, and each shows the other's key, as ends of the transport
do; the keys come another way, that of the service which has started the worker.
"""

from __future__ import annotations

import secrets
import socket
import time
from dataclasses import dataclass

from alpa_runtime.errors import TransportError, WorkerError
from alpa_runtime.hosts.rpc import Streams
from alpa_runtime.transport.address import Address, host_identity
from alpa_runtime.transport.frames import PROTOCOL
from alpa_runtime.transport.handshake import Reception, dial, listen

# The worker's end, and the driver's two.
_WORKER, _WORK, _BESIDE = range(3)


@dataclass(frozen=True)
class DriverEnds:
    """Addresses of the driver's two ends, as text; it listens at neither."""

    work: str
    beside: str

    @staticmethod
    def make() -> DriverEnds:
        """Ends with new keys, which can dial by a local socket and by TCP."""
        host = host_identity()
        work, beside = (
            Address(PROTOCOL, end, secrets.token_hex(16), host, "driver", "", -1).to_text()
            for end in (_WORK, _BESIDE)
        )
        return DriverEnds(work, beside)


class Entrance:
    """Where a worker process waits for its driver.

    Args:
        ip: of this host, where others reach it.

    Raises:
        TransportError: nobody can listen there.
    """

    def __init__(self, ip: str, driver: DriverEnds) -> None:
        ends = {
            rank: Address.from_text(text, rank)
            for rank, text in ((_WORK, driver.work), (_BESIDE, driver.beside))
        }
        own, self._listeners = listen(_WORKER, ip, local=True, tcp=True)
        self.address: str = own.to_text()
        self._reception = Reception(own, self._listeners, ends)

    def wait(self, seconds: float) -> Streams:
        """The driver's streams; nobody else can connect, nor a second time.

        Raises:
            TransportError: it did not come in time.
        """
        try:
            came = self._reception.wait(time.monotonic() + seconds)
        finally:
            for listener in self._listeners:
                listener.close()
        return Streams(came[_WORK], came[_BESIDE])


def connect(driver: DriverEnds, address: str, seconds: float, where: str) -> Streams:
    """The driver's side.

    Args:
        address: what the worker's `Entrance` says.
        where: names the worker.

    Raises:
        WorkerError: it cannot be reached, or another process answers.
    """
    deadline = time.monotonic() + seconds
    opened: list[socket.socket] = []
    worker = Address.from_text(address, _WORKER)
    try:
        for end, text in ((_WORK, driver.work), (_BESIDE, driver.beside)):
            opened.append(dial(Address.from_text(text, end), worker, deadline))
    except TransportError as error:
        for stream in opened:
            stream.close()
        place = f"{worker.ip}:{worker.port}"
        raise WorkerError(
            f"the driver cannot connect to its process at {place}: {error.what}",
            where=where,
            fix="let the driver's host connect to the workers' hosts by TCP, at any port",
        ) from None
    return Streams(*opened)
