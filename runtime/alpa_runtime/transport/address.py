"""What an end tells the others about how to reach it."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.frames import PROTOCOL


@dataclass(frozen=True)
class Address:
    """One end.

    Attributes:
        key: random; who connects has to know it.
        host: of processes that can share memory; see `host_identity`.
        local: name of a socket on that host, or "" if the end shares no memory.
        ip, port: of a TCP socket, or "" and 0.
    """

    protocol: int
    rank: int
    key: str
    host: str
    local: str
    ip: str
    port: int

    def to_text(self) -> str:
        """As JSON on one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str, rank: int) -> Address:
        """Reads the address of a rank.

        Raises:
            TransportError: it is not an address of this version, or of another rank.
        """
        where = f"address of rank {rank}"
        try:
            fields: Any = json.loads(text)
            if fields["protocol"] != PROTOCOL:
                raise other_version(fields["protocol"], where)
            address = Address(**fields)
            if any(
                type(value) is not type(getattr(_EXAMPLE, key)) for key, value in fields.items()
            ):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            raise TransportError(
                f"{text!r} is not what `address()` gives",
                where=where,
                fix="give connect() the addresses that make_transport's ends give",
            ) from None
        if address.rank != rank:
            raise TransportError(f"it is the address of rank {address.rank}", where=where)
        return address

    def through(self, other: Address) -> str:
        """How this end and another one reach each other: "local" or "tcp".

        Raises:
            TransportError: in no way.
        """
        if self.local and other.local and self.host == other.host:
            return "local"
        if self.port and other.port:
            return "tcp"
        raise TransportError(
            f"rank {self.rank} can reach rank {other.rank} neither by shared memory nor by TCP",
            fix="allow both kinds",
            peer=other.rank,
        )


_EXAMPLE = Address(PROTOCOL, 0, "", "", "", "", 0)


def other_version(found: int, where: str, peer: int | None = None) -> TransportError:
    """The error of an end that speaks another version of the protocol."""
    return TransportError(
        f"version {found} of the transport's protocol, expected {PROTOCOL}",
        where=where,
        fix="install the same version of alpa_mlir in all workers",
        peer=peer,
    )


def host_identity() -> str:
    """The same for two processes that see each other's local sockets: one boot of one machine, and
    one network namespace. Empty where there are no such sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


def own_ip() -> str:
    """The address of this host on the network that other hosts are on, as far as it can tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing: it only finds the route.
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
