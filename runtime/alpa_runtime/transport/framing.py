"""Frames, bytes, and files with them, over stream sockets."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from enum import IntEnum

PROTOCOL = 2  # Changes with every change of what goes over a stream.

# Kind, length of the description, number of a block, tag, size in bytes.
HEADER = struct.Struct("<BxHIQQ")


class Kind(IntEnum):
    """What a frame is."""

    DATA = 1  # A message; its data is the payload.
    BLOCK = 2  # A message; its data is the first `size` bytes of a shared block.
    NEW_BLOCK = 3  # A block of `size` bytes, whose file descriptor comes with the frame.
    DROP_BLOCK = 4  # A block that the sender will not use again.


def frame(
    kind: Kind, tag: int = 0, size: int = 0, block: int = 0, description: bytes = b""
) -> bytes:
    """A frame without its payload."""
    return HEADER.pack(kind, len(description), block, tag, size) + description


_FILES_AT_ONCE = 253  # As many as Linux sends with one message.
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_ANCILLARY = socket.CMSG_SPACE(_FILES_AT_ONCE * array.array("i").itemsize)


def send_some(
    stream: socket.socket, parts: list[bytes | memoryview], files: list[int], flags: int
) -> list[bytes | memoryview]:
    """Sends as much as there is room for, and returns the rest.

    Args:
        files: go with the first byte; afterwards they are closed here, and the list is empty.

    Raises:
        OSError: nothing was sent.
    """
    if files:
        numbers = array.array("i", files)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
        sent = stream.sendmsg(parts, ancillary, flags)
        close_files(files)
    elif len(parts) == 1:
        sent = stream.send(parts[0], flags)
        if sent == len(parts[0]):
            return []
    else:
        sent = stream.sendmsg(parts, (), flags)
    left: list[bytes | memoryview] = []
    for part in parts:
        size = len(part)
        if sent < size:
            left.append(part[sent:])
        sent = max(0, sent - size)
    return left


def receive_some(stream: socket.socket, rooms: list[memoryview], files: deque[int]) -> int:
    """Waits for bytes, and the files that come with them; returns the number of bytes.

    Args:
        rooms: filled one after the other.
    """
    count, ancillary, _, _ = stream.recvmsg_into(rooms, _ANCILLARY, _CLOSE_ON_EXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            files.extend(numbers)
    return count


def close_files(files: list[int] | deque[int]) -> None:
    """Closes files and empties their list."""
    while files:
        os.close(files.pop())
