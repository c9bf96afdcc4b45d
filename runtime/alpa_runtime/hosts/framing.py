"""Messages over a stream socket: anything that can be pickled, large arrays without a copy."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from typing import Any

from alpa_runtime.transport.memory import aligned

# Bytes of the pickle, number of large buffers that follow it; then the bytes of each of them.
_HEAD = struct.Struct("<QI")
_SIZE = struct.Struct("<Q")
_LARGE = 1 << 14  # Smaller buffers are part of the pickle.
_READ_AT_ONCE = 1 << 16


class MessageStream:
    """One end of a connected socket. Any thread may send; one at a time receives.

    Args:
        connected: closed by `close`.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader: Any = connected.makefile("rb", _READ_AT_ONCE)
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message; waits while the socket is full.

        Raises:
            OSError: the other end is gone.
            Exception: the message cannot be pickled; nothing was sent.
            BaseException: such as KeyboardInterrupt, in the middle of it: both ends are ended, as
                nobody knows where the next message would begin.
        """
        large: list[memoryview] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes >= _LARGE:
                large.append(view)
            return view.nbytes < _LARGE

        body = pickle.dumps(message, protocol=5, buffer_callback=is_small)
        sizes = b"".join(_SIZE.pack(view.nbytes) for view in large)
        with self._sending:
            try:
                self._socket.sendall(_HEAD.pack(len(body), len(large)) + sizes + body)
                for view in large:
                    self._socket.sendall(view)
            except BaseException:
                self.end()
                raise

    def receive(self) -> Any:
        """Wait for the next message. Its large arrays lie in aligned memory of their own.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        length, count = _HEAD.unpack(self._exactly(_HEAD.size))
        sizes = [_SIZE.unpack(self._exactly(_SIZE.size))[0] for _ in range(count)]
        body = self._exactly(length)
        buffers = [aligned(size) for size in sizes]
        for buffer in buffers:
            if self._reader.readinto(buffer) < buffer.nbytes:
                raise EOFError
        return pickle.loads(body, buffers=buffers)

    def _exactly(self, size: int) -> bytes:
        found: bytes = self._reader.read(size)
        if len(found) < size:
            raise EOFError
        return found

    def end(self) -> None:
        """Both ends learn that nothing more comes; whoever waits here is woken."""
        with contextlib.suppress(OSError):  # The other end was faster.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; nobody may be waiting in it."""
        self._reader.close()
        self._socket.close()
