"""A training loop that outlives its workers."""

from __future__ import annotations

import ast
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import jax
from alpa_runtime import trees
from alpa_runtime.checkpoint import Saving, latest_checkpoint, save_checkpoint
from alpa_runtime.checkpoint.folders import check_root, check_writable, held_by_run
from alpa_runtime.checkpoint.save_restore import StateTarget, restore_newest
from alpa_runtime.errors import FUNCTION, NUMBER, PATH, ROW, WHOLE, Kind, check_type
from alpa_runtime.parallel_step import ParallelStep
from alpa_runtime.plan import Plan

from alpa_mlir.data_loader import DataLoader
from alpa_mlir.errors import (
    AlpaError,
    ArgumentMismatchError,
    CheckpointError,
    DevicesError,
    TransportError,
    WorkerError,
    WorkerLostError,
    WorkerMemoryError,
)
from alpa_mlir.loading import load as load_plan
from alpa_mlir.methods.method import is_whole

_LOOK_SECONDS = 0.2  # For hosts.


class StatefulStep:
    """Called with the state and the batch, gives the next state and the other results by name.

    Which result is the next value of which part of the state the plan says; what no result
    replaces stays. So any step becomes `(state, *batch) -> (state, results)`, whatever the order
    of its arguments and results: what `training.run` wants, and `restore_checkpoint`.

    Args:
        step: a loaded step.
        static: its arguments that are Python values, by position, where the plan does not know
            them.

    Example:
        >>> carried = StatefulStep(alpa_mlir.load("my_plan"))        # doctest: +SKIP
        >>> state, batch = carried.split((state, batch))            # doctest: +SKIP
        >>> state, results = carried(state, *batch)                 # doctest: +SKIP
        >>> results                                                 # doctest: +SKIP
        {"result[1]['loss']": Array(0.25, dtype=float32)}
    """

    def __init__(self, step: ParallelStep, static: Mapping[int, Any] | None = None) -> None:
        self.step = step
        form, plan = step.form, step.plan
        self.static: dict[int, Any] = {
            item.position: None if item.value is None else ast.literal_eval(item.value)
            for item in form.static
        } | dict(static or {})
        numbered: tuple[Any, ...] = trees.unflatten(form.in_tree, range(form.in_tree.num_leaves))
        leaves = [[int(leaf) for leaf in trees.leaves(argument)] for argument in numbered]
        self._is_batch = [any(form.batches[i] for i in owned) for owned in leaves]
        pairs = zip(leaves, self._is_batch, strict=True)
        state = [i for owned, batch in pairs if not batch for i in owned]
        self._carried = [plan.arguments[i].carried_by for i in state]
        replaced = {index for index in self._carried if index is not None}
        self._others = {i: info.name for i, info in enumerate(plan.results) if i not in replaced}

    @property
    def num_batches(self) -> int:
        """How many arguments are batches."""
        return sum(self._is_batch)

    def split(self, arguments: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        """The state, and the batch arguments, of the step's arguments without static ones.

        Several arguments that are state are a tuple; objects of flax.nnx are their arrays.

        Raises:
            ArgumentMismatchError: there are more or fewer than the step takes.
        """
        if len(arguments) != len(self._is_batch):
            raise ArgumentMismatchError(
                f"got {len(arguments)} arguments, the step takes {len(self._is_batch)}",
                where=self.step.plan.name,
            )
        size = len(self._is_batch) + len(self.static)
        rest = iter(arguments)
        full = [self.static[i] if i in self.static else next(rest) for i in range(size)]
        arrays = self.step.arrays_of(full)
        arguments = [x for i, x in enumerate(arrays) if i not in self.static]
        pairs = list(zip(arguments, self._is_batch, strict=True))
        state = tuple(argument for argument, is_batch in pairs if not is_batch)
        batch = tuple(argument for argument, is_batch in pairs if is_batch)
        return (state[0] if len(state) == 1 else state), batch

    def __call__(self, state: Any, *batch: Any) -> tuple[Any, dict[str, Any]]:
        """Run one step.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the step was made for.
        """
        if len(batch) != self.num_batches:
            raise ArgumentMismatchError(
                f"a batch of {len(batch)} arguments, the step takes {self.num_batches}",
                where=self.step.plan.name,
                fix="let batches be the step's last argument, or the tuple of those that are "
                "batches",
            )
        several = self._is_batch.count(False) != 1
        states = iter(state if several else (state,))
        batches = iter(batch)
        dynamic = iter([next(batches if is_batch else states) for is_batch in self._is_batch])
        size = len(self._is_batch) + len(self.static)
        arguments = [self.static[i] if i in self.static else next(dynamic) for i in range(size)]
        results = trees.leaves(self.step(*arguments))
        old, structure = trees.flatten(state)
        new = [
            value if index is None else results[index]
            for value, index in zip(old, self._carried, strict=True)
        ]
        return trees.unflatten(structure, new), {n: results[i] for i, n in self._others.items()}

    def state_target(self) -> StateTarget:
        """What `restore_checkpoint(folder, step)` asks for."""
        return self.step.state_target()

    def count_steps_from(self, number: int) -> None:
        """Let errors of workers call the next step by this number, as after a checkpoint."""
        self.step.count_steps_from(number)

    def close(self) -> None:
        """End the step's workers, if it has any."""
        self.step.close()


_jax: Any = jax
_log = logging.getLogger("alpa_mlir.training")
# What may be over with fresh workers.
_FAILURES = (WorkerError, TransportError)


class Step(Protocol):
    """A loaded step: `alpa_mlir.load(.., workers=..)` gives one."""

    def __call__(self, *args: Any) -> Any: ...

    def close(self) -> None: ...


Batches = Callable[[int], Any] | Iterable[Any]
Further = Callable[[int], Sequence[Any]] | Sequence[Any]
_STEP = Kind("a loaded step", lambda value: callable(value) and hasattr(value, "close"))


@dataclass(frozen=True)
class Resume:
    """How a run gets over failures.

    Attributes:
        folder: of its checkpoints; a run that was ended goes on from the last one in it that is
            not damaged.
        every: steps from one checkpoint to the next.
        keep: how many checkpoints to keep.
        attempts: failures without a new checkpoint in between, after which the error is raised; two
            are enough where they are a WorkerMemoryError.
    """

    folder: str | Path
    every: int = 100
    keep: int = 2
    attempts: int = 5

    def __post_init__(self) -> None:
        check_type("Resume", "folder", self.folder, PATH)
        for name in ("every", "keep", "attempts"):
            check_type("Resume", name, getattr(self, name), WHOLE)
            if getattr(self, name) < 1:
                raise ArgumentMismatchError(
                    f"{name}={getattr(self, name)}", where="Resume", fix="give at least 1"
                )


def run(
    load: Callable[[], Step],
    state: Any,
    batches: Batches,
    steps: int,
    resume: Resume,
    *,
    replan: Callable[[AlpaError], Step] | None = None,
    grows: Callable[[], bool] | None = None,
    on_result: Callable[[int, Any], None] | None = None,
    arguments: Further = (),
) -> Any:
    """Train for a number of steps, whatever happens to the workers.

    Every event is logged in one line, by the logger `alpa_mlir.training`.

    Args:
        load: loads the step, with workers of its own; called again after each failure. The step
            takes the state first, then a batch (or several, where a batch is a tuple), and gives
            the new state first.
        state: the first state, or a function that makes it, called only where there is no
            checkpoint.
        batches: the batch of each step: a function of the step's number, from 0, or what can be
            iterated over more than once, each time from the first step's.
        steps: how many to do in all, those of earlier runs included.
        replan: gives a step for what is left of the cluster, when `load` raises a DevicesError
            (its argument) because a host cannot be replaced.
        grows: asked when a checkpoint is on the disk, whether to end the workers and call `load`
            anew: there is a plan for more hosts, and they are there (`Elastic.grows`).
        arguments: what the step takes behind the batch, such as a key or a learning rate: a tuple,
            or a function of the step's number that gives one.
        on_result: called once with the number and the results of each step but the state, on the
            host, in order; not for steps before the checkpoint that the run begins with.

    Returns:
        The last state, where the step left it.

    Raises:
        CheckpointError: another run holds the folder.
        AlpaError: what `load`, the step or a checkpoint raise that fresh workers do not mend, or
            the last failure of `resume.attempts`.

    Example:
        >>> workers = RayWorkers()                                     # doctest: +SKIP
        >>> state = training.run(                                      # doctest: +SKIP
        ...     lambda: alpa_mlir.load("my_plan", workers=workers),
        ...     init, lambda i: data[i], 10_000, Resume("run", every=100))
    """
    check_type("run", "load", load, FUNCTION)
    check_type("run", "batches", batches, FUNCTION, ROW)
    check_type("run", "steps", steps, WHOLE)
    if steps < 0:
        raise ArgumentMismatchError(f"steps={steps}", where="run", fix="give at least 0")
    check_type("run", "resume", resume, Resume)
    check_type("run", "replan", replan, FUNCTION, None)
    check_type("run", "grows", grows, FUNCTION, None)
    check_type("run", "on_result", on_result, FUNCTION, None)
    check_type("run", "arguments", arguments, FUNCTION, ROW)
    return _Run(load, state, batches, steps, resume, replan, grows, on_result, arguments).go()


_HAS_HOSTS = Kind(
    "workers that know how many hosts are there: LaunchedWorkers() or RayWorkers()",
    lambda value: hasattr(value, "num_hosts") and not isinstance(value, type),
)


class Elastic:
    """Plans of one step for several numbers of hosts, of which the largest that finds its hosts
    runs: a lost host shrinks the run, one that comes back grows it.

    Every plan computes the same step on the same batches, which are asked for by the step's number,
    so that the losses are those of one plan, within rounding.

    Args:
        plans: by number of hosts, a plan or the folder of a saved one.
        workers: where plans run.
        wait_seconds: for the hosts of the largest plan, before a smaller one is taken.

    Example:
        >>> elastic = Elastic({4: "plans/4", 3: "plans/3"}, LaunchedWorkers())  # doctest: +SKIP
        >>> state = run(                                                        # doctest: +SKIP
        ...     elastic.load, init, batches, 10_000, Resume("run"), grows=elastic.grows)
    """

    def __init__(
        self, plans: Mapping[int, Plan | str | Path], workers: Any, *, wait_seconds: float = 10.0
    ) -> None:
        check_type("Elastic", "plans", plans, dict)
        check_type("Elastic", "workers", workers, _HAS_HOSTS)
        check_type("Elastic", "wait_seconds", wait_seconds, NUMBER)
        if not plans or not all(is_whole(count, 1) for count in plans):
            raise ArgumentMismatchError(
                f"plans for {', '.join(map(str, plans)) or 'no'} hosts",
                where="Elastic",
                fix="give plans by number of hosts",
            )
        self._plans = dict(plans)
        self._workers = workers
        self._wait_seconds = wait_seconds
        self.num_hosts: int = 0  # Of the plan that was loaded last.

    def load(self) -> Step:
        """The step, by the plan for the most hosts that are there.

        Raises:
            DevicesError: there are fewer than any plan needs.
        """
        deadline = time.monotonic() + self._wait_seconds
        while (there := self._workers.num_hosts()) < max(self._plans):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        fits = [count for count in self._plans if count <= there]
        if not fits:
            raise DevicesError(
                f"{there} hosts are there, plans need {min(self._plans)} or more",
                where="Elastic",
                fix="start more hosts, or make a plan for fewer",
            )
        self.num_hosts = max(fits)
        _log.info("%d hosts are there: the plan for %d", there, self.num_hosts)
        return load_plan(self._plans[self.num_hosts], workers=self._workers)

    def grows(self) -> bool:
        """Whether there are the hosts of a larger plan than the one that was loaded last."""
        there = self._workers.num_hosts()
        return any(self.num_hosts < count <= there for count in self._plans)


class _MoreHostsError(Exception):
    """There are more hosts."""


class _Run:
    def __init__(
        self,
        load: Callable[[], Step],
        state: Any,
        batches: Batches,
        steps: int,
        resume: Resume,
        replan: Callable[[AlpaError], Step] | None,
        grows: Callable[[], bool] | None,
        on_result: Callable[[int, Any], None] | None,
        arguments: Further,
    ) -> None:
        self.load = load
        self.first = state
        self.batches = batches
        self.steps = steps
        self.resume = resume
        self.replan = replan
        self.grows = grows
        self.on_result = on_result
        self.arguments = arguments
        self.number = 0  # Of the step that is to be done next.
        self.reported = -1  # The last step whose results were handed out.
        self.pending: deque[tuple[int, Any]] = deque()
        self.saving: Saving | None = None
        self.unsaved = 0  # Checkpoints in a row that could not be written.

    def go(self) -> Any:
        folder = Path(self.resume.folder)
        check_root(folder)
        if (latest_checkpoint(folder) or 0) < self.steps:
            check_writable(folder)
        with held_by_run(folder):
            return self.attempted()

    def attempted(self) -> Any:
        """Train, with fresh workers after each failure that they may mend."""
        failures, without_memory, saved = 0, 0, latest_checkpoint(self.resume.folder) or 0
        while True:
            step: Step | None = None
            try:
                step = self.loaded()
                return self.train(step)
            except _MoreHostsError:
                self.give_up(step)
                _log.info("step %d: more hosts are there, loading anew", self.number)
            except _FAILURES as error:
                self.give_up(step)
                # One that a damaged one of later steps gave way to is no new one.
                last = latest_checkpoint(self.resume.folder) or 0
                if last > saved:
                    failures, without_memory, saved = 0, 0, last
                failures += 1
                without_memory += isinstance(error, WorkerMemoryError)
                _log.warning("step %d: %s", self.number, " ".join(str(error).split()))
                # The plan's programs need the same again with fresh workers.
                if failures >= self.resume.attempts or without_memory > 1:
                    raise
            except Exception:
                # The workers are well: what they are writing is worth waiting for.
                self.finish_saving()
                self.give_up(step)
                raise
            except BaseException:
                self.give_up(step)
                raise

    def loaded(self) -> Step:
        begin = time.monotonic()
        try:
            step = self.load()
        except DevicesError as error:
            if self.replan is None:
                raise
            _log.warning("a host cannot be replaced, planning again: %s", error)
            step = self.replan(error)
        check_type("load", "the step", step, _STEP)
        _log.info("workers are up after %.1f s", time.monotonic() - begin)
        return step

    def give_up(self, step: Step | None) -> None:
        """End the workers, and the checkpoint that they were writing."""
        if step is not None:
            step.close()
        self.finish_saving()
        self.pending.clear()

    def finish_saving(self) -> None:
        """Wait for the checkpoint that is being written, whatever comes of it."""
        saving, self.saving = self.saving, None
        if saving is not None:
            with contextlib.suppress(CheckpointError):
                saving.wait()
                self.unsaved = 0

    def train(self, step: Step) -> Any:
        self.number, state = self.begin(step)
        if isinstance(step, ParallelStep | StatefulStep):
            step.count_steps_from(self.number)
        with contextlib.closing(self.placed(step)) as batches:
            while self.number < self.steps:
                batch = next(batches, None)
                if batch is None:
                    raise ArgumentMismatchError(
                        f"batches end before step {self.number} of {self.steps}",
                        where="training.run",
                        fix="give as many batches as steps",
                    )
                further = self.arguments
                more = further(self.number) if callable(further) else further
                state, others = _state_and_others(step(state, *batch, *more))
                self.pending.append((self.number, others))
                self.number += 1
                self.report(1)  # The results of the step before are there by now, or soon.
                if self.number % self.resume.every == 0 or self.number == self.steps:
                    self.save(state)
                    self.grow()
        self.report(0)
        self.saved()
        return state

    def begin(self, step: Step) -> tuple[int, Any]:
        """Number and state to go on with."""
        folder = self.resume.folder
        target = step
        if isinstance(step, ParallelStep) and self.arguments:
            target = step.state_target(1)  # What stands behind the batch is no state.
        found = restore_newest(folder, target, _log)
        if found is None:
            return 0, self.first() if callable(self.first) else self.first
        _log.info("going on from the checkpoint of step %d in %s", found[0], folder)
        if found[0] >= self.steps:
            _log.warning(
                "nothing to do: the checkpoint in %s is of step %d, and the run of %d steps; "
                "steps counts those of earlier runs: give more, or another folder",
                folder, found[0], self.steps,
            )  # fmt: skip
        return found

    def placed(self, step: Step) -> Generator[tuple[Any, ...], None, None]:
        """The batch of each step that is left, where the step wants it."""
        left = itertools.islice(self.batches_from(self.number), self.steps - self.number)
        batches = map(_as_tuple, left)
        if not isinstance(step, ParallelStep):
            yield from batches
            return
        given = (batch[0] if len(batch) == 1 else batch for batch in batches)
        with DataLoader(given, step) as loader:
            for batch in loader:
                yield batch if loader.several else (batch,)

    def batches_from(self, number: int) -> Iterator[Any]:
        batches = self.batches
        if callable(batches):
            return map(batches, itertools.count(number))
        iterator = iter(batches)
        if iterator is batches:
            raise ArgumentMismatchError(
                "batches can be iterated over only once",
                where="training.run",
                fix="give a function of the step's number, or a list",
            )
        return itertools.islice(iterator, number, None)

    def report(self, left: int) -> None:
        """Hand out the results of steps, all but those of the last `left`."""
        while len(self.pending) > left:
            number, result = self.pending[0]
            result = _jax.device_get(result)  # Raises if the step failed.
            self.pending.popleft()
            if self.on_result is not None and number > self.reported:
                self.on_result(number, result)
            self.reported = max(self.reported, number)

    def save(self, state: Any) -> None:
        """Begin to write a checkpoint, of a state whose steps have all been reported."""
        self.report(0)
        self.saved()
        if latest_checkpoint(self.resume.folder) != self.number:
            folder, keep = self.resume.folder, self.resume.keep
            with self.may_fail(self.number):
                self.saving = save_checkpoint(folder, state, step=self.number, keep=keep)

    def grow(self) -> None:
        """Leave the workers behind a checkpoint, where more hosts are there than they take.

        Raises:
            _MoreHostsError: that is so.
        """
        if self.grows is None or self.number == self.steps or not self.grows():
            return
        self.saved()
        if latest_checkpoint(self.resume.folder) == self.number:
            raise _MoreHostsError

    def saved(self) -> None:
        """Wait for the checkpoint that is being written."""
        saving, self.saving = self.saving, None
        if saving is not None:
            with self.may_fail(saving.step):
                saving.wait()
                self.unsaved = 0

    @contextlib.contextmanager
    def may_fail(self, step: int) -> Generator[None]:
        """A checkpoint that could not be written is no end: perhaps the disk is full, and room is
        made.

        Raises:
            CheckpointError: it was the last one, or the one before had failed too.
            WorkerLostError: a worker is gone, which says nothing of the disk.
        """
        try:
            yield
        except CheckpointError as error:
            if isinstance(error.__cause__, WorkerLostError):
                raise error.__cause__ from None
            self.unsaved += 1
            if self.unsaved > 1 or step == self.steps:
                raise
            _log.warning("no checkpoint of step %d: %s", step, error)


def _state_and_others(result: Any) -> tuple[Any, Any]:
    """What a step returned: the new state, and the rest, by itself if it is one thing."""
    found = _as_tuple(result)
    if found is not result or not found:
        raise ArgumentMismatchError(
            f"the step returned a {type(result).__name__}",
            where="training.run",
            fix="let it return a tuple, the state first",
        )
    state, *others = found
    return state, others[0] if len(others) == 1 else tuple(others)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", value) if type(value) is tuple else (value,)
