"""Batches placed ahead of the steps that take them, by a thread beside the program's own."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

from alpa_runtime import trees
from alpa_runtime.calling_convention import CallingConvention
from alpa_runtime.errors import WHOLE, Kind, check_type
from alpa_runtime.jax_internals import as_any
from alpa_runtime.parallel_step import ParallelStep
from alpa_runtime.plan import Plan
from alpa_runtime.step_arguments import StepBatch, step_batch

from alpa_mlir.errors import ArgumentMismatchError

_log = logging.getLogger("alpa_mlir")
_END_SECONDS = 10.0  # For a source to give its batch when the loader is closed.


class Placer(Protocol):
    """A loaded plan."""

    def put(self, index: int, x: Any) -> Any:
        """Place an array for input `index` of the plan, ahead of the step that takes it."""
        ...


class LoadedStep(Protocol):
    """What a loader asks of a step: a `ParallelStep` has it."""

    @property
    def form(self) -> CallingConvention: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def loaded(self) -> Any: ...


STEP = Kind("a loaded step", lambda value: hasattr(value, "loaded"))


class DataLoader:
    """Iterates over batches that are already where the step's first functions read them.

    While a step runs, a thread takes the next batches of a source, cuts them into micro-batches
    and shards, and copies each part to the devices or workers that want it. The step takes what
    the loader gives without another copy; an array of a batch looks like one of NumPy otherwise.

    Each iteration begins with batch `start`. An error of the source, or of a batch that is not
    the step's, comes out in place of that batch.

    Args:
        batches: what can be iterated over (loaders and datasets of other libraries, generators),
            a sequence (also one of grain), or a function of the batch's number. Each batch is the
            step's argument, or the tuple of them where they are several, of host arrays, which
            may be written to again once the next batch is asked for.
        step: what is going to take them.
        prefetch: batches that may wait, placed; at least 1.
        start: number of the first batch. Sources by number begin there, others are read up to
            there.

    Attributes:
        several: whether a batch is the tuple of several arguments.

    Raises:
        ArgumentMismatchError: `prefetch` or `start` make no sense for this source.

    Example:
        >>> with DataLoader(batches, train_step, prefetch=2) as loader:     # doctest: +SKIP
        ...     for batch in loader:
        ...         state, loss = train_step(state, batch)
    """

    def __init__(
        self, batches: Any, step: LoadedStep, *, prefetch: int = 2, start: int = 0
    ) -> None:
        where = "DataLoader"
        check_type(where, "step", step, STEP)
        check_type(where, "prefetch", prefetch, WHOLE)
        check_type(where, "start", start, WHOLE)
        if prefetch < 1:
            raise ArgumentMismatchError(f"prefetch={prefetch}, expected at least 1", where=where)
        if start < 0:
            raise ArgumentMismatchError(f"start={start}, expected at least 0", where=where)
        is_source = _is_iterable(batches) or _is_indexed(batches) or callable(batches)
        if not is_source or _is_one_batch(batches):
            raise ArgumentMismatchError(
                f"{type(batches).__name__} is no source of batches",
                where=where,
                fix="give an iterable of batches, or a function of the batch's number",
            )
        if start and not _is_indexed(batches) and getattr(batches, "__next__", None) is not None:
            raise ArgumentMismatchError(
                f"start={start} for batches that can be read only once",
                where=where,
                fix="give a list, a function of the batch's number, or an iterator that stands at "
                "that batch already, and start=0",
            )
        self._batch = step_batch(step.form, step.plan)
        self.batches: Any = as_any(batches)
        self.start = start
        self.prefetch = prefetch
        self.several: bool = self._batch.several
        self._placer: Placer = as_any(step.loaded)
        self._open: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()

    def __iter__(self) -> LoaderIterator:
        name = type(self.batches).__name__
        iterator = LoaderIterator(self._source, self._place, self.prefetch, name)
        self._open.add(iterator)
        return iterator

    def __len__(self) -> int:
        return max(0, len(as_any(self.batches)) - self.start)

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all iterations and their threads. May be called twice."""
        for iterator in list(self._open):
            iterator.close()

    def _source(self) -> _Source:
        batches: Any = self.batches
        if _is_indexed(batches):
            return _Source(as_any(batches[i]) for i in range(self.start, len(batches)))
        if _is_iterable(batches):
            iterator: Any = iter(batches)
            return _Source(self._iterated(iterator), getattr(iterator, "get_state", None))
        return _Source(map(batches, itertools.count(self.start)))

    def _iterated(self, iterator: Any) -> Iterator[Any]:
        batches: Any = self.batches
        try:
            yield from itertools.islice(iterator, self.start, None)
        finally:
            # An iterator that the caller gave is the caller's to close.
            if iterator is not batches and hasattr(iterator, "close"):
                iterator.close()

    def _place(self, batch: Any) -> Any:
        form: StepBatch = self._batch
        leaves = form.flatten(batch)
        placed = [
            x if index is None else self._placer.put(index, x)
            for x, index in zip(leaves, form.inputs, strict=True)
        ]
        return trees.unflatten(form.tree, placed)


@final
@dataclass(frozen=True)
class _Samples:
    """A data set that gives itself in batches, from its beginning each time."""

    batches: Callable[[int, int, int], Iterable[Any]]
    batch_size: int
    count: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches(0, self.count * self.batch_size, self.batch_size))

    def __len__(self) -> int:
        return self.count


def MeshDriverDataLoader(  # noqa: N802
    batch_size: int,
    num_samples: int,
    input_iter_func: Callable[[int, int, int], Iterable[Any]],
    step: ParallelStep,
    prefetch_size: int = 1,
) -> DataLoader:
    """A `DataLoader` of a data set that is read by the numbers of its samples.

    Batches are read in this process, by the loader's thread, and every worker is sent the parts
    that it needs. Samples that do not fill a batch are left out.

    Args:
        batch_size: of the whole batch.
        num_samples: of the data set.
        input_iter_func: `(start, end, batch_size)` gives the samples from start to end, batch by
            batch.
        step: what is going to take them.
        prefetch_size: batches that may wait, placed; at least 1.

    Raises:
        ArgumentMismatchError: the numbers make no sense.

    Example:
        >>> loader = MeshDriverDataLoader(32, len(data), read, train_step)   # doctest: +SKIP
    """
    if batch_size < 1 or num_samples < 0:
        raise ArgumentMismatchError(
            f"batch_size={batch_size}, num_samples={num_samples}", where="MeshDriverDataLoader"
        )
    samples = _Samples(input_iter_func, batch_size, num_samples // batch_size)
    return DataLoader(samples, step, prefetch=prefetch_size)


class _Source:
    """Batches to come, and what says where they stand if anything does."""

    def __init__(self, batches: Iterator[Any], get_state: Callable[[], Any] | None = None) -> None:
        self.batches = batches
        self.get_state = get_state


def _is_iterable(batches: Any) -> bool:
    return hasattr(batches, "__iter__")


def _is_one_batch(batches: Any) -> bool:
    """What can be iterated over, and would give keys or letters."""
    return isinstance(batches, Mapping | str | bytes)


def _is_indexed(batches: Any) -> bool:
    return hasattr(batches, "__getitem__") and hasattr(batches, "__len__")


class LoaderIterator:
    """One pass over the batches of a `DataLoader`; ends with its last one, or by `close`.

    Args:
        source: gives the batches; called in the thread.
        place: makes of a batch what is handed out; called in the thread.
        prefetch: how many may wait.
        name: of the source, for messages.
    """

    def __init__(
        self,
        source: Callable[[], _Source],
        place: Callable[[Any], Any],
        prefetch: int,
        name: str = "the source",
    ) -> None:
        self._name = name
        self._state: Any = None
        self._has_state = False
        self._ready: queue.Queue[tuple[str, Any]] = queue.Queue(prefetch)
        self._stop = threading.Event()
        self._ended = False
        # The thread knows nothing of this object, so that a forgotten iteration ends as well.
        self._thread = threading.Thread(
            target=_fill, args=(source, place, self._ready, self._stop), name="alpa-mlir loader"
        )
        self._thread.daemon = True
        self._end = weakref.finalize(self, _finish, self._thread, self._ready, self._stop)
        self._thread.start()

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        """The next batch; waits for it.

        Raises:
            StopIteration: there is none.
            Exception: what the source raised instead of it.
        """
        if self._ended or self._stop.is_set():
            raise StopIteration
        kind, value = self._ready.get()
        if kind == "batch":
            batch, self._state, self._has_state = value
            return batch
        self._ended = True
        self._end()
        if kind == "error":
            raise value
        raise StopIteration

    def get_state(self) -> Any:
        """Where the source stood after the batch that was handed out last, as its own `get_state`
        said it: batches that wait do not count. Give it to `set_state` of such a source to go on.

        Raises:
            ArgumentMismatchError: the source has no `get_state`, or no batch was handed out.
        """
        if not self._has_state:
            raise ArgumentMismatchError(
                f"{self._name} has no get_state, or nothing was taken of it",
                where="DataLoader",
                fix="count the batches, and go on with start=",
            )
        return self._state

    def close(self) -> None:
        """End it; its thread is gone afterwards. May be called twice."""
        self._end()


def _fill(
    source: Callable[[], _Source],
    place: Callable[[Any], Any],
    ready: queue.Queue[tuple[str, Any]],
    stop: threading.Event,
) -> None:
    last: tuple[str, Any] = ("end", None)
    batches: Any = None
    try:
        found = source()
        batches, get_state = found.batches, found.get_state
        for batch in batches:
            state = None if get_state is None else get_state()
            handed = place(batch), state, get_state is not None
            if not _hand_over(("batch", handed), ready, stop):
                break
    except BaseException as error:
        last = ("error", error)
    close = getattr(batches, "close", None)
    if close is not None:  # Of a generator: its own clean-up.
        try:
            close()
        except BaseException as error:
            if last[0] == "error":
                _log.warning("the source of a DataLoader could not be closed: %s", error)
            else:
                last = ("error", error)
    _hand_over(last, ready, stop)


def _hand_over(
    item: tuple[str, Any], ready: queue.Queue[tuple[str, Any]], stop: threading.Event
) -> bool:
    """Waits for room; false if nobody wants it any more."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            pass
    return False


def _finish(
    thread: threading.Thread, ready: queue.Queue[tuple[str, Any]], stop: threading.Event
) -> None:
    """Let the thread end, and wait for it."""
    stop.set()
    if thread is threading.current_thread():  # A garbage collection in the thread itself.
        return
    with contextlib.suppress(queue.Empty):
        ready.get_nowait()  # It may be waiting for room.
    with contextlib.suppress(queue.Full):
        ready.put_nowait(("end", None))  # Another thread may be waiting for a batch.
    thread.join(_END_SECONDS)
    if thread.is_alive():
        _log.warning("the source of a closed DataLoader has not given its batch yet")
