"""Ends in processes of their own: who may connect, and what is left when one is killed."""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alpa_mlir.errors import TransportError
from alpa_runtime.transport import Transport, connection, make_transport
from alpa_runtime.transport.framing import PROTOCOL
from damage import damage_json
from hypothesis import given, settings
from hypothesis.strategies import data, integers

MEBI = 1 << 20
KINDS = ["shared_memory", "tcp"]

# Rank 1 of two: connects, does what it is told, and waits to be killed.
CHILD = """
import json, sys, time
import numpy as np
from alpa_runtime.transport import make_transport

end = make_transport(1, ip="127.0.0.1", kinds=[sys.argv[1]])
print(end.address(), flush=True)
end.connect(json.loads(sys.stdin.readline()))
held = []
for line in sys.stdin:
    what, count = line.split()
    for tag in range(int(count)):
        if what == "send":
            end.send(0, tag, np.full(8 << 20, tag, np.uint8))
        else:
            held.append(end.receive(0, tag, (8 << 20,), np.dtype("uint8")))
    print("done", flush=True)
"""


class Child:
    """A process with rank 1, connected to `end`, which is rank 0."""

    def __init__(self, kind: str) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.end = make_transport(0, ip="127.0.0.1", kinds=[kind])
        addresses = [self.end.address(), self.said()]
        self.tell(json.dumps(addresses))
        self.end.connect(addresses)

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def said(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture(params=KINDS)
def child(request: pytest.FixtureRequest) -> Iterator[Child]:
    made = Child(request.param)
    yield made
    made.kill()
    made.end.close()


def shared_by(process: int | str) -> int:
    """Bytes of memory that a process shares with others."""
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if "memfd:alpa-mlir" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def gone(end: Transport, peer: int) -> bool:
    limit = time.monotonic() + 20
    while peer not in end.failed() and time.monotonic() < limit:
        time.sleep(0.002)
    return peer in end.failed()


def test_a_killed_sender(child: Child) -> None:
    child.tell("send 3")
    got = child.end.receive(1, 0, (8 * MEBI,), np.dtype("uint8"))
    child.kill()
    assert not got.any()  # It outlives its sender, be it in shared memory.
    for tag in (1, 2):  # What had been sent in whole may still come.
        with suppress(TransportError):
            child.end.receive(1, tag, (8 * MEBI,), np.dtype("uint8"))
    with pytest.raises(TransportError, match="rank 1 is gone") as error:
        child.end.receive(1, 3, (8 * MEBI,), np.dtype("uint8"))
    assert error.value.peer == 1
    # Not before: as long as nobody reads them, bytes on the way hold back the news.
    assert gone(child.end, 1)


def test_a_killed_receiver(child: Child) -> None:
    child.tell("receive 3")
    data = np.zeros(8 * MEBI, np.uint8)
    for tag in range(20):
        child.end.send(1, tag, data).wait()
    assert child.said() == "done"
    child.kill()
    assert gone(child.end, 1)
    with pytest.raises(TransportError, match="rank 1 is gone"):
        child.end.send(1, 0, data)


@pytest.mark.parametrize("what", ["send", "receive"])
def test_nothing_is_left_of_a_killed_process(what: str) -> None:
    gc.collect()  # Of earlier tests.
    files, named = open_files(), sorted(os.listdir("/dev/shm"))
    child = Child("shared_memory")
    child.tell(f"{what} 3")
    kept: list[Any] = []
    for tag in range(3):
        if what == "send":
            kept.append(child.end.receive(1, tag, (8 * MEBI,), np.dtype("uint8")))
        else:
            child.end.send(1, tag, np.zeros(8 * MEBI, np.uint8))
    assert child.said() == "done"
    for process in ("self", child.process.pid):
        assert shared_by(process) >= 24 * MEBI
    child.kill()
    kept.clear()
    child.end.close()
    del child.end
    assert shared_by("self") == 0
    assert open_files() == files
    assert sorted(os.listdir("/dev/shm")) == named


def test_memory_stays_bounded() -> None:
    limit = 32 * MEBI
    ends = [
        make_transport(rank, kinds=["shared_memory"], shared_bytes=limit, idle_bytes=0)
        for rank in range(2)
    ]
    addresses = [end.address() for end in ends]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda end: end.connect(addresses), ends))
    before = shared_by("self")
    for size in (20 * MEBI, 3 * MEBI, 12 * MEBI, 31 * MEBI, 40 * MEBI):
        for value in range(4):
            ends[0].send(1, 0, np.full(size, value, np.uint8))
        for value in range(4):
            got = ends[1].receive(0, 0, (size,), np.dtype("uint8"))
            assert got[0] == got[-1] == value
            # Both ends are in this process: each block and each ledger is mapped twice.
            assert shared_by("self") - before <= 2 * (limit + mmap.PAGESIZE)
    for end in ends:
        end.close()


def greet(address: dict[str, Any], text: bytes) -> bytes:
    """What the end answers to somebody who connects and says this."""
    with socket.create_connection((address["ip"], address["port"]), timeout=20) as stream:
        stream.sendall(text)
        return stream.recv(4096)


def greeting(version: int, **fields: Any) -> bytes:
    text = json.dumps(fields).encode()
    return struct.pack("<8sHI", b"alpa-trn", version, len(text)) + text


def test_strangers_are_refused_by_name_and_keep_nobody_waiting() -> None:
    ends = [make_transport(rank, ip="127.0.0.1", kinds=["tcp"]) for rank in range(2)]
    addresses = [end.address() for end in ends]
    fields = json.loads(addresses[0])
    with ThreadPoolExecutor(2) as pool:
        silent = socket.create_connection((fields["ip"], fields["port"]))
        first = pool.submit(ends[0].connect, addresses)
        assert b"does not greet like" in greet(fields, b"GET / HTTP/1.1\r\n\r\n")
        assert b"version 99" in greet(fields, greeting(99))
        assert b"rank 0's key" in greet(fields, greeting(PROTOCOL, rank=1, own="x", yours="y"))
        false = greeting(PROTOCOL, rank=1, own="x", yours=fields["key"])
        assert b"it says that it is rank 1, and is not" in greet(fields, false)
        assert b"damaged" in greet(fields, struct.pack("<8sHI", b"alpa-trn", PROTOCOL, 2) + b"[]")
        pool.submit(ends[1].connect, addresses).result(timeout=20)
        first.result(timeout=20)
        silent.close()
    ends[0].send(1, 0, np.array([3]))
    assert ends[1].receive(0, 0, (1,), np.dtype("int64")).tolist() == [3]
    for end in ends:
        end.close()


def changed(address: str, **fields: Any) -> str:
    return json.dumps(json.loads(address) | fields)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"protocol": PROTOCOL + 1}, "address of rank 0: version 3 of .* same version of alpa"),
        ({"rank": 5}, "address of rank 0: it is the address of rank 5"),
        ({"port": "x"}, "address of rank 0: .* is not what `address"),
        ({"port": 0}, "neither by shared memory nor by TCP"),
        ({"port": 1}, "rank 0 at 127.0.0.1:1: cannot be reached"),
    ],
)
def test_wrong_addresses(fields: dict[str, Any], cause: str) -> None:
    ends = [make_transport(rank, ip="127.0.0.1", kinds=["tcp"]) for rank in range(2)]
    with pytest.raises(TransportError, match=cause):
        ends[1].connect([changed(ends[0].address(), **fields), ends[1].address()])
    for end in ends:
        with pytest.raises(TransportError, match=r"closed|not connected"):
            end.send(1 - end.rank, 0, np.zeros(1))
        end.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_key_and_a_peer_that_does_not_come(kind: str) -> None:
    ends = [
        make_transport(rank, ip="127.0.0.1", kinds=[kind], connect_seconds=1 + 19 * rank)
        for rank in range(2)
    ]
    right = [end.address() for end in ends]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ends[0].connect, right)
        with pytest.raises(TransportError, match="refused this end: it does not know rank 0's key"):
            ends[1].connect([changed(right[0], key="0"), right[1]])
        late = r"rank 1 did not connect to rank 0 in time; refused: .*rank 0's key"
        with pytest.raises(TransportError, match=late):
            first.result(timeout=20)
    for end in ends:
        with pytest.raises(TransportError, match="closed"):
            end.send(1 - end.rank, 0, np.zeros(1))


def test_an_end_that_refuses_another_version() -> None:
    """The peer's own code is of another version, though its address is not."""
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        end = make_transport(1, ip="127.0.0.1", kinds=["tcp"])
        there = changed(end.address(), rank=0, port=other.getsockname()[1])
        connecting = pool.submit(end.connect, [there, end.address()])
        stream, _ = other.accept()
        with stream:
            stream.sendall(greeting(7, refused="version 1, expected 7"))
            with pytest.raises(
                TransportError, match=rf"rank 0 at .*: version 7 of .*, expected {PROTOCOL}"
            ):
                connecting.result(timeout=20)


def test_use_at_the_wrong_time() -> None:
    end = make_transport(0, ip="127.0.0.1")
    with pytest.raises(TransportError, match="rank 0 is not connected"):
        end.send(1, 0, np.zeros(1))
    other = make_transport(0, ip="127.0.0.1")
    with pytest.raises(TransportError, match="do not have this end's as rank 0"):
        end.connect([other.address()])
    end.connect([end.address()])
    with pytest.raises(TransportError, match="rank 0 is connected already"):
        end.connect([end.address()])
    end.close()
    with pytest.raises(TransportError, match="rank 0 is closed"):
        end.connect([end.address()])
    other.close()
    with pytest.raises(TransportError, match="kinds \\['pigeon'\\]"):
        make_transport(0, kinds=["pigeon"])
    with pytest.raises(TransportError, match=r"cannot listen on 192\.0\.2\.1"):
        make_transport(0, ip="192.0.2.1")


# Who connects and is nobody that is expected.


@contextmanager
def receiving(
    kind: str = "tcp", **options: Any
) -> Iterator[tuple[dict[str, Any], Callable[..., Any]]]:
    """Rank 0 of two, which waits; its address, and what lets rank 1 connect and checks both."""
    ends = [make_transport(rank, ip="127.0.0.1", kinds=[kind], **options) for rank in range(2)]
    addresses = [end.address() for end in ends]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ends[0].connect, addresses)

        def meet() -> None:
            pool.submit(ends[1].connect, addresses).result(timeout=20)
            first.result(timeout=20)
            ends[0].send(1, 0, np.array([3]))
            assert ends[1].receive(0, 0, (1,), np.dtype("int64")).tolist() == [3]

        try:
            yield json.loads(addresses[0]), meet
        finally:
            for end in ends:
                end.close()


def test_a_local_socket_is_not_named_after_its_key() -> None:
    with closing(make_transport(0, ip="127.0.0.1")) as end:
        fields = json.loads(end.address())
        # Another process may name its socket by any bytes.
        named = Path("/proc/net/unix").read_bytes()
        assert fields["local"].encode() in named
        assert fields["key"].encode() not in named


def test_greetings_that_cannot_be_read() -> None:
    deep = b'{"yours": ' + b"[" * 4000
    texts = [
        deep,
        b'{"yours": "\\ud800"}',
        b'{"yours": 1e999}',
        b'{"yours": ' + b"9" * 4050 + b"}",
        b"\xff\xfe",
        b"[]",
        b"",
    ]
    with receiving() as (fields, meet):
        for text in texts:
            head = struct.pack("<8sHI", b"alpa-trn", PROTOCOL, len(text))
            said = greet(fields, head + text)
            assert b"damaged" in said or b"rank 0's key" in said
        for rank in ("true", "[1]", "null", "1e3", '"1"', "9" * 4000):
            text = f'{{"yours": "{fields["key"]}", "own": "x", "rank": {rank}}}'.encode()
            head = struct.pack("<8sHI", b"alpa-trn", PROTOCOL, len(text))
            assert b"and is not" in greet(fields, head + text)
        meet()


@given(data())
@settings(max_examples=30, deadline=None)
def test_any_bytes_for_a_greeting(drawn: Any) -> None:
    """Whole greetings in which some bytes are others, cut somewhere."""
    with receiving() as (fields, meet):
        place = (fields["ip"], fields["port"])
        for _ in range(8):
            whole = bytearray(greeting(PROTOCOL, rank=1, own="a" * 32, yours=fields["key"]))
            for _ in range(drawn.draw(integers(0, 6))):
                whole[drawn.draw(integers(0, len(whole) - 1))] = drawn.draw(integers(0, 255))
            with socket.create_connection(place) as stream:
                stream.sendall(whole[: drawn.draw(integers(0, len(whole)))])
        meet()


def damaged_greeting(rng: random.Random, key: str) -> bytes:
    """What somebody says who knows the key, or not, with changes."""
    fields = {"rank": 1, "own": "a" * 32, "yours": rng.choice([key, "x" * 32])}
    text = json.dumps(fields)
    if rng.random() < 0.7:
        text = damage_json(rng, text).decode(errors="surrogatepass")
    said = text.encode(errors="surrogatepass")
    version = PROTOCOL if rng.random() < 0.9 else rng.randrange(1 << 16)
    length = len(said) if rng.random() < 0.8 else rng.choice([0, 1, 4096, 4097, 2**32 - 1])
    whole = bytearray(struct.pack("<8sHI", b"alpa-trn", version, length) + said)
    for _ in range(rng.choice([0, 0, 1, 3])):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    return bytes(whole[: rng.choice([len(whole), len(whole), rng.randrange(len(whole))])])


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_damaged_greetings(count: int) -> None:
    """None ends the wait, or keeps a file open."""
    rng, before = random.Random(count), open_files()
    with receiving() as (fields, meet):
        place = (fields["ip"], fields["port"])
        for number in range(count):
            # A pair of addresses has so many ports, which stay taken for a minute.
            origin = (f"127.0.1.{1 + number // 10_000}", 0)
            with (
                socket.create_connection(place, source_address=origin) as stream,
                suppress(ConnectionError),
            ):
                stream.sendall(damaged_greeting(rng, fields["key"]))
        assert open_files() - before < 200
        meet()


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_many_damaged_addresses_and_answers(count: int) -> None:
    """Who dials learns in one error what is wrong with the address, or with who answers there."""
    rng = random.Random(count)
    end = make_transport(1, ip="127.0.0.1", kinds=["tcp"])
    own = connection.Address.from_text(end.address(), 1)
    for _ in range(count):
        with suppress(TransportError):
            text = damage_json(rng, end.address()).decode(errors="surrogatepass")
            connection.Address.from_text(text, 1)
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        peer = replace(own, rank=0, port=other.getsockname()[1])

        def answer() -> None:
            for _ in range(count):
                stream, _ = other.accept()
                with stream, suppress(OSError):
                    stream.sendall(damaged_greeting(rng, own.key))
                    stream.shutdown(socket.SHUT_WR)
                    stream.recv(4096)

        answering = pool.submit(answer)
        for _ in range(count):
            with suppress(TransportError):
                connection.dial(own, peer, time.monotonic() + 1).close()
        answering.result(timeout=10)
    end.close()


def test_strangers_hold_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_STRANGERS", 8)
    before = open_files()
    with receiving() as (fields, meet):
        place = (fields["ip"], fields["port"])
        silent = [socket.create_connection(place) for _ in range(50)]
        refused = [stream for stream in silent[:40] if b"do not greet" in stream.recv(999)]
        assert len(refused) == 40
        assert open_files() - before < 50 + 20
        meet()
        for stream in silent:
            stream.close()


def test_strangers_have_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_GREETING_SECONDS", 0.2)
    with receiving() as (fields, meet):
        with socket.create_connection((fields["ip"], fields["port"])) as silent:
            silent.sendall(b"alpa")
            assert b"no greeting for 0.2 s" in silent.recv(999)
        meet()


def test_who_answers_drop_by_drop_does_not_hold_a_dialer() -> None:
    """A limit for each read alone would never be reached."""
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        end = make_transport(1, ip="127.0.0.1", kinds=["tcp"], connect_seconds=0.5)
        there = changed(end.address(), rank=0, port=other.getsockname()[1])
        connecting = pool.submit(end.connect, [there, end.address()])
        stream, _ = other.accept()
        with stream, suppress(OSError):
            for _ in range(100):
                stream.send(b"a")
                time.sleep(0.1)
                if connecting.done():
                    break
        with pytest.raises(TransportError, match=r"rank 0 at .*: cannot be reached \(timed out\)"):
            connecting.result(timeout=0)


def test_another_user_is_refused_on_local_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end checks the other one; here both seem to belong to somebody else."""
    ends = [make_transport(rank, ip="127.0.0.1", connect_seconds=1) for rank in range(2)]
    addresses = [end.address() for end in ends]
    monkeypatch.setattr(connection.os, "geteuid", lambda: os.getuid() + 1)
    name = json.loads(addresses[0])["local"]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ends[0].connect, addresses)
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(f"\0{name}")
            assert f"it belongs to user {os.getuid()}".encode() in stream.recv(999)
        with pytest.raises(TransportError, match="rank 0 on this host: it belongs to user"):
            ends[1].connect(addresses)
        with pytest.raises(TransportError, match="refused: a local process: it belongs to user"):
            first.result(timeout=20)


def test_no_file_left_for_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [make_transport(rank, ip="127.0.0.1", kinds=["tcp"]) for rank in range(2)]

    def none_left(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(connection.socket, "socket", none_left)
    with pytest.raises(TransportError, match=r"rank 0 at .*: cannot be reached \(Too many open"):
        ends[1].connect([end.address() for end in ends])
    ends[0].close()
