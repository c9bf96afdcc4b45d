"""Messages come whole and in order however a stream cuts them, whichever is asked for first."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from alpa_mlir.errors import TransportError
from alpa_runtime.transport.connection import Connection
from alpa_runtime.transport.framing import Kind, frame
from alpa_runtime.transport.interface import description
from alpa_runtime.transport.shared_memory import MemoryPool
from hypothesis import given, settings
from hypothesis import strategies as st

BYTES = np.dtype("uint8")


class Pieces:
    """A stream whose reads give no more than a piece each; at the end the peer is gone."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.data = data
        self.sizes = deque(sizes)

    def recvmsg_into(self, rooms, ancillary=0, flags=0):
        count = min(self.sizes.popleft() if self.sizes else len(self.data), len(self.data))
        left, self.data = self.data[:count], self.data[count:]
        taken = 0
        for room in rooms:
            part = left[: len(room)]
            room[: len(part)] = part
            left, taken = left[len(part) :], taken + len(part)
        self.data = left + self.data
        return taken, [], 0, None

    def recv_into(self, room, size=0, flags=0):
        return self.recvmsg_into([room])[0]

    def shutdown(self, how):
        pass

    def close(self):
        pass


def connection(data: bytes, sizes: list[int]) -> Connection:
    return Connection(0, 1, Pieces(data, sizes), MemoryPool())


def message(tag: int, values: np.ndarray) -> bytes:
    said = description(values.shape, values.dtype)
    return frame(Kind.DATA, tag, values.nbytes, 0, said) + values.tobytes()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_cut_anywhere(data):
    shapes = st.sampled_from([0, 1, 7, 100, 1 << 14, (1 << 14) + 1, 100_000])
    sent = data.draw(st.lists(st.tuples(st.integers(0, 2), shapes), max_size=6))
    arrays = [
        (tag, np.random.default_rng(i).integers(0, 256, size, BYTES))
        for i, (tag, size) in enumerate(sent)
    ]
    stream = b"".join(message(tag, values) for tag, values in arrays)
    sizes = data.draw(st.lists(st.integers(1, 30_000), max_size=40))
    end = connection(stream, sizes)
    wanted = [deque(values for t, values in arrays if t == tag) for tag in range(3)]
    for tag in data.draw(st.permutations([tag for tag, _ in sent])):
        values = wanted[tag].popleft()
        found = end.mailbox.receive(tag, values.shape, BYTES)
        assert found.tobytes() == values.tobytes()
        found.fill(0)  # It may be changed.
        assert not values.size or found.ctypes.data % 64 == 0
    with pytest.raises(TransportError, match="rank 1 is gone"):
        end.mailbox.receive(0, (1,), BYTES)
    end.close()


def test_a_message_of_the_same_size_that_is_another():
    """Only what was said tells them apart; what follows is not lost."""
    first, second = np.arange(4, dtype="int32"), np.arange(4, dtype="float32")
    end = connection(message(3, first) + message(3, second), [])
    with pytest.raises(TransportError, match=r"the message is int32\[4\], expected float32\[4\]"):
        end.mailbox.receive(3, (4,), np.dtype("float32"))
    assert end.mailbox.receive(3, (4,), np.dtype("float32")).tolist() == [0, 1, 2, 3]


def test_a_dtype_that_no_message_has_ends_nothing():
    end = connection(message(3, np.arange(4)), [])
    with pytest.raises(TransportError, match="dtype object"):
        end.mailbox.receive(3, (4,), np.dtype("object"))
    assert end.mailbox.receive(3, (4,), np.dtype("int64")).tolist() == [0, 1, 2, 3]
