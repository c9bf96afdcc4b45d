"""Batches come in order, placed, with the errors of their source in their places."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from types import SimpleNamespace

import handmade
import jax
import numpy as np
import pytest
import steps
from alpa_mlir import ArgumentMismatchError, DataLoader
from alpa_runtime.arrays import PlacedBatch


class Source:
    """A sequence that counts what was read of it."""

    def __init__(self, count):
        self.count = count
        self.read = []

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if not 0 <= number < self.count:
            raise IndexError(number)
        self.read.append(number)
        return batch_of(number)


def batch_of(number):
    x = np.full((16, 8), number, np.float32)
    return {"x": x, "y": np.zeros((16, 4), np.float32)}


class Placed:
    """A loaded plan that only remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def put(self, index, x):
        self.asked.append((index, threading.current_thread().name))
        return ("placed", index, np.array(x))


@pytest.fixture(scope="module")
def step():
    return steps.two_stage_step()


@pytest.fixture
def fake(step):
    return SimpleNamespace(form=step.form, plan=step.plan, loaded=Placed())


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert not [t for t in set(threading.enumerate()) - before if "loader" in t.name]


def numbers(batches):
    return [int(np.asarray(batch["x"][2])[0, 0]) for batch in batches]


@pytest.mark.parametrize(
    "batches",
    [
        lambda: Source(7),
        lambda: [batch_of(i) for i in range(7)],
        lambda: (batch_of(i) for i in range(7)),
        lambda: map(batch_of, range(7)),
    ],
)
def test_order(fake, batches):
    loader = DataLoader(batches(), fake, prefetch=3)
    assert numbers(loader) == list(range(7))
    assert [index for index, _ in fake.loaded.asked] == [2, 3] * 7
    assert {name for _, name in fake.loaded.asked} == {"alpa-mlir loader"}


@pytest.mark.parametrize("start", [0, 3, 7, 9])
def test_it_starts_at_any_batch(fake, start):
    source = Source(7)
    loader = DataLoader(source, fake, start=start)
    assert len(loader) == max(0, 7 - start)
    assert numbers(loader) == list(range(start, 7))
    assert source.read == list(range(start, 7))
    # Again, from there.
    assert numbers(loader) == list(range(start, 7))
    with DataLoader(batch_of, fake, start=start) as endless:
        assert numbers(itertools.islice(endless, 3)) == list(range(start, start + 3))

    class Dataset:
        def __iter__(self):
            return map(batch_of, range(7))

    assert numbers(DataLoader(Dataset(), fake, start=start)) == list(range(start, 7))


def test_no_more_than_prefetch_wait(fake):
    source = Source(100)
    with DataLoader(source, fake, prefetch=2) as loader:
        iterator = iter(loader)
        deadline = time.monotonic() + 30
        while len(source.read) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert source.read == [0, 1, 2]  # Two wait, one is ready to.
        next(iterator)
    assert list(iterator) == []


def test_errors_come_in_their_places(fake):
    def broken():
        yield batch_of(0)
        yield batch_of(1)
        raise OSError("the file is gone")

    iterator = iter(DataLoader(broken(), fake, prefetch=5))
    assert numbers([next(iterator), next(iterator)]) == [0, 1]
    with pytest.raises(OSError, match="the file is gone"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)

    for bad, message in (
        ({"x": 0}, r"another tree than the step's: no leaf \['y'\]"),
        ({**batch_of(1), "z": 0}, r"an unknown leaf \['z'\]"),
        ((batch_of(1),), r"an unknown leaf \[0\]\['x'\]"),
    ):
        iterator = iter(DataLoader([batch_of(0), bad, batch_of(2)], fake))
        next(iterator)
        with pytest.raises(ArgumentMismatchError, match=message):
            next(iterator)


def test_closing_ends_the_source(fake):
    closed = threading.Event()

    class Endless:
        def __iter__(self):
            try:
                for i in itertools.count():
                    yield batch_of(i)
            finally:
                closed.set()

    loader = DataLoader(Endless(), fake)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    iterator.close()
    assert closed.is_set()
    with pytest.raises(StopIteration):
        next(iterator)
    # A generator of the caller's is the caller's to close.
    mine = iter(Endless())
    with DataLoader(mine, fake) as loader:
        next(iter(loader))
    assert next(mine)["x"][0, 0] >= 1


def test_errors_of_closing_the_source(fake, caplog):
    class Source:
        def __init__(self, *batches):
            self.left = list(batches)

        def __iter__(self):
            return Reader(self.left)

    class Reader:
        def __init__(self, left):
            self.left = left

        def __iter__(self):
            return self

        def __next__(self):
            if not self.left:
                raise StopIteration
            return self.left.pop(0)

        def close(self):
            raise OSError("cannot be closed")

    iterator = iter(DataLoader(Source(batch_of(0)), fake))
    next(iterator)
    with pytest.raises(OSError, match="cannot be closed"):
        next(iterator)
    iterator = iter(DataLoader(Source({"x": 0}), fake))
    with pytest.raises(ArgumentMismatchError, match="another tree"):
        next(iterator)
    assert "the source of a DataLoader could not be closed: cannot be closed" in caplog.text


def test_closing_wakes_who_waits_for_a_batch(fake):
    asked, given, ended = threading.Event(), threading.Event(), []

    def slow(number):
        asked.set()
        given.wait(20)
        return batch_of(number)

    iterator = iter(DataLoader(slow, fake))
    waiting = threading.Thread(target=lambda: ended.append(next(iterator, "ended")))
    waiting.start()
    assert asked.wait(10)
    closing = threading.Thread(target=iterator.close)
    closing.start()
    waiting.join(5)
    given.set()
    closing.join(10)
    assert ended == ["ended"]


def test_a_forgotten_iteration_ends(fake):
    next(iter(DataLoader(batch_of, fake)))
    gc.collect()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 0), "prefetch=0, expected at least 1"),
        (([], 1, -1), "start=-1, expected at least 0"),
        ((iter([]), 1, 1), "start=1 for batches that can be read only once"),
        ((3, 1), "int is no source of batches"),
        ((batch_of(0), 1), "dict is no source of batches; fix: give an iterable of batches"),
    ],
)
def test_what_makes_no_sense(fake, arguments, message):
    batches, prefetch, start = (*arguments, 0)[:3]
    with pytest.raises(ArgumentMismatchError, match=f"DataLoader: {message}"):
        DataLoader(batches, fake, prefetch=prefetch, start=start)


def test_batches_are_on_their_devices(step):
    """Steps read the very parts that the loader has placed, as often as they are given."""
    rng = np.random.default_rng(0)

    def make(number):
        x = rng.standard_normal((16, 8)).astype(np.float32)
        return {"x": x, "y": np.full((16, 4), number, np.float32)}

    batches = [make(i) for i in range(4)]
    state, _ = handmade.arguments(2)
    expected, losses = state, []
    for batch in batches:
        expected, loss, _ = jax.jit(handmade.reference_step)(expected, batch)
        losses.append(float(loss))
    buffer = jax.tree.map(np.empty_like, batches[0])

    def reused():
        for batch in batches:
            jax.tree.map(np.copyto, buffer, batch)
            yield buffer

    found, given = [], []
    for placed in DataLoader(reused(), step):
        given.append(placed)
        assert isinstance(placed["x"], PlacedBatch)
        state, loss, _ = step(state, placed)
        found.append(float(loss))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for placed, batch in zip(given, batches, strict=True):
        for name in batch:
            np.testing.assert_array_equal(placed[name], batch[name])
            np.testing.assert_array_equal(placed[name] + 1, batch[name] + 1)
    # Again, with the same parts.
    again = [float(step(handmade.arguments(2)[0], given[0])[1]) for _ in range(2)]
    np.testing.assert_allclose(again, [losses[0]] * 2, rtol=1e-5)
    # A step on other devices reads the array anew.
    other = steps.two_stage_step(2, first=(1, 1), second=(2, 2))
    np.testing.assert_allclose(other(handmade.arguments(2)[0], given[0])[1], losses[0], rtol=1e-5)
    given[0]["x"].delete()
    with pytest.raises(ArgumentMismatchError, match=r"batch\['x'\]: the array was donated"):
        step(handmade.arguments(2)[0], given[0])


def test_wrong_arrays_are_named(step):
    for x, message in (
        (np.zeros((8, 8), np.float32), r"batch\['x'\]: shape \[8, 8\], expected \[16, 8\]"),
        (np.zeros((16, 8), np.int32), r"batch\['x'\]: dtype int32, expected float32"),
    ):
        iterator = iter(DataLoader([{**batch_of(0), "x": x}], step))
        with pytest.raises(ArgumentMismatchError, match=message):
            next(iterator)
    # NumPy's wider types are taken as they are by calls.
    wide = jax.tree.map(lambda x: x.astype(np.float64), batch_of(3))
    (placed,) = DataLoader([wide], step)
    assert placed["x"].dtype == np.float32
