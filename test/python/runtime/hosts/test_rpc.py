"""Calls between driver and worker processes: messages, who may connect, what a full stream does."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import numpy as np
import pytest
import steps
from alpa_mlir import errors
from alpa_runtime.hosts.rpc import DriverEnds, Entrance, MessageStream, connect
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.transport.connection import Address, own_ip
from test_hosts import BUSY, TWO, freeze, gone, notice_soon, running


@pytest.fixture
def ends():
    pair = [MessageStream(end) for end in socket.socketpair()]
    yield pair
    for stream in pair:
        stream.end()
        stream.close()


def test_messages_arrive_as_they_were(ends):
    rng = np.random.default_rng(0)
    message = {
        "small": rng.standard_normal(7),
        "large": rng.standard_normal((300, 1000)),
        "columns": np.asfortranarray(rng.standard_normal((400, 500))),
        "every other": rng.standard_normal(40_000)[::2],
        "none": np.zeros((0, 3)),
        "text": "x" * 100_000,
    }
    sending = threading.Thread(target=lambda: [ends[0].send((i, message)) for i in range(2)])
    sending.start()
    for number in range(2):
        found, received = ends[1].receive()
        assert (found, received.keys()) == (number, message.keys())
        for key, value in message.items():
            np.testing.assert_array_equal(received[key], value)
        assert received["large"].ctypes.data % 64 == 0
        received["large"][0] = 0.0  # It is the receiver's own.
    sending.join()


def test_what_cannot_be_pickled_is_not_begun(ends):
    with pytest.raises(Exception, match="pickle"):
        ends[0].send((np.zeros(10_000), lambda: 0))
    ends[0].send("next")
    assert ends[1].receive() == "next"
    ends[0].end()
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(BrokenPipeError):
        ends[1].send(np.zeros(10_000))


def elsewhere(driver):
    """The driver's ends, as if it ran on another host."""
    texts = (driver.work, driver.beside)
    moved = [replace(Address.from_text(text, i + 1), host="other") for i, text in enumerate(texts)]
    return DriverEnds(*[address.to_text() for address in moved])


@pytest.mark.parametrize("far", [False, True])
def test_a_driver_connects_and_nobody_else(far):
    driver = DriverEnds.make()
    if far:
        driver = elsewhere(driver)
    entrance = Entrance(own_ip(), driver)
    found = []
    waiting = threading.Thread(target=lambda: found.append(entrance.wait(30)))
    waiting.start()
    stranger = DriverEnds.make()
    with pytest.raises(errors.WorkerError, match=r"worker 1: the driver cannot connect.*refused"):
        connect(stranger, entrance.address, 10, "worker 1")
    other = replace(Address.from_text(entrance.address, 0), key="guessed").to_text()
    with pytest.raises(errors.WorkerError, match="does not know the worker's key"):
        connect(driver, other, 10, "worker 1")
    ours = connect(driver, entrance.address, 10, "worker 1")
    waiting.join()
    (theirs,) = found
    for name in ("work", "beside"):
        near, remote = getattr(ours, name), getattr(theirs, name)
        assert near.family == (socket.AF_INET if far else socket.AF_UNIX)
        near.sendall(name.encode())
        assert remote.recv(10) == name.encode()
        near.close()
        remote.close()
    with pytest.raises(errors.WorkerError, match=r"cannot be reached.*fix: let the driver's host"):
        connect(driver, entrance.address, 10, "worker 1")


def test_a_driver_that_stays_away_is_not_waited_for():
    with pytest.raises(errors.TransportError, match="the driver's pings did not connect"):
        Entrance(own_ip(), DriverEnds.make()).wait(0.05)


def test_a_full_stream_hides_no_frozen_worker():
    """The driver waits in the middle of a batch that a stopped worker does not read."""
    _, group = ProcessWorkers(platform="cpu", limits=BUSY).start(steps.two_stage_plan(2), TWO)
    processes = running(group.pids)
    notice_soon(group, 2)
    freeze(group.pids[1])
    batch = (((0, 1 << 24),), np.zeros(1 << 24, np.float32))
    call = group.call(1, "put", 0, 0, (batch,))
    with pytest.raises(errors.WorkerLostError, match="worker 1: no answer for 2 s"):
        call.result(60)
    group.close()
    assert gone(processes)


def test_what_workers_print_is_no_output_of_the_program(capfd):
    workers = ProcessWorkers(TWO, program=("-c", "print('from a worker')"))
    with pytest.raises(errors.WorkerLostError, match="ended with status 0"):
        workers.start(steps.two_stage_plan())
    out, err = capfd.readouterr()
    assert out == ""
    assert "from a worker" in err
