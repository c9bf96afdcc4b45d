"""What goes over a stream between two ends.

A stream is a sequence of frames: a header, a description, a payload. The lengths are in the header;
all numbers are little-endian.
"""

from __future__ import annotations

import struct
from enum import IntEnum

PROTOCOL = 1  # Changes with every change of what goes over a stream.

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
