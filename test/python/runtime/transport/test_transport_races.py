"""Threads that meet at a bad moment: each test holds one open that else is over in microseconds."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fake_cupy
import numpy as np
import pytest
from alpa_mlir.errors import TransportError
from alpa_runtime.execution.reshard_steps import Outgoing
from alpa_runtime.execution.transfers import PointToPoint
from alpa_runtime.transport import connection, device, interface, make_transport
from alpa_runtime.transport.interface import connect_in_process
from device_ends import Ends, Numbers, cupy, eventually  # noqa: F401
from test_device_transport import device_threads, filled, later

SECONDS = 20


@pytest.fixture
def two():
    """Two ends whose devices reach each other, from device 0 to 1."""
    ends = Ends(["nccl"], ["nccl"])
    ends.open((0, 1))
    yield ends
    ends.close()
    assert not device_threads()


@pytest.fixture
def shared():
    """Two ends that share memory."""
    ends = [make_transport(rank, ip="127.0.0.1", kinds=["shared_memory"]) for rank in range(2)]
    addresses = [end.address() for end in ends]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda end: end.connect(addresses), ends))
    yield ends
    for end in ends:
        end.close()


def test_a_value_that_is_sent_behind_the_end_of_its_channel(two):
    """The thread that would wait for it is gone."""
    two.host[1].close()
    eventually(lambda: two.device[0]._peers[1].error)
    with pytest.raises(TransportError, match="rank 1 is gone"):
        two.send((0, 1), 1, Numbers(filled(1), threading.Event()))


def test_a_message_that_is_heard_of_when_its_end_has_failed(two, monkeypatch):
    peer = two.device[1]._peers[0]
    heard, failed, real = threading.Event(), threading.Event(), peer._hear

    def hear(record):
        heard.set()
        assert failed.wait(SECONDS)
        real(record)

    monkeypatch.setattr(peer, "_hear", hear)
    two.send((0, 1), 1, filled(1))
    assert heard.wait(SECONDS)
    peer.fail(TransportError("it broke"), True)
    failed.set()
    eventually(lambda: not peer._reader.is_alive())
    receiving = later(lambda: two.receive((0, 1), 1, (1000,)))
    with pytest.raises(TransportError, match="it broke"):
        receiving()


def test_channels_that_cannot_be_opened_are_given_up(monkeypatch):
    def refuse(*_):
        raise fake_cupy.NcclError("no way")

    aborted, real = [], fake_cupy.NcclCommunicator.abort
    monkeypatch.setattr(fake_cupy.NcclCommunicator, "send", refuse)
    monkeypatch.setattr(fake_cupy.NcclCommunicator, "recv", refuse)
    monkeypatch.setattr(
        fake_cupy.NcclCommunicator, "abort", lambda self: aborted.append(self.rank) or real(self)
    )
    ends = Ends(["nccl"], ["nccl"])
    with pytest.raises(fake_cupy.NcclError, match="no way"):
        ends.open((0, 1))
    assert sorted(aborted) == [0, 1]
    ends.close()


def test_device_backends_are_given_up_if_another_end_is_gone():
    class Given:
        kind = "nccl"

        def close(self):
            closed.append(self)

    closed, made = [], []
    hosts = connect_in_process(3)

    def make(_):
        made.append(Given())
        return made[-1]

    calls = [
        later(lambda host=host: device.connect_devices(host, 3, ["nccl"], make))
        for host in hosts[:2]
    ]
    eventually(lambda: len(made) == 2)
    hosts[2].close()  # It has not said what it has.
    for call in calls:
        with pytest.raises(TransportError, match="rank 2 is gone"):
            call()
    assert {id(one) for one in closed} == {id(one) for one in made}


def test_a_send_that_is_asked_for_behind_the_end_of_its_worker():
    """Programs that are given its buffer wait for it."""
    host, _ = connect_in_process(2)
    failures = []
    wires = PointToPoint(host, failures.append)
    send = wires.sender(0, Outgoing(1, 0, 0, 1, (0, 1)), (4,), np.dtype("float32"))
    (sender,) = wires._senders.values()
    host.close()
    wires.close()
    assert not sender.is_alive()

    class NotThere:
        nbytes = 16

        def is_ready(self):
            return False

    waiting = later(send(NotThere(), 0).wait)
    with pytest.raises(TransportError, match="closed"):
        waiting()
    assert not failures


def test_an_end_that_is_closed_while_it_waits_for_another_to_connect():
    files = set(os.listdir("/proc/self/fd"))
    ends = [make_transport(rank, ip="127.0.0.1") for rank in range(3)]
    addresses = [end.address() for end in ends]
    connecting = [later(lambda end=end: end.connect(addresses)) for end in ends[:2]]
    time.sleep(0.3)  # Both may be connected; the third never comes.
    for end, call in zip(ends, connecting, strict=False):
        end.close()
        with pytest.raises(TransportError, match=r"was closed|is closed"):
            call()
    ends[2].close()
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= files)


def test_a_message_for_who_was_interrupted_goes_to_the_next(monkeypatch):
    box, delivered = interface.Mailbox(1), threading.Event()

    class Interrupted:
        def acquire(self):
            assert delivered.wait(SECONDS)
            raise KeyboardInterrupt

        def locked(self):
            return True

        def release(self):
            delivered.set()

    waits = interface._Waiter

    def first(tag):
        monkeypatch.setattr(interface, "_Waiter", waits)
        waiter = waits(tag)
        waiter.gate = Interrupted()
        return waiter

    monkeypatch.setattr(interface, "_Waiter", first)
    byte = np.dtype("uint8")
    interrupted = later(lambda: box.take(3, (1,), byte))
    eventually(lambda: box._waiting)
    waiting = later(lambda: box.take(3, (1,), byte))
    eventually(lambda: len(box._waiting[3]) == 2)
    box.deliver(3, interface.Message(b"uint8[1]", "data"))
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert waiting() == "data"
    assert not box._queues


def test_files_are_not_closed_while_they_are_sent(shared, monkeypatch):
    """Others could be sent in their place: numbers of closed files are used again."""
    sends, begun, closed = connection.send_some, threading.Event(), threading.Event()
    open_then: list[bool] = []

    def send_some(stream, parts, files, flags):
        if flags == connection._AT_ONCE:
            raise BlockingIOError
        if files:
            numbers = list(files)
            begun.set()
            assert closed.wait(SECONDS)
            open_then.extend(os.path.exists(f"/proc/self/fd/{n}") for n in numbers)
        return sends(stream, parts, files, flags)

    monkeypatch.setattr(connection, "send_some", send_some)
    shared[0].send(1, 0, np.zeros(1 << 20, np.uint8))  # In a new block, whose file goes with it.
    assert begun.wait(SECONDS)
    (to,) = shared[0]._connections.values()
    (item,) = to._queue
    to.hang_up(TransportError("it is over"))
    closed.set()
    eventually(lambda: not to._writer.is_alive())
    assert open_then == [True, True]  # The ledger's, and the block's.
    assert not item.files


def test_blocks_come_back_from_a_peer_that_is_found_gone_by_a_send(shared):
    first, second = shared
    free = first._budget.left
    first.send(1, 0, np.zeros(1 << 20, np.uint8))
    assert first._budget.left < free
    second.close()
    with pytest.raises(TransportError, match="tag 1 to rank 1: rank 1 is gone"):
        first.send(1, 1, np.zeros(10, np.uint8))
    assert first._budget.left == free
