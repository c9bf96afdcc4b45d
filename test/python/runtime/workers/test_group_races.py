"""Drivers and workers that meet at a bad moment, which each test holds open."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import handmade
import numpy as np
import pytest
import steps
from alpa_mlir.errors import TransportError, WorkerError, WorkerLostError
from alpa_runtime.arrays import DistributedArray
from alpa_runtime.hosts import rpc as process_calls
from alpa_runtime.hosts import threads, watchdog
from alpa_runtime.hosts.process_group import Limits, ProcessGroup
from alpa_runtime.hosts.rpc import MessageStream, RpcClient, Streams
from alpa_runtime.hosts.threads import ThreadWorkers
from alpa_runtime.worker_group import Placement, StepReply
from alpa_runtime.workers.driver import DistributedPlan, Failure, PendingSteps, cause_behind
from alpa_runtime.workers.worker import Worker
from device_ends import eventually

SECONDS = 20
TWO = Placement(((0, 1), (2, 3)))


class Group(ProcessGroup):
    """Processes that are futures of answers to pings."""

    def __init__(self, size, limits=None):
        super().__init__(size, limits or Limits())
        self.answers, self.ended = {}, []

    def _send(self, rank, method, args):
        return self.answers[rank]

    def _end(self, rank):
        self.ended.append(rank)

    def _release(self):
        pass

    def met(self, facts):
        pass


class Answer:
    def __init__(self, value=None, seconds=0.0):
        self.value, self.seconds, self.there = value, seconds, value is not None

    def done(self):
        return self.there

    def result(self, timeout=None):
        if not self.there:
            raise TimeoutError
        if isinstance(self.value, Exception):
            raise self.value
        return True, self.value


def test_a_worker_that_ends_with_its_group_was_not_lost():
    """Somebody still waits for an answer, and sees the process end."""
    group = Group(1)
    group.answers[0] = Answer((True, None))
    group.close()
    assert "died" in str(group.lose(0, "died of SIGKILL"))
    with pytest.raises(WorkerError, match="the workers were closed"):
        group.call(0, "ping")


def test_a_driver_that_was_stopped_calls_nobody_frozen(monkeypatch):
    """The answer has come, and the thread that reads it has not run yet."""
    clock = 100.0
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: clock))
    group, looking = Group(1, Limits(frozen_seconds=5)), watchdog.Watchdog()
    group.answers[0] = answer = Answer()
    looking.look(group)
    clock += 1000
    looking.look(group)
    answer.value, answer.there = {"progress": None, "error": None}, True
    looking.look(group)
    group.answers[0] = Answer()
    looking.look(group)
    for _ in range(10):
        clock += 0.5
        looking.look(group)
    clock += 0.5
    with pytest.raises(WorkerLostError, match="no answer for 5 s: frozen"):
        looking.look(group)
    assert group.ended == [0]


@pytest.fixture
def calls():
    """A driver's end, and the streams of the process."""
    pairs = socket.socketpair(), socket.socketpair()
    made = RpcClient(
        Streams(pairs[0][0], pairs[1][0]), lambda: ("it ended", False), "worker process 7"
    )
    there = [MessageStream(far) for _, far in pairs]
    yield made, *there
    made.end()
    for stream in there:
        stream.close()


def test_a_process_that_ends_before_its_driver_listens(monkeypatch):
    class Quick(threading.Thread):
        def start(self):
            super().start()
            self.join(0.5)  # What it does at once is done before anything else.

    monkeypatch.setattr(
        process_calls, "threading", SimpleNamespace(Thread=Quick, Lock=threading.Lock)
    )
    pairs = socket.socketpair(), socket.socketpair()
    for _, far in pairs:
        far.close()
    made = RpcClient(
        Streams(pairs[0][0], pairs[1][0]), lambda: ("it ended", True), "worker process 7"
    )
    for beside in (False, True):
        with pytest.raises(WorkerLostError, match="worker process 7: it ended") as caught:
            made.send("step", (), beside=beside).result(SECONDS)
        assert caught.value.out_of_memory


class OnlyThere:
    """What only the other process can unpickle."""

    def __reduce__(self):
        return int, ("no number",)


def test_an_answer_that_cannot_be_read_keeps_nobody_waiting(calls):
    driver, work, _ = calls
    futures = [driver.send("step", (), beside=beside) for beside in (False, True)]
    number, method, _ = work.receive()
    assert method == "step"
    work.send((number, True, OnlyThere()))
    for future in futures:
        with pytest.raises(WorkerLostError, match=r"7: its answer cannot be read: ValueError"):
            future.result(SECONDS)


def test_a_message_that_is_interrupted_ends_the_stream():
    """What comes next would be taken for its rest."""
    near, far = socket.socketpair()
    far.settimeout(SECONDS)

    class Interrupted:
        def __init__(self):
            self.sent = 0

        def sendall(self, data):
            self.sent += 1
            if self.sent == 2:  # Between the head and a large array.
                raise KeyboardInterrupt
            near.sendall(data)

        def __getattr__(self, name):
            return getattr(near, name)

    stream, other = MessageStream(Interrupted()), MessageStream(far)
    with pytest.raises(AttributeError, match=r"pickle|local object"):
        stream.send(lambda: None)
    stream.send("it goes on")
    stream._socket.sent = 0
    assert other.receive() == "it goes on"
    with pytest.raises(KeyboardInterrupt):
        stream.send(np.zeros(1 << 20))
    with pytest.raises(EOFError):
        other.receive()
    with pytest.raises(OSError, match="pipe"):
        stream.send("it does not go on")
    for one in (stream, other):
        one.close()


def test_workers_that_are_made_while_another_fails_are_closed(monkeypatch):
    one_failed, made = threading.Event(), []

    class Made(Worker):
        def __init__(self, plan, placement, rank, *rest, **options):
            if rank == 0:
                one_failed.set()
                raise ValueError("no luck")
            assert one_failed.wait(SECONDS)
            time.sleep(0.2)  # Until the group has been told to end.
            super().__init__(plan, placement, rank, *rest, **options)
            made.append(self)

    monkeypatch.setattr(threads, "Worker", Made)
    with pytest.raises(ValueError, match="no luck"):
        ThreadWorkers(TWO).start(steps.two_stage_plan(2))
    (worker,) = made
    assert worker._store.is_over
    assert not [t for t in threading.enumerate() if t.name == "alpa-mlir sends"]


@pytest.fixture
def step():
    plan = handmade.as_plan(*handmade.two_stages(2))
    placement, group = ThreadWorkers(TWO).start(plan, donate_state=False)
    made = DistributedPlan(plan, placement, group, donate_state=False)
    yield made
    made.close()


def test_calls_that_wait_for_their_turn_when_workers_are_closed(step):
    group, began, go_on = step.group, threading.Event(), threading.Event()
    thread = group._threads[0]
    thread._ordered.submit(lambda: began.set() or go_on.wait(SECONDS))
    assert began.wait(SECONDS)
    waiting = group.call(0, "clock")
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(group.close)
        eventually(lambda: not thread._alive)
        go_on.set()
        closing.result(SECONDS)
    with pytest.raises(WorkerError, match="worker 0: is gone"):
        waiting.result(SECONDS)
    with pytest.raises(WorkerError, match="worker 0: is gone"):
        thread.submit("clock", ())


def test_values_are_looked_at_again_once_all_of_them_are_begun(step, monkeypatch):
    """A look in the middle of what begins them does not settle it."""
    worker, looked = step.group._threads[0].worker, []
    monkeypatch.setattr(worker._failed, "look", looked.append)
    run = worker._bound.run_once

    def run_once(*args):
        worker.notice_failed_values()
        return run(*args)

    monkeypatch.setattr(worker._bound, "run_once", run_once)
    worker.run_once((), (), ())
    worker.notice_failed_values()
    assert looked[0] != looked[1]
    looked.clear()
    state, batch = handmade.arguments(2)
    counts = worker.__dict__.pop("_begun")

    class Looking(Worker):
        @property
        def _begun(self):
            return counts

        @_begun.setter
        def _begun(self, value):
            nonlocal counts
            counts = value
            self.notice_failed_values()  # Another thread may look at once.

    monkeypatch.setattr(worker, "__class__", Looking)
    step(handmade.flat(state, batch))
    step.synchronize()
    worker.notice_failed_values()
    assert len(looked) == 2
    assert looked[0] != looked[1]


def test_two_threads_read_an_array_at_once(step, monkeypatch):
    state, batch = handmade.arguments(2)
    loss = step(handmade.flat(state, batch))[2]
    both, read, second = threading.Barrier(2), threading.Event(), []
    gather, start = DistributedPlan.gather, DistributedArray.copy_to_host_async

    def gathered(home, array, replies):
        both.wait(SECONDS)  # The other one is about to look for the replies.
        return gather(home, array, replies)

    def started(array):
        start(array)
        if threading.current_thread().name.startswith("second") and not second:
            second.append(array)
            both.wait(SECONDS)
            assert read.wait(SECONDS)

    monkeypatch.setattr(DistributedPlan, "gather", gathered)
    monkeypatch.setattr(DistributedArray, "copy_to_host_async", started)
    with ThreadPoolExecutor(1, "first") as one, ThreadPoolExecutor(1, "second") as other:
        first = one.submit(loss.on_host)
        eventually(lambda: loss._replies is not None)
        reading = other.submit(loss.on_host)
        value = first.result(SECONDS)
        read.set()
        assert reading.result(SECONDS) == value


def test_workers_that_do_not_say_in_time_are_not_the_cause():
    pending = PendingSteps()
    lost = TransportError("rank 2 is gone", peer=2)
    pending.add(4, [Answer(lost), Answer(), Answer(WorkerError("no room"))])
    pending.add(5, [Answer(lost), Answer(), Answer(StepReply(5, {}))])
    found = pending.hear(0, lambda *_: None)
    assert (found.rank, found.number, found.cause.what) == (2, 4, "no room")


def test_the_worker_that_says_what_happened_comes_before_one_that_is_slow():
    said = {"error": None, "out_of_memory": False, "lost_another": False}
    failure = Failure(2, 3, TransportError("rank 1 is gone"))
    group = Group(3)
    group.limits = Limits(frozen_seconds=0.1)
    group.ping = lambda rank, timeout: Group.ping(group, rank, 0.01)
    group.answers = {0: Answer(), 1: Answer(said | {"error": "no room"}), 2: Answer(said)}
    assert cause_behind(group, failure).cause.code == "worker"
    group.answers[1] = Answer(said | {"error": "no room", "out_of_memory": True})
    assert cause_behind(group, failure).cause.what == "no room"
    assert cause_behind(group, failure).cause.code == "worker-memory"
    group.answers[1] = Answer(said)
    assert cause_behind(group, failure).rank == 0
    group.answers[0] = Answer(said)
    assert cause_behind(group, failure) is failure
