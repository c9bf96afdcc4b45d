"""Finds the number of micro-batches, the schedule and the plan for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import jax
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import Tried

from alpa_mlir.errors import (
    AlpaError,
    DevicesError,
    InfeasiblePlanError,
    MethodError,
    MicroBatchError,
)
from alpa_mlir.methods.method import AUTO_SCHEDULES, Method
from alpa_mlir.search import autotune
from alpa_mlir.search.candidates import Candidates, Found, Progress

# Predicted seconds of the best plan with so many micro-batches; infinite if there is none.
Worth = Callable[[int], float]


def nearest(counts: Sequence[int], wanted: float) -> int:
    """The count that differs from `wanted` by the least factor; the smaller one of two.

    Example:
        >>> nearest((1, 2, 8), 4)
        2
    """
    return min(counts, key=lambda n: (max(n, wanted) / min(n, wanted), n))


def climb(counts: Sequence[int], start: int, worth: Worth) -> int | None:
    """The best count that is found from `start` up and down a ladder of counts, as long as steps
    become faster, and then among the best one's neighbours; None if none has a plan.

    Args:
        counts: what may be chosen, rising; `start` among them.

    Example:
        >>> climb((1, 2, 3, 4, 6, 12), 2, lambda n: abs(n - 5))
        4
    """
    ladder = _ladder(counts, start)
    at = ladder.index(start)
    best = start
    # More and smaller micro-batches need less memory, as a rule.
    for count in [*ladder[at + 1 :], *reversed(ladder[:at])]:
        if worth(best) < float("inf"):
            break
        best = count
    if worth(best) == float("inf"):
        return None
    at = ladder.index(best)
    # Both ways: one stage with large micro-batches and many with small ones are two valleys.
    for way in (ladder[at + 1 :], list(reversed(ladder[:at]))):
        for count in way:
            if worth(count) >= worth(best):
                break
            best = count
    # What lies between the best one and its neighbours on the ladder.
    at = counts.index(best)
    return min((best, *counts[max(at - 1, 0) : at], *counts[at + 1 : at + 2]), key=worth)


def _ladder(counts: Sequence[int], start: int) -> list[int]:
    """Counts at least a factor of two apart, `start` among them, rising."""
    ladder = [start]
    for count in counts:
        if count >= 2 * ladder[-1]:
            ladder.append(count)
    for count in reversed(counts):
        if 2 * count <= ladder[0]:
            ladder.insert(0, count)
    return ladder


_jax: Any = jax

# Plans in full beyond the first, where that one is slower than others were estimated.
_MOST_RUNNERS_UP = 2
# Why a plan cannot be had for a number of micro-batches.
_NOT_FOR_THIS_COUNT = (InfeasiblePlanError, MicroBatchError)
# A full plan this much slower than an estimate of another is worth a second look.
_TOLERANCE = 1.05


@dataclass(frozen=True)
class Chosen:
    """The plan that was chosen, and all that was tried."""

    found: Found
    tried: tuple[Tried, ...]


class Planner:
    """Plans one step for one cluster.

    Args:
        candidates: of the step, opened; its method's `"auto"` options and numbers of
            micro-batches are searched.
    """

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.method: Method = candidates.method
        self.counts: tuple[int, ...] = self.method.micro_batch_counts(candidates.batch_size)

    def run(self) -> Chosen:
        """Search, and plan what is best in full.

        Raises:
            InfeasiblePlanError: nothing that may be chosen fits.
            DevicesError: finalists are to be measured, and this process has too few devices.
            AlpaError: another error of the step or the cluster.
        """
        if self.method.finalists:
            self._check_measurable()
        found = self._only(self.counts[0]) if len(self.counts) == 1 else self._search()
        if self.method.finalists:
            self._check_devices(found)  # Planning the others takes long.
            found = self._fastest(self._finalists())
        self.candidates.end()
        return Chosen(found, self.candidates.tried)

    def start(self) -> int:
        """The given count that is nearest to a micro-batch of one example for each device of a
        host: few enough to keep devices busy, many enough for a pipeline."""
        devices = max(self.candidates.cluster.devices_per_host)
        return nearest(self.counts, self.candidates.batch_size / devices)

    def _only(self, count: int) -> Found:
        try:
            return self.candidates.in_full(count, self.method)
        except InfeasiblePlanError as error:
            raise self.candidates.why_not() or error from None

    def _search(self) -> Found:
        """The best of several numbers of micro-batches."""
        counts = self._exact_counts()
        best = climb(counts, nearest(counts, self.start()), lambda n: self._worth(n, self.method))
        if counts[0] == 1 and len(counts) > 1:  # Many micro-batches may hide a valley at one.
            self._worth(1, self.method)
        if best is None and not self._ranked():
            raise self.candidates.why_not() or self._no_count()
        return self._plan_best()

    def _exact_counts(self) -> tuple[int, ...]:
        """The counts, if several micro-batches give the results of the whole batch; else one. What
        couples examples couples them for any count, but for rows that counts do not divide."""
        several = [n for n in self.counts if n > 1]
        if several and 1 in self.counts:
            for count in (nearest(several, self.start()), several[0]):
                if self._worth(count, self.method) < inf or count not in self.candidates.couplings:
                    return self.counts
            return (1,)
        return self.counts

    def _worth(self, count: int, method: Method) -> float:
        return _seconds(self.candidates.estimate(count, method))

    def _ranked(self) -> list[tuple[int, float]]:
        """Counts that have a plan, and its predicted seconds, the fastest first."""
        ranked = sorted((t for t in self.candidates.tried if t.seconds is not None), key=_seconds)
        return [(t.num_micro_batches, _seconds(t)) for t in ranked]

    def _plan_best(self) -> Found:
        best: Found | None = None
        infeasible: AlpaError | None = None
        for count, seconds in self._ranked()[: 1 + _MOST_RUNNERS_UP]:
            if best is not None and best.seconds <= _TOLERANCE * seconds:
                break
            try:
                found = self.candidates.in_full(count, self.method)
            except _NOT_FOR_THIS_COUNT as error:
                infeasible = error
                continue
            if best is None or found.seconds < best.seconds:
                best = found
        if best is None:
            assert infeasible is not None
            raise infeasible
        return best

    # -- finalists ------------------------------------------------------------------------

    def _check_measurable(self) -> None:
        where = f"finalists={self.method.finalists}"
        kinds = {kind for _, kind in self.candidates.cluster.host_groups}
        if len(kinds) > 1:
            raise MethodError(
                f"cluster {self.candidates.cluster.name!r} has devices of the kinds "
                f"{', '.join(sorted(kinds))}, this process has but one",
                where=where,
                fix="use finalists=0",
            )
        processes: int = _jax.process_count()
        if processes > 1:
            raise DevicesError(
                f"each of {processes} processes would choose by what it measured itself",
                where=where,
                fix="plan in one process, save the plan, and load it in all of them",
            )

    def _finalists(self) -> list[Found]:
        """As many different plans as are wanted, if there are, the fastest by prediction first.

        Numbers of micro-batches and rematerialization come before schedules: these order the
        same programs, whose seconds the simulator puts together well.
        """
        wanted = self.method.finalists
        planned = self.candidates.planned
        for count, method in self._runners_up():
            if len(_different(planned)) >= wanted:
                break
            try:
                self.candidates.in_full(count, method)
            except _NOT_FOR_THIS_COUNT:
                continue
            planned = self.candidates.planned
        return _different(planned)[:wanted]

    def _runners_up(self) -> Iterator[tuple[int, Method]]:
        """What may be planned in full, the most promising first."""
        yield from [(count, self.method) for count, _ in self._ranked()]
        best = min(self.candidates.planned, key=lambda found: found.seconds)
        count = best.plan.num_micro_batches
        if self.method.remat == "auto":
            others = [replace(self.method, remat=remat) for remat in ("none", "all")]
            yield from self._by_worth(count, others)
        if self.method.schedule == "auto" and len(best.plan.stages) > 1:
            names = [name for name in AUTO_SCHEDULES if name != best.plan.schedule]
            yield from self._by_worth(count, [replace(self.method, schedule=s) for s in names])

    def _by_worth(self, count: int, methods: list[Method]) -> Iterator[tuple[int, Method]]:
        """Those that have a plan, the most promising first."""
        for method in sorted(methods, key=lambda method: self._worth(count, method)):
            if self._worth(count, method) < inf:
                yield count, method

    def _fastest(self, found: list[Found]) -> Found:
        """Measure the plans; the fastest one, with what was measured."""
        for each in found:
            self._check_devices(each)

        def progress(index: int) -> Progress:
            label = self._label(found[index])
            self.candidates.say(f"measuring {label}")
            return lambda _done, _total, what: self.candidates.say(f"measuring {label}: {what}")

        best, results = autotune.fastest([each.plan for each in found], progress=progress)
        reasons: list[str] = []
        for each, result in zip(found, results, strict=True):
            if isinstance(result, InfeasiblePlanError):
                reasons.append(result.what)
                self.candidates.note(each, reason=result.what)
            else:
                self.candidates.note(each, measured=result.step_seconds)
        if best is None or isinstance(chosen := results[best], InfeasiblePlanError):
            raise DevicesError(
                f"none of the finalists runs: {'; '.join(dict.fromkeys(reasons))}",
                where=f"finalists={self.method.finalists}",
                fix=f"use a memory_fraction below {self.method.memory_fraction:g}",
            )
        return replace(found[best], plan=chosen.plan)

    def _label(self, found: Found) -> str:
        return self.candidates.label(found.plan.num_micro_batches, found.method)

    def _check_devices(self, found: Found) -> None:
        devices = len(_jax.local_devices())
        for stage in autotune.too_large(found.plan, devices):
            needed = len(found.plan.meshes[found.plan.stages[stage].mesh].devices)
            raise DevicesError(
                f"stage {stage} of the plan for {self._label(found)} takes {needed} devices, "
                f"this process has {devices}",
                where=f"finalists={self.method.finalists}",
                fix=f"plan where there are {needed} devices, or use finalists=0",
            )

    def _no_count(self) -> AlpaError:
        if self.candidates.couplings:
            return next(iter(self.candidates.couplings.values()))
        return MicroBatchError(
            "the step has no plan for any of the numbers of micro-batches: "
            + "; ".join(dict.fromkeys(t.reason for t in self.candidates.tried)),
            where=self.candidates.name,
        )


def _seconds(tried: Tried) -> float:
    return inf if tried.seconds is None else tried.seconds


def _different(found: tuple[Found, ...]) -> list[Found]:
    """The fastest by prediction first; of plans that run the same programs only one."""
    kept: list[Found] = []
    for each in sorted(found, key=lambda found: found.seconds):
        if not any(_runs_alike(each.plan, other.plan) for other in kept):
            kept.append(each)
    return kept


def _runs_alike(first: Plan, second: Plan) -> bool:
    return (first.meshes, first.modules, first.programs) == (
        second.meshes,
        second.modules,
        second.programs,
    )
