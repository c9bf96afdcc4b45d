"""What brings bytes from memory of one device to memory of another, without going through the host.

A carrier knows memory, not arrays: no JAX here. Which of them two ends use, and in which order they
are told what to do, is in device.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from threading import Event
from typing import Any, Protocol

from alpa_runtime.errors import TransportError


class Memory(Protocol):
    """Bytes of one device that lie in a row; kept alive by whoever holds this."""

    @property
    def address(self) -> int:
        """Of the first byte. Asked for when the bytes are there."""
        ...

    @property
    def nbytes(self) -> int: ...

    def is_ready(self) -> bool:
        """Whether the bytes are there, so that `wait` would return at once."""
        ...

    def wait(self) -> None:
        """Waits, without the interpreter lock, until the bytes are there; raises why they never
        will be."""
        ...


class Block(Memory, Protocol):
    """Memory for what is received. It is used again when nobody holds the block any more: whoever
    uses its bytes holds it until no program reads them."""

    def capsule(self) -> Any:
        """Its bytes for DLPack, as `uint8[nbytes]`."""
        ...


class Source(Protocol):
    """The sending end of a channel between two devices."""

    def put(self, memory: Memory, room: bytes) -> None:
        """Brings bytes to where there is room for them, which the other end's `take` waits for.

        Returns when the memory may change. Called by one thread, and waits without the interpreter
        lock.

        Args:
            room: what `Sink.room` said.
        """
        ...

    def end(self) -> None:
        """Ends what is under way; `put` and `take` raise. Any thread may call it, again too."""
        ...


class Sink(Protocol):
    """The receiving end of a channel between two devices."""

    def room(self, nbytes: int) -> tuple[Block, bytes]:
        """Memory for the next message, and what the sending end has to know of it."""
        ...

    def take(self, block: Block, written: Event) -> None:
        """Called when the sending end may `put`; returns when the bytes are there, or the message
        has failed.

        Args:
            written: is set when the message has failed, and, if the carrier is one-sided, when the
                sending end has said that all bytes are there.
        """
        ...

    def end(self) -> None:
        """See `Source.end`."""
        ...


class Carrier(Protocol):
    """One way to bring bytes from device to device. Devices are numbers of a plan.

    Attributes:
        kind: its name in `CARRIERS`.
        one_sided: only the sending end knows when all bytes are there, and has to say so.
    """

    kind: str
    one_sided: bool

    def invite(self, device: int) -> bytes:
        """What the sending end of a new channel needs to reach this end, which receives on a
        device."""
        ...

    def source(self, device: int, invitation: bytes) -> Source:
        """Opens the sending end of a channel; may wait for the other end to be opened."""
        ...

    def sink(self, device: int, invitation: bytes) -> Sink:
        """Opens the receiving end of a channel; may wait for the other end to be opened.

        Args:
            invitation: this end's own.
        """
        ...

    def close(self) -> None:
        """Gives up what all channels share; they have ended."""
        ...


# Kinds, the best first, and the platforms whose memory they move.
CARRIERS: Mapping[str, tuple[str, ...]] = {"nccl": ("gpu",), "nixl": ("gpu", "cpu")}
# What users may ask for: any of them that all ends have, none, or one of them.
CHOICES = ("auto", "host", *CARRIERS)


def check_choice(choice: str) -> str:
    """The choice, if it is one of `CHOICES`.

    Raises:
        TransportError: it is not.
    """
    if choice not in CHOICES:
        raise TransportError(f"device_transport {choice!r}, expected one of {', '.join(CHOICES)}")
    return choice


def find_carriers(choice: str, platform: str) -> tuple[str, ...]:
    """The kinds that this process can use of what was chosen; `auto` is for GPUs only.

    Raises:
        TransportError: the one that was asked for is not installed, or does not move memory of
            such devices.
    """
    if choice in CARRIERS:
        check_carrier(choice, platform)
        return (choice,)
    found: list[str] = []
    for kind in CARRIERS if choice == "auto" and platform == "gpu" else ():
        with suppress(TransportError):
            check_carrier(kind, platform)
            found.append(kind)
    return tuple(found)


def check_carrier(kind: str, platform: str) -> None:
    """Whether a carrier can be used here for devices of a platform.

    Raises:
        TransportError: it does not move memory of such devices, or is not installed.
    """
    if platform not in CARRIERS[kind]:
        raise TransportError(
            f"{kind} moves memory of {' and '.join(CARRIERS[kind])} devices, the workers have "
            f"{platform} devices",
            fix='give device_transport="auto"',
        )
    module = importlib.import_module(f"alpa_runtime.transport.{kind}")
    module.load(platform)


def make_carrier(kind: str, platform: str, ordinals: Mapping[int, int]) -> Carrier:
    """A carrier for this process's devices.

    Args:
        platform: what the devices are, "cpu" or "gpu".
        ordinals: for each of them, by number of the plan, its number in this process.

    Raises:
        TransportError: as `check_carrier`.
    """
    check_carrier(kind, platform)
    if kind == "nccl":
        from alpa_runtime.transport.nccl import NcclCarrier

        return NcclCarrier(ordinals)
    from alpa_runtime.transport.nixl import NixlCarrier

    return NixlCarrier(platform, ordinals)
