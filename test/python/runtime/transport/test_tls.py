"""Streams with TLS: nothing in plain text, nobody in between, no other key."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import alpa_mlir
import numpy as np
import pytest
import steps
from alpa_mlir.errors import TransportError, WorkerError
from alpa_runtime.hosts.launched import LaunchedWorkers, Meeting
from alpa_runtime.hosts.process_group import load_options
from alpa_runtime.hosts.ray_hosts import RayWorkers
from alpa_runtime.hosts.rpc import DriverEnds, Entrance, MessageStream, connect
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.transport import connection, make_transport, tls
from alpa_runtime.transport.tls import TlsStream, decrypted
from alpa_runtime.worker_group import Placement
from source_paths import SUPPORT

SECRET = b"every word of this is secret " * 40


def changed(text, **fields):
    return json.dumps(json.loads(text) | fields)


class Between:
    """Stands between a dialer and an end, and passes on what `pass_on` makes of it."""

    def __init__(self, port, pass_on=None):
        self.seen = bytearray()
        self.pass_on = pass_on or (lambda data, count: data)
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.streams = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self.streams += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, target):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(self.pass_on(data, len(self.seen)))
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()
        for stream in self.streams:
            stream.close()


@pytest.fixture
def stack():
    with ExitStack() as found:
        yield found


def two_ends(stack, encrypt, **options):
    """Connected to each other through somebody who reads along."""
    ends = [
        make_transport(rank, ip="127.0.0.1", kinds=["tcp"], connect_seconds=20, encrypt=e)
        for rank, e in enumerate(encrypt)
    ]
    addresses = [end.address() for end in ends]
    between = Between(json.loads(addresses[0])["port"], **options)
    for end in (*ends, between):
        stack.callback(end.close)
    pool = stack.enter_context(ThreadPoolExecutor(1))
    # The proxy's port is all that the two see differently.
    first = pool.submit(ends[0].connect, addresses)
    try:
        ends[1].connect([changed(addresses[0], port=between.port), addresses[1]])
    except BaseException:
        ends[0].close()
        with suppress(TransportError):
            first.result()
        raise
    first.result()
    return ends, between


@pytest.mark.parametrize("encrypt", [True, False])
def test_what_goes_over_the_wire(stack, encrypt):
    ends, between = two_ends(stack, (encrypt, encrypt))
    data = np.frombuffer(SECRET, np.uint8)
    for source in (0, 1):
        ends[source].send(1 - source, 7, data)
        assert (ends[1 - source].receive(source, 7, data.shape, data.dtype) == data).all()
    keys = [json.loads(end.address())["key"].encode() for end in ends]
    for text in (b"alpa-trn", b"secret", b"uint8", *keys):
        assert (text in between.seen) != encrypt, text
    assert len(between.seen) > 2 * len(SECRET)


def test_bytes_that_are_changed_are_not_received(stack):
    limit = []

    def spoil(data, count):
        return data[:-1] + bytes([data[-1] ^ 1]) if limit and count > limit[0] else data

    ends, between = two_ends(stack, (True, True), pass_on=spoil)
    limit.append(len(between.seen))
    ends[0].send(1, 7, np.frombuffer(SECRET, np.uint8))
    with pytest.raises(TransportError, match="rank 0 is gone"):
        ends[1].receive(0, 7, (len(SECRET),), np.dtype("uint8"))


@pytest.mark.parametrize(
    ("encrypt", "said"),
    [((True, False), "one end encrypts, the other one does not"), ((False, True), "one end enc")],
)
def test_ends_that_do_not_agree(stack, encrypt, said):
    with pytest.raises(TransportError, match=said):
        two_ends(stack, encrypt)


@pytest.mark.parametrize("listens", [True, False])
def test_ends_whose_addresses_lie(stack, listens):
    """One end speaks TLS, the other one does not, whatever they were told."""
    ends = [
        make_transport(rank, ip="127.0.0.1", kinds=["tcp"], connect_seconds=2, encrypt=e)
        for rank, e in enumerate((listens, not listens))
    ]
    for end in ends:
        stack.callback(end.close)
    addresses = [end.address() for end in ends]
    pool = stack.enter_context(ThreadPoolExecutor(1))
    first = pool.submit(ends[0].connect, addresses)
    with pytest.raises(TransportError, match="does not speak TLS"):
        ends[1].connect([changed(addresses[0], tls=not listens), addresses[1]])
    with pytest.raises(TransportError, match="rank 1 did not connect to rank 0 in time; refused"):
        first.result()


def test_an_end_that_does_not_know_its_key(stack):
    """It sees nothing of the dialer's greeting, whose keys would let it in elsewhere."""
    pool = stack.enter_context(ThreadPoolExecutor(1))
    own, (listener,) = connection.listen(0, "127.0.0.1", local=False, tcp=True, encrypt=True)
    stack.callback(listener.close)
    dialer = connection.Address(**(vars(own) | {"rank": 1, "key": "d" * 32}))
    heard = []

    def impostor():
        stream = TlsStream(listener.accept()[0], "guessed", listening=True)
        with stream:
            stream.shake_hands()
            stream.show_proof()
            heard.append(stream.recv(4096))

    waiting = pool.submit(impostor)
    with pytest.raises(TransportError, match="another end answers there"):
        connection.dial(dialer, own, tls.time.monotonic() + 20)
    waiting.result()
    assert heard == [b""]


def test_a_man_in_the_middle_is_refused(stack, monkeypatch):
    """He has a certificate of his own, and passes on what both ends say, proof included."""
    pool = stack.enter_context(ThreadPoolExecutor(2))
    own, (listener,) = connection.listen(0, "127.0.0.1", local=False, tcp=True, encrypt=True)
    middle = socket.create_server(("127.0.0.1", 0))
    for end in (listener, middle):
        stack.callback(end.close)
    dialer = connection.Address(**(vars(own) | {"rank": 1, "key": "d" * 32}))
    reception = connection.Reception(own, [listener], {1: dialer})
    late = tls.time.monotonic() + 3
    waiting = pool.submit(reception.wait, late)

    def man():
        far = socket.create_connection(("127.0.0.1", own.port))
        far = TlsStream(far, "", listening=False)
        far.shake_hands()
        proof = far.recv(tls.PROOF_SIZE)
        near, _ = middle.accept()
        with monkeypatch.context() as patch, far:
            patch.setattr(tls, "listening_context", lambda: others)
            with TlsStream(near, "", listening=True) as near:
                near.shake_hands()
                near.sendall(proof)
                return near.recv(4096)

    others = tls.listening_context.__wrapped__()
    passing = pool.submit(man)
    there = connection.Address(**(vars(own) | {"port": middle.getsockname()[1]}))
    with pytest.raises(TransportError, match="another end answers there"):
        connection.dial(dialer, there, tls.time.monotonic() + 20)
    assert passing.result() == b""
    with pytest.raises(TransportError, match="rank 1 did not connect"):
        waiting.result()


def test_strangers_before_the_handshake(stack):
    """Whatever they send keeps nobody waiting."""
    end = make_transport(0, ip="127.0.0.1", kinds=["tcp"], encrypt=True)
    other = make_transport(1, ip="127.0.0.1", kinds=["tcp"], encrypt=True)
    addresses = [end.address(), other.address()]
    for closed in (end, other):
        stack.callback(closed.close)
    port = json.loads(addresses[0])["port"]
    hello = b"\x16\x03\x01\xff\xff\x01\x00\xff\xfb"  # Promises more than there may be.
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), hello + bytes(1 << 17), hello):
        stranger = socket.create_connection(("127.0.0.1", port))
        stack.callback(stranger.close)
        stranger.setblocking(False)
        with suppress(OSError):
            stranger.send(noise)
    pool = stack.enter_context(ThreadPoolExecutor(1))
    first = pool.submit(end.connect, addresses)
    other.connect(addresses)
    first.result(timeout=20)


def test_calls_of_a_driver(stack, monkeypatch):
    """Also to a worker process, which inherits sockets and not the state of TLS."""
    monkeypatch.setattr(connection, "host_identity", lambda: "")
    driver = DriverEnds.make(encrypt=True)
    entrance = Entrance("127.0.0.1", driver)
    pool = stack.enter_context(ThreadPoolExecutor(1))
    waiting = pool.submit(entrance.wait, 20)
    ours = connect(driver, entrance.address, 20, "worker 0")
    theirs = waiting.result()
    assert all(type(s) is TlsStream for s in (ours.work, ours.beside, theirs.work, theirs.beside))
    near, far = MessageStream(ours.work), MessageStream(decrypted(theirs.work))
    message = ("call", np.arange(3_000_000))
    for source, target in ((near, far), (far, near)):
        sending = pool.submit(source.send, message)
        name, found = target.receive()
        sending.result()
        assert name == "call"
        assert (found == message[1]).all()
    near.end()
    with pytest.raises(EOFError):
        far.receive()
    for stream in (near, far):
        stream.close()
    ours.beside.close()
    theirs.beside.close()


def test_a_step_over_tls_equals_jit(tmp_path):
    plan = steps.two_stage_plan(2)
    program = [str(SUPPORT / "tcp_worker.py"), str(tmp_path)]
    placement = Placement(((0, 1), (2, 3)))
    workers = ProcessWorkers(placement, platform="cpu", program=program, encrypt=True)
    step = alpa_mlir.load(plan, workers=workers)
    assert [(tmp_path / str(r)).read_text() for r in (0, 1)] == ["AF_INET TlsStream"] * 2
    steps.check_equals_jit(step)
    step.loaded.group.close()
    workers.close()


def test_what_cannot_be_encrypted_is_refused(monkeypatch):
    plan = steps.two_stage_plan(2)
    spanning = Placement(((0, 2), (1, 3)))
    with pytest.raises(WorkerError, match="meshes span workers 0, 1: JAX does not encrypt"):
        ProcessWorkers(spanning, platform="cpu", encrypt=True).start(plan)
    apart = Placement(((0, 1), (2, 3)))
    with pytest.raises(TransportError, match="nccl does not encrypt"):
        load_options(plan, apart, True, "auto", True, "nccl", True)
    assert load_options(plan, apart, True, "auto", True, "auto", True).device_transport == "host"
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with pytest.raises(WorkerError, match="Ray does not encrypt the keys"):
        RayWorkers(encrypt=True).start(plan, apart)
    meeting = Meeting("127.0.0.1", 1, 2, "k" * 16)
    monkeypatch.setattr(
        "alpa_runtime.hosts.launched._hall", lambda: type("", (), {"meeting": meeting})
    )
    with pytest.raises(WorkerError, match="the launch does not encrypt"):
        LaunchedWorkers(apart, encrypt=True).start(plan)


def test_no_openssl(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError(2, "No such file or directory", "openssl")

    tls.listening_context.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", missing)
        with pytest.raises(TransportError, match="openssl makes no certificate"):
            make_transport(0, ip="127.0.0.1", encrypt=True)
