"""Messages from device to device: order, memory, errors, and who goes which way."""

from __future__ import annotations

import gc
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import fake_cupy
import numpy as np
import pytest
from alpa_mlir.errors import TransportError
from alpa_runtime.transport import device
from alpa_runtime.transport.device import (
    CHOICES,
    DEVICE_BACKENDS,
    check_choice,
    find_device_backends,
    make_device_backend,
)
from device_ends import KINDS, Ends, Numbers, bytes_of, cupy, eventually  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st

SECONDS = 20


@pytest.fixture
def ends():
    """Makes connected ends that have these device backends; they are closed after the test."""
    made: list[Ends] = []

    def make(*has):
        made.append(Ends(*has))
        return made[-1]

    yield make
    for one in made:
        one.close()


def filled(value: int, size: int = 1000) -> np.ndarray:
    return np.full(size, value % 251, np.uint8)


def later(call):
    """Starts a call in a thread; what is returned waits for its result, or raises its error."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return lambda: future.result(timeout=SECONDS)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_all_sizes(ends, kind):
    two = ends([kind], [kind])
    two.open((0, 1), (1, 0))
    for tag, size in enumerate((1, 7, 4096, (1 << 16) + 1, 1 << 22)):
        data = np.random.default_rng(size).integers(0, 255, size, np.uint8)
        sent = two.send((0, 1), tag, data), two.send((1, 0), tag, data)
        for channel in ((0, 1), (1, 0)):
            assert bytes_of(two.receive(channel, tag, (size,))) == data.tobytes()
        for sending in sent:
            sending.wait()
            assert sending.done
    assert two.errors == [[], []]


@pytest.mark.parametrize("kind", KINDS)
def test_sending_needs_nobody_who_receives(ends, kind):
    two = ends([kind], [kind])
    two.open((0, 1))
    data = [filled(tag) for tag in range(6)]
    for tag in range(6):
        two.send((0, 1), tag, data[tag]).wait()
    for array in data:
        array[:] = 0xFF  # The sender may change what it has sent.
    for tag in reversed(range(6)):
        assert bytes_of(two.receive((0, 1), tag, (1000,))) == filled(tag).tobytes()


def test_a_value_that_is_not_there_yet_keeps_no_other_channel_waiting(ends):
    two = ends(["nccl"], ["nccl"])
    two.open((0, 1), (2, 1))
    there = threading.Event()
    first = two.send((0, 1), 1, Numbers(filled(1), there))
    second = two.send((0, 1), 1, filled(2))  # Behind the first, whose tag it has.
    third = two.send((2, 1), 2, filled(3))
    assert bytes_of(two.receive((2, 1), 2, (1000,)))[:1] == b"\3"
    third.wait()
    assert not first.done
    assert not second.done
    there.set()
    for value in (1, 2):
        assert bytes_of(two.receive((0, 1), 1, (1000,)))[0] == value
    first.wait()
    second.wait()


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_order_of_sends_and_receives(data):
    """Three ends with two devices each; some values come late, and receivers ask in any order."""
    draw = data.draw
    pairs = [(a, b) for a in range(6) for b in range(6) if a % 3 != b % 3]
    channels = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=4, unique=True))
    sends = draw(
        st.lists(
            st.tuples(st.sampled_from(channels), st.integers(0, 2), st.booleans()), max_size=12
        )
    )
    asked = draw(st.permutations(range(len(sends))))
    three = Ends(["nccl"], ["nccl"], ["nccl"])
    three.open(*channels)
    gates = [threading.Event() for _ in sends]
    tags = [100 * tag + channels.index(channel) for channel, tag, _ in sends]
    order: dict[int, list[int]] = {}  # Of each tag, which belongs to one channel.
    sendings = []
    for i, (channel, _, late) in enumerate(sends):
        order.setdefault(tags[i], []).append(i)
        if not late:
            gates[i].set()
        sendings.append(three.send(channel, tags[i], Numbers(filled(i, 64 + i), gates[i])))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: [gates[i].set() for i in reversed(asked)])
        for i in asked:
            n = order[tags[i]].pop(0)
            block = three.receive(sends[i][0], tags[i], (64 + n,))
            assert bytes_of(block) == filled(n, 64 + n).tobytes()
    for sending in sendings:
        sending.wait()
    assert three.errors == [[], [], []]
    three.close()


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [
        ((4, 5), "float32", r"float32\[20\], expected float32\[4, 5\]"),
        ((20,), "int32", r"float32\[20\], expected int32\[20\]"),
    ],
)
def test_another_message_than_expected(ends, shape, dtype, found):
    two = ends(["nccl"], ["nccl"])
    two.open((0, 1))
    two.send((0, 1), 9, np.zeros(20, np.float32)).wait()
    with pytest.raises(TransportError, match=r"tag 9 from rank 0: the message is " + found):
        two.receive((0, 1), 9, shape, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gone_peer(ends, kind):
    three = ends([kind], [kind], [kind])
    three.open((0, 1), (1, 0), (2, 0))
    three.send((1, 0), 1, filled(5)).wait()
    eventually(lambda: not three.device[0]._peers[1]._arriving)  # It has come.
    there = threading.Event()
    unsent = three.send((0, 1), 3, Numbers(filled(1), there))
    waiting = later(lambda: three.receive((1, 0), 2, (1000,)))
    three.host[1].close()
    three.device[1].close()
    with pytest.raises(TransportError, match="tag 2 from rank 1: rank 1 is gone") as error:
        waiting()
    assert error.value.peer == 1
    there.set()
    with pytest.raises(TransportError, match="tag 3: rank 1 is gone") as error:
        unsent.wait()
    assert error.value.peer == 1
    with pytest.raises(TransportError, match="rank 1"):
        three.send((0, 1), 2, filled(1))
    # What had come before can still be received, and the others go on.
    assert bytes_of(three.receive((1, 0), 1, (1000,)))[0] == 5
    three.send((2, 0), 2, filled(6))
    assert bytes_of(three.receive((2, 0), 2, (1000,)))[0] == 6


def test_a_peer_that_goes_in_the_middle_of_a_message(ends, monkeypatch):
    """Its sender has started: NCCL would wait for the other rank forever."""
    two = ends(["nccl"], ["nccl"])
    two.open((0, 1))
    begun = threading.Event()

    def receive(self, *_):
        begun.set()

    def abort(self):
        if self.rank == 0:
            real(self)
        else:
            dead.append(self)  # Nobody is told by NCCL.

    dead, real = [], fake_cupy.NcclCommunicator.abort
    monkeypatch.setattr(fake_cupy.NcclCommunicator, "recv", receive)
    monkeypatch.setattr(fake_cupy.NcclCommunicator, "abort", abort)
    sending = two.send((0, 1), 1, filled(1))
    assert begun.wait(SECONDS)
    assert not sending.done
    two.host[1].close()
    with pytest.raises(TransportError, match="tag 1: rank 1 is gone"):
        sending.wait()
    eventually(lambda: two.errors[0])
    assert isinstance(two.errors[0][0], TransportError)
    two.close()
    assert not device_threads()
    real(dead[0])


def device_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if "alpa-mlir device" in t.name]


def test_close_wakes_who_waits_and_leaves_no_thread():
    two = Ends(["nccl"], ["nccl"])
    two.open((0, 1), (1, 0))
    waiting = [later(lambda tag=tag: two.receive((1, 0), tag, (1000,))) for tag in range(3)]
    sending = two.send((0, 1), 1, Numbers(filled(1), threading.Event()))
    sending.memory.there.set()
    sending.wait()
    two.close()
    for wait in waiting:
        with pytest.raises(TransportError, match="closed"):
            wait()
    assert not device_threads()
    two.close()


def test_the_end_that_is_closed_reports_no_error(monkeypatch):
    """Nobody may have waited for what it sends on: the bytes are there before it knows that."""
    two = Ends(["nccl"], ["nccl"])
    two.open((0, 1))
    begun = threading.Event()
    monkeypatch.setattr(fake_cupy.NcclCommunicator, "recv", lambda *_: begun.set())
    two.send((0, 1), 1, filled(1))
    assert begun.wait(SECONDS)
    two.close()
    assert two.errors == [[], []]
    assert not device_threads()


@settings(max_examples=10, deadline=None)
@given(dead=st.integers(0, 2), after=st.integers(0, 30), seed=st.integers(0, 1000))
def test_an_end_that_dies_at_any_moment_keeps_nobody_waiting(dead, after, seed):
    """All ends send to each other; what comes is right, and the rest says who is gone."""
    three = Ends(["nccl"], ["nccl"], ["nccl"])
    channels = [(a, b) for a in range(3) for b in range(3) if a != b]
    three.open(*channels)
    draw = np.random.default_rng(seed)
    messages = [(channels[i], tag) for tag, i in enumerate(draw.integers(0, 6, 30))]
    started = threading.Semaphore(0)

    def send(channel, tag):
        started.release()
        three.send(channel, tag, filled(tag, 20_000)).wait()

    def receive(channel, tag):
        assert bytes_of(three.receive(channel, tag, (20_000,))) == filled(tag, 20_000).tobytes()

    def die():
        for _ in range(after):
            started.acquire()
        three.host[dead].close()
        three.device[dead].close()

    with ThreadPoolExecutor(len(messages) * 2 + 1) as pool:
        calls = [(pool.submit(do, *m), m[0]) for m in messages for do in (send, receive)]
        pool.submit(die)
        for call, channel in calls:
            error = call.exception(timeout=SECONDS)
            if error is not None:
                assert isinstance(error, TransportError)
                assert dead in channel
                assert re.search(rf"rank {dead} |NcclError|has ended", str(error)), str(error)
    three.close()
    assert not device_threads()


class Broken(Numbers):
    def is_ready(self):
        return False

    def wait(self):
        raise ValueError("its program failed")


def test_a_value_that_never_comes(ends):
    two = ends(["nccl"], ["nccl"])
    two.open((0, 1))
    sending = two.send((0, 1), 1, Broken(filled(1)))
    with pytest.raises(TransportError, match="tag 1: ValueError: its program failed"):
        sending.wait()
    eventually(lambda: two.errors[0])
    assert isinstance(two.errors[0][0], ValueError)


def test_what_goes_wrong_in_nccl_ends_both_ends(ends, monkeypatch):
    two = ends(["nccl"], ["nccl"])
    two.open((0, 1))

    def send(self, *_):
        raise fake_cupy.NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR")

    monkeypatch.setattr(fake_cupy.NcclCommunicator, "send", send)
    sending = two.send((0, 1), 1, filled(1))
    with pytest.raises(TransportError, match="tag 1: NcclError: NCCL_ERROR_UNHANDLED"):
        sending.wait()
    eventually(lambda: two.errors[0])
    two.host[0].close()  # As a worker that has failed does.
    with pytest.raises(TransportError, match=r"rank 0 is gone|NcclError"):
        two.receive((0, 1), 1, (1000,))


def test_no_memory_for_a_message(ends, monkeypatch):
    two = ends(["nccl"], ["nccl"])
    two.open((0, 1))
    monkeypatch.setattr(fake_cupy.MemoryPool, "limit", 5000)
    two.send((0, 1), 1, filled(1, 5000)).wait()
    two.send((0, 1), 2, filled(1, 5001))
    with pytest.raises(TransportError, match=r"no memory on the GPU for a message of 5001 bytes"):
        two.receive((0, 1), 2, (5001,))
    eventually(lambda: two.errors[1])


def test_a_channel_that_the_other_end_does_not_expect(ends):
    two = ends(["nccl"], ["nccl"])
    two.device[0].outlet(1, (2, 1))
    opening = device._Record(device._Kind.INVITATION, 2, 3, rest=bytes(128))
    device._say(two.host[1], 0, device._OPEN, opening)
    said = "rank 1 opens a channel from device 2 to 3, expected 2 to 1; fix: load the same plan"
    with pytest.raises(TransportError, match=said):
        two.device[0].open()


def test_a_message_on_a_channel_that_nobody_opened(ends):
    two = ends(["nccl"], ["nccl"])
    two.open((0, 1))
    offer = device._Record(device._Kind.OFFER, 2, 3, 1, 1, 1000, b"uint8[1000]")
    device._say(two.host[0], 1, device._CONTROL, offer)
    with pytest.raises(TransportError, match="sends from device 2 to 3, which this end does not"):
        two.receive((0, 1), 7, (1000,))
    eventually(lambda: two.errors[1])


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_used_again_only_when_nobody_holds_it(ends, kind):
    two = ends([kind], [kind])
    two.open((0, 1))
    size = 100_000
    kept, seen = [], set()
    for value in range(8):
        two.send((0, 1), 1, filled(value, size))
        block = two.receive((0, 1), 1, (size,))
        seen.add(block.address)
        if value % 2:
            kept.append((value, block))
    for value, block in kept:
        assert bytes_of(block) == filled(value, size).tobytes()
    assert len({block.address for _, block in kept}) == len(kept)
    del block
    kept.clear()
    gc.collect()
    for value in range(8):
        two.send((0, 1), 1, filled(value, size))
        assert two.receive((0, 1), 1, (size,)).address in seen


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_handed_on_as_they_are(ends, kind):
    three = ends([kind], [kind], [kind])
    three.open((0, 1), (1, 2))
    three.send((0, 1), 1, filled(7))
    block = three.receive((0, 1), 1, (1000,))
    three.device[1].outlet(2, (1, 2)).send(5, b"uint8[1000]", block).wait()
    assert bytes_of(three.receive((1, 2), 5, (1000,))) == filled(7).tobytes()


def test_ends_agree_on_what_both_have(ends):
    three = ends(["nccl"], [], ["nccl"])
    reached = [[end.reaches(peer) for peer in range(3)] for end in three.device]
    assert reached == [[False, False, True], [False] * 3, [True, False, False]]
    assert three.device[0].backend_of(2) == "nccl"
    three.open((0, 2))
    three.send((0, 2), 1, filled(1))
    assert bytes_of(three.receive((0, 2), 1, (1000,)))[0] == 1


def test_choices():
    assert ("auto", "host", *DEVICE_BACKENDS) == CHOICES
    with pytest.raises(TransportError, match="device_transport 'ib', expected one of auto, host,"):
        check_choice("ib")
    with pytest.raises(TransportError, match=r"nccl moves memory of gpu devices, .* cpu "):
        find_device_backends("nccl", "cpu")
    assert find_device_backends("host", "gpu") == find_device_backends("auto", "cpu") == ()
    assert find_device_backends("auto", "gpu")[0] == "nccl"


def test_what_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TransportError, match=r"NCCL: CuPy cannot .*'alpa-mlir\[nccl\]'"):
        make_device_backend("nccl", "gpu", {0: 0})
    with pytest.raises(TransportError, match=r"NIXL: NIXL cannot .*'alpa-mlir\[nixl\]'"):
        make_device_backend("nixl", "cpu", {0: 0})
    for name, module in fake_cupy.modules(available=False).items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(TransportError, match="CuPy does not find NCCL's library"):
        make_device_backend("nccl", "gpu", {0: 0})
    assert find_device_backends("auto", "gpu") == ()
