"""What every transport must do, whatever carries the bytes."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from alpa_mlir.errors import TransportError
from alpa_runtime.transport import Transport, connect_in_process, make_transport

Make = Callable[[int], list[Transport]]

DTYPES = [
    "bool",
    "int8",
    "uint16",
    "int32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.int4,
]


def connected(ends: list[Transport]) -> list[Transport]:
    addresses = [end.address() for end in ends]
    with ThreadPoolExecutor(len(ends)) as pool:
        list(pool.map(lambda end: end.connect(addresses), ends))
    return ends


def by(**options: Any) -> Make:
    """Makes ends as those of several processes are, and connects them."""
    return lambda size: connected(
        [make_transport(i, ip="127.0.0.1", **options) for i in range(size)]
    )


KINDS: dict[str, Make] = {
    "in_process": connect_in_process,
    "shared_memory": by(kinds=["shared_memory"]),
    # So little that most has to go through the socket.
    "little_memory": by(kinds=["shared_memory"], shared_bytes=1 << 20, idle_bytes=1 << 20),
    "tcp": by(kinds=["tcp"]),
    "tls": by(kinds=["tcp"], encrypt=True),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes connected ends; they are closed after the test."""
    made: list[Transport] = []

    def make_ends(size: int) -> list[Transport]:
        ends = KINDS[request.param](size)
        made.extend(ends)
        return ends

    yield make_ends
    for end in made:
        end.close()


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 7, shape)
    return np.asarray(values).astype(dtype)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "this did not happen within 20 s"
        time.sleep(0.002)


def wait_in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Starts a call in a thread; what is returned waits for its result, or raises its error."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return lambda: future.result(timeout=20)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7), (300, 129)], ids=str)
def test_every_shape_and_dtype(make: Make, dtype: Any, shape: tuple[int, ...]) -> None:
    a, b = make(2)
    data = numbers(shape, dtype)
    a.send(1, 3, data).wait()
    got = b.receive(0, 3, shape, np.dtype(dtype))
    assert got.shape == shape
    assert got.dtype == np.dtype(dtype)
    assert got.tobytes() == data.tobytes()
    got[...] = 0  # It may be changed.
    assert got.ctypes.data % 64 == 0 or got.size == 0


def test_arrays_that_do_not_lie_in_order(make: Make) -> None:
    a, b = make(2)
    data = numbers((64, 96), "float32")
    for view in (data.T, data[::2, ::-3], np.broadcast_to(data[0], (40, 96))):
        a.send(1, 0, view).wait()
        np.testing.assert_array_equal(b.receive(0, 0, view.shape, view.dtype), view)


def test_read_only_arrays_of_jax(make: Make) -> None:
    a, b = make(2)
    data = np.asarray(jnp.arange(12, dtype=jnp.bfloat16).reshape(3, 4))
    a.send(1, 0, data).wait()
    np.testing.assert_array_equal(b.receive(0, 0, (3, 4), np.dtype(ml_dtypes.bfloat16)), data)


@pytest.mark.parametrize("size", [1 << 10, 1 << 16, 1 << 20])
def test_messages_of_a_tag_keep_their_order(make: Make, size: int) -> None:
    a, b = make(2)
    count = 12
    for i in range(count):
        a.send(1, i % 3, np.full(size, i % 251, np.uint8))
    for tag in (2, 0, 1):
        got = [b.receive(0, tag, (size,), np.dtype("uint8"))[-1] for _ in range(count // 3)]
        assert got == list(range(tag, count, 3))


def test_small_messages_do_not_overtake_large_ones(make: Make) -> None:
    a, b = make(2)
    sizes = [1 << 22, 8, 1 << 17, 0, 1 << 20, 100]
    for size in sizes:
        a.send(1, 5, np.full(size, size % 251, np.uint8))
    for size in sizes:
        got = b.receive(0, 5, (size,), np.dtype("uint8"))
        assert np.all(got == size % 251)


def test_both_ways_at_once_without_a_receiver(make: Make) -> None:
    a, b = make(2)
    data = numbers((1 << 22,), "uint8")
    sent = [end.send(1 - end.rank, i, data) for i in range(4) for end in (a, b)]
    for end in (a, b):
        for i in range(4):
            got = end.receive(1 - end.rank, i, data.shape, data.dtype)
            np.testing.assert_array_equal(got, data)
    for sending in sent:
        sending.wait()
        assert sending.done


def test_a_hundred_mebibytes(make: Make) -> None:
    a, b = make(2)
    data = np.arange(100 << 18, dtype=np.uint32)
    sending = a.send(1, 0, data)
    got = b.receive(0, 0, data.shape, data.dtype)
    sending.wait()
    assert np.array_equal(got, data)


def test_sending_needs_nobody_who_receives(make: Make) -> None:
    a, b = make(2)
    data = numbers((1 << 22,), "uint8")
    for tag in range(6):
        a.send(1, tag, data).wait()
    data[:] = 9
    for tag in reversed(range(6)):
        got = b.receive(0, tag, data.shape, data.dtype)
        np.testing.assert_array_equal(got, numbers((1 << 22,), "uint8"))


def test_three_ends_are_told_apart(make: Make) -> None:
    ends = make(3)
    for end in ends:
        for to in {0, 1, 2} - {end.rank}:
            end.send(to, 1, np.array([end.rank, to]))
    for end in ends:
        for source in {0, 1, 2} - {end.rank}:
            got = end.receive(source, 1, (2,), np.dtype("int64"))
            assert got.tolist() == [source, end.rank]


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [
        ((4, 5), "float32", r"float32\[20\], expected float32\[4, 5\]"),
        ((21,), "float32", r"float32\[20\], expected float32\[21\]"),
        ((20,), "int32", r"float32\[20\], expected int32\[20\]"),
    ],
)
def test_another_message_than_expected(
    make: Make, shape: tuple[int, ...], dtype: str, found: str
) -> None:
    a, b = make(2)
    a.send(1, 9, np.zeros(20, np.float32)).wait()
    with pytest.raises(TransportError, match=r"tag 9 from rank 0: the message is " + found):
        b.receive(0, 9, shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("to", "tag", "data", "cause"),
    [
        (0, 0, np.zeros(2), "rank 0 has no peer 0 among 2 ranks"),
        (2, 0, np.zeros(2), "no peer 2"),
        (-1, 0, np.zeros(2), "no peer -1"),
        (1, -1, np.zeros(2), "tag -1"),
        (1, 1 << 64, np.zeros(2), "tag 18446744073709551616"),
        (1, 0, np.array([None]), "dtype object"),
        (1, 0, np.array(["a"]), "dtype <U1"),
        (1, 0, np.zeros(2, ">f4"), "dtype >f4"),
        (1, 0, np.zeros(2, "i4,f4"), "cannot be sent"),
    ],
)
def test_what_cannot_be_sent(make: Make, to: int, tag: int, data: np.ndarray, cause: str) -> None:
    a, _ = make(2)
    with pytest.raises(TransportError, match=cause):
        a.send(to, tag, data)


def test_a_gone_peer(make: Make) -> None:
    a, b, c = make(3)
    b.send(0, 1, np.array([5])).wait()
    waiting = wait_in_thread(lambda: a.receive(1, 2, (1,), np.dtype("int64")))
    b.close()
    with pytest.raises(TransportError, match="rank 1") as error:
        waiting()
    assert error.value.peer == 1
    eventually(lambda: a.failed() == frozenset({1}))
    with pytest.raises(TransportError, match="rank 1") as error:
        a.receive(1, 2, (1,), np.dtype("int64"))
    assert error.value.peer == 1
    with pytest.raises(TransportError, match="rank 1") as error:
        a.send(1, 2, np.array([5]))
    assert error.value.peer == 1
    # What was sent before has arrived, and the others go on.
    assert a.receive(1, 1, (1,), np.dtype("int64")).tolist() == [5]
    c.send(0, 2, np.array([6]))
    assert a.receive(2, 2, (1,), np.dtype("int64")).tolist() == [6]


def test_close_wakes_who_waits(make: Make) -> None:
    a, _ = make(2)
    calls = [
        wait_in_thread(lambda tag=tag: a.receive(1, tag, (1,), np.dtype("int64")))
        for tag in range(3)
    ]
    time.sleep(0.05)
    a.close()
    for call in calls:
        with pytest.raises(TransportError, match="closed"):
            call()
    with pytest.raises(TransportError, match="closed"):
        a.send(1, 0, np.array([1]))
    a.close()
    assert a.failed() == frozenset()


def test_many_tags_of_many_threads(make: Make) -> None:
    a, b = make(2)
    count, tags = 40, 8
    errors: list[BaseException] = []

    def send(end: Transport, tag: int) -> None:
        for i in range(count):
            size = (i * 7919 + tag * 104729) % 200_000
            end.send(1 - end.rank, tag, np.full(size, (i + tag) % 251, np.uint8))

    def receive(end: Transport, tag: int) -> None:
        for i in range(count):
            size = (i * 7919 + tag * 104729) % 200_000
            got = end.receive(1 - end.rank, tag, (size,), np.dtype("uint8"))
            assert np.all(got == (i + tag) % 251)

    def guarded(call: Callable[[Transport, int], None], end: Transport, tag: int) -> None:
        try:
            call(end, tag)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=(call, end, tag))
        for call in (send, receive)
        for end in (a, b)
        for tag in range(tags)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def test_two_threads_wait_for_one_tag(make: Make) -> None:
    a, b = make(2)
    first = wait_in_thread(lambda: b.receive(0, 4, (1,), np.dtype("int64")))
    second = wait_in_thread(lambda: b.receive(0, 4, (1,), np.dtype("int64")))
    a.send(1, 4, np.array([1]))
    a.send(1, 4, np.array([2]))
    assert sorted((int(first()[0]), int(second()[0]))) == [1, 2]


ALIASES: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda x: x,
    "view": lambda x: x[3:],
    "element": lambda x: x[5:6].reshape(()),
    "other_dtype": lambda x: x.view(np.uint16)[::2],
    "memoryview": memoryview,
    "jax": lambda x: jax.device_put(x, jax.devices()[0]),
    "jax_shard": lambda x: jax.device_put(x, jax.devices()[3]).addressable_shards[0].data,
    "numpy_of_jax": lambda x: np.asarray(jnp.asarray(x)),
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("size", [1 << 10, 1 << 18])
def test_memory_is_not_used_again_while_an_alias_lives(make: Make, size: int) -> None:
    a, b = make(2)
    kept: list[tuple[str, Any, bytes]] = []
    value = 0
    for name, alias in ALIASES.items():
        for keep in (True, False, True, True):  # Some memory comes back in between.
            value += 1
            a.send(1, 0, np.full(size, value, np.float32))
            got = b.receive(0, 0, (size,), np.dtype("float32"))
            if keep:
                kept.append((name, alias(got), np.asarray(alias(got)).tobytes()))
            del got
        gc.collect()
    for name, held, then in kept:
        assert np.asarray(held).tobytes() == then, name


def test_memory_comes_back(make: Make) -> None:
    a, b = make(2)
    size = 1 << 22
    seen: set[int] = set()
    for i in range(20):
        a.send(1, 0, np.full(size, i, np.uint8))
        got = b.receive(0, 0, (size,), np.dtype("uint8"))
        assert got[-1] == i
        seen.add(got.ctypes.data)
        del got
    assert len(seen) <= 2


def test_donating_a_received_array_harms_nobody(make: Make) -> None:
    a, b = make(2)
    double: Any = jax.jit(lambda x: x * 2, donate_argnums=0)
    data = np.arange(1 << 18, dtype=np.float32)
    for _ in range(6):
        a.send(1, 0, data).wait()
        x = jax.device_put(b.receive(0, 0, data.shape, data.dtype), jax.devices()[0])
        np.testing.assert_array_equal(double(x), np.arange(1 << 18, dtype=np.float32) * 2)
    np.testing.assert_array_equal(data, np.arange(1 << 18, dtype=np.float32))


def test_the_sender_may_change_what_it_has_sent(make: Make) -> None:
    a, b = make(2)
    for size in (10, 1 << 16, 1 << 21):
        data = np.zeros(size, np.int32)
        sending = a.send(1, 0, data)
        receiving = wait_in_thread(lambda n=size: b.receive(0, 0, (n,), np.dtype("int32")))
        sending.wait()
        data[:] = 1
        assert not receiving().any()
