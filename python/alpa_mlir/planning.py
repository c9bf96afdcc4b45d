"""Find the number of micro-batches, the schedule and the plan for them.

A step is traced once. For every other number of micro-batches the traced module is rescaled
(`alpa-rescale`), clustered modules are searched with a coarse budget, and only what looks best
is traced at its own size and planned in full.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import gcd, inf, prod
from pathlib import Path
from types import TracebackType

import numpy as np

from alpa_mlir.cluster import Cluster
from alpa_mlir.compiler import Module
from alpa_mlir.errors import (
    AlpaError,
    InfeasiblePlanError,
    MicroBatchError,
    RescaleError,
    TraceError,
)
from alpa_mlir.plan import Plan
from alpa_mlir.plan_text import seconds_text
from alpa_mlir.search import Method
from alpa_mlir.trace import Traced

Progress = Callable[[int, int, str], None]

# Plans in full beyond the first, where that one is slower than others were estimated.
_MOST_RUNNERS_UP = 2
# Plans that need more of the memory might be faster if they needed less.
_SHORT_OF_MEMORY = 0.7
# A full plan this much slower than an estimate of another is worth a second look.
_TOLERANCE = 1.05


@dataclass(frozen=True)
class Tried:
    """One candidate of the search over micro-batches and schedules.

    Attributes:
        num_micro_batches, remat: what was tried.
        schedule: the best one of those allowed; of no plan, what was allowed.
        seconds: predicted for one step; None if there is no plan.
        stages, peak_bytes: pipeline stages of that plan, and the most memory that one of its
            devices needs; 0 if there is none.
        exact: whether it was planned in full, from a module traced at its own size.
        reason: why there is no plan.
    """

    num_micro_batches: int
    remat: str
    schedule: str
    seconds: float | None
    stages: int = 0
    peak_bytes: float = 0
    exact: bool = False
    reason: str = ""

    def as_text(self) -> str:
        """One line.

        Example:
            >>> Tried(4, "none", "1f1b", 0.25, 2).as_text()
            '4 micro-batches: about 250 ms in 2 stages, 1f1b'
        """
        text = _candidate(self.num_micro_batches, self.remat)
        if self.seconds is None:
            return f"{text}: {self.reason}"
        about = "" if self.exact else "about "
        stages = f"{self.stages} stage{'s' if self.stages > 1 else ''}"
        order = f", {self.schedule}" if self.stages > 1 else ""
        return f"{text}: {about}{seconds_text(self.seconds)} in {stages}{order}"


@dataclass(frozen=True)
class Found:
    """The plan that was chosen, the step as it was traced for it, and all that was tried."""

    traced: Traced
    plan: Plan
    tried: tuple[Tried, ...]


class Planner:
    """Plans one step for one cluster; a context, because the search reads a file.

    Args:
        trace: the step, traced for so many micro-batches.
        annotated: the signature of a traced step as the compiler wants it.
        first: the step as it is traced already.
        method: whose `"auto"` options and numbers of micro-batches are searched.
        gradients: `"mean"` or `"sum"`.
        progress: called with (candidates tried, candidates known of, what is tried now).
    """

    def __init__(
        self,
        trace: Callable[[int], Traced],
        annotated: Callable[[Traced], str],
        first: Traced,
        cluster: Cluster,
        method: Method,
        gradients: str,
        progress: Progress | None = None,
    ) -> None:
        self._trace = trace
        self._annotated = annotated
        self._traced = {first.signature.num_micro_batches: first}
        self._base = first.signature.num_micro_batches
        self._modules: dict[int, Module] = {}
        self._exact: dict[tuple[int, str], Found] = {}
        self._estimates: dict[tuple[int, str, Cluster, str], Tried] = {}
        self._misfits: list[InfeasiblePlanError] = []
        self._gradients = gradients
        self._progress = progress
        self._done = 0
        self.cluster = cluster
        self.method = method
        self.variants = method.variants()
        self.batch_size = first.signature.batch_size
        self.state_bytes = sum(
            prod(x.shape) * np.dtype(x.dtype).itemsize
            for x in first.signature.inputs
            if x.kind == "state"
        )
        self.counts = method.micro_batch_counts(self.batch_size)
        self.tried: list[Tried] = []

    def __enter__(self) -> Planner:
        self._folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def run(self) -> Found:
        """Search, and plan what is best in full.

        Raises:
            InfeasiblePlanError: nothing that may be chosen fits.
            AlpaError: another error of the step or the cluster.
        """
        best = self._only() if len(self.counts) == 1 else self._climb(self.start())
        if best is None or best.seconds is None:
            raise self._misfits[-1] if self._misfits else self._no_count()
        self._try_remat(best)
        return self._plan_best()

    def _only(self) -> Tried:
        """With one number of micro-batches the usual plan is likely the answer."""
        tried: Tried | None = None
        for method in self.variants:
            try:
                self._found(self.counts[0], method)
            except InfeasiblePlanError as error:
                self._misfits.append(error)
            tried = self.tried[-1]
            if tried.seconds is not None:
                break
        assert tried is not None
        return tried

    # -- candidates -----------------------------------------------------------------------

    def start(self) -> int:
        """The given count that is nearest to a micro-batch of one example for each device of a
        host: few enough to keep devices busy, many enough for a pipeline."""
        wanted = self.batch_size / max(self.cluster.devices_per_host)
        return min(self.counts, key=lambda n: (max(n, wanted) / min(n, wanted), n))

    def _ladder(self, start: int) -> list[int]:
        """Counts at least a factor of two apart, `start` among them, rising."""
        ladder = [start]
        for count in self.counts:
            if count >= 2 * ladder[-1]:
                ladder.append(count)
        for count in reversed(self.counts):
            if 2 * count <= ladder[0]:
                ladder.insert(0, count)
        return ladder

    def _best_of(self, count: int) -> Tried:
        """The usual variant, or else the first one that fits."""
        for method in self.variants:
            tried = self.estimate(count, method)
            if tried.seconds is not None:
                return tried
        return self.estimate(count, self.variants[0])

    def _climb(self, start: int) -> Tried | None:
        """From `start` up and down the ladder as long as steps become faster."""
        ladder = self._ladder(start)
        at = ladder.index(start)
        best = self._best_of(start)
        # More and smaller micro-batches need less memory, as a rule.
        for count in [*ladder[at + 1 :], *reversed(ladder[:at])]:
            if best.seconds is not None:
                break
            best = self._best_of(count)
        if best.seconds is None:
            return None
        at = ladder.index(best.num_micro_batches)
        # Both ways: one stage with large micro-batches and many with small ones are two valleys.
        for way in (ladder[at + 1 :], list(reversed(ladder[:at]))):
            for count in way:
                tried = self._best_of(count)
                if _seconds(tried) >= _seconds(best):
                    break
                best = tried
        # What lies between the best one and its neighbours on the ladder.
        at = self.counts.index(best.num_micro_batches)
        for count in (*self.counts[max(at - 1, 0) : at], *self.counts[at + 1 : at + 2]):
            best = min(best, self._best_of(count), key=_seconds)
        return best

    def _try_remat(self, best: Tried) -> None:
        """Computing again takes time, so it can only pay where memory is short."""
        others = [m for m in self.variants if _remat(m) != best.remat]
        memory = self.method.memory_fraction * self.cluster.least_memory_bytes
        if not others or best.peak_bytes < _SHORT_OF_MEMORY * memory:
            return
        count = best.num_micro_batches
        with ThreadPoolExecutor(1) as pool:  # The compiler runs beside the tracer.
            work = pool.submit(lambda: [self.estimate(count, m) for m in others])
            self._step(count)
            work.result()

    # -- one candidate --------------------------------------------------------------------

    def estimate(
        self, count: int, method: Method, cluster: Cluster | None = None, dtype: str = ""
    ) -> Tried:
        """A coarse search, on a rescaled module where it can be had.

        Args:
            cluster: instead of the planner's.
            dtype: of all floating-point numbers that are wider; see `alpa-rescale`.
        """
        cluster = cluster or self.cluster
        key = (count, _remat(method), cluster, dtype)
        if key not in self._estimates:
            self._say(_candidate(count, _remat(method)))
            tried = self._estimate(count, method, cluster, dtype)
            self._done += 1
            self._estimates[key] = tried
            if cluster is self.cluster and not dtype:
                self.tried.append(tried)
        return self._estimates[key]

    def _estimate(self, count: int, method: Method, cluster: Cluster, dtype: str) -> Tried:
        try:
            module = self._module(count).clone()
            if dtype:
                module.run(f"alpa-rescale{{dtype={dtype}}}")
            module.run(method.search_passes(cluster, self._file(cluster), count, coarse=True))
        except InfeasiblePlanError as error:
            if cluster is self.cluster and not dtype:
                self._misfits.append(error)
            return Tried(count, _remat(method), method.schedule, None, reason=error.what)
        except (TraceError, MicroBatchError, RescaleError) as error:
            return Tried(count, _remat(method), method.schedule, None, reason=str(error))
        found = module.predicted()
        return Tried(
            count,
            _remat(method),
            module.chosen_schedule(),
            found["step_seconds"],
            int(found["stages"]),
            found["peak_bytes"],
        )

    def _module(self, count: int) -> Module:
        """The step in layers, of the size of one of `count` micro-batches."""
        if count in self._modules:
            return self._modules[count]
        if count in self._traced:
            return self._module_of(self._traced[count])
        module = self._module_of(self._traced[self._base]).clone()
        try:
            common = gcd(self._base, count)
            module.run(f"alpa-rescale{{batch={self._base // common}/{count // common}}}")
        except RescaleError:
            module = self._module_of(self._step(count))
        self._modules[count] = module
        return module

    def _module_of(self, traced: Traced) -> Module:
        count = traced.signature.num_micro_batches
        if count not in self._modules:
            module = Module(traced.text, traced.signature.name)
            module.annotate(self._annotated(traced))
            self._modules[count] = module.run(self.method.import_passes(self.cluster))
        return self._modules[count]

    def _step(self, count: int) -> Traced:
        if count not in self._traced:
            self._traced[count] = self._trace(count)
        return self._traced[count]

    # -- full plans -----------------------------------------------------------------------

    def _plan_best(self) -> Found:
        ranked = sorted((t for t in self.tried if t.seconds is not None), key=_seconds)
        best: Found | None = None
        misfit: AlpaError | None = None
        for candidate in ranked[: 1 + _MOST_RUNNERS_UP]:
            if best is not None and _planned(best) <= _TOLERANCE * _seconds(candidate):
                break
            method = next(m for m in self.variants if _remat(m) == candidate.remat)
            try:
                found = self._found(candidate.num_micro_batches, method)
            except (InfeasiblePlanError, TraceError) as error:
                misfit = error
                continue
            if best is None or _planned(found) < _planned(best):
                best = found
        if best is None:
            assert misfit is not None
            raise misfit
        if self._progress is not None:
            self._progress(self._done, self._done, "planned")
        return replace(best, tried=tuple(self.tried))

    def _found(self, count: int, method: Method) -> Found:
        key = (count, _remat(method))
        if key in self._exact:
            return self._exact[key]
        self._say(f"planning {_candidate(*key)}")
        if count not in self._traced:
            self._modules.pop(count, None)  # A rescaled one.
        traced = self._step(count)
        module = self._module_of(traced).clone()
        try:
            module.run(method.search_passes(self.cluster, self._file(self.cluster), count))
        except InfeasiblePlanError as error:
            self._note(Tried(*key, method.schedule, None, exact=True, reason=error.what))
            raise
        module.run(method.finish_passes(self._gradients))
        plan = module.export_plan()
        seconds = plan.predicted.get("step_seconds", inf)
        peak = max(stage.predicted.get("peak_bytes", 0.0) for stage in plan.stages)
        self._note(Tried(*key, plan.schedule, seconds, len(plan.stages), peak, exact=True))
        self._done += 1
        self._exact[key] = Found(traced, plan, tuple(self.tried))
        return self._exact[key]

    def _note(self, exact: Tried) -> None:
        """What is known for sure takes the place of its estimate."""
        key = (exact.num_micro_batches, exact.remat)
        self.tried = [t for t in self.tried if (t.num_micro_batches, t.remat) != key]
        self.tried.append(exact)

    def _file(self, cluster: Cluster) -> str:
        path = Path(self._folder.name) / f"cluster-{hash(cluster) & 0xFFFFFFFFFFFF:x}.yaml"
        if not path.exists():
            cluster.save(path)
        return str(path)

    def _say(self, what: str) -> None:
        if self._progress is not None:
            self._progress(self._done, self._done + 1, what)

    def _no_count(self) -> AlpaError:
        return TraceError(
            "the step cannot be traced for any of the numbers of micro-batches: "
            + "; ".join(dict.fromkeys(t.reason for t in self.tried)),
            where=self._traced[self._base].signature.name,
        )


def sensible_count(sizes: Sequence[int], counts: Sequence[int] | None, devices: int) -> int:
    """The number of micro-batches to trace first: each has about one example for each device
    of a host, and at least two, which tell the batch from other dimensions.

    Args:
        sizes: of dimension 0 of the batch's arrays.
        counts: what may be chosen; None for all.

    Example:
        >>> sensible_count([1024], None, 8), sensible_count([8, 16], None, 4)
        (128, 2)
    """
    size = gcd(*sizes) if sizes else 1
    fitting = [n for n in counts or range(1, size + 1) if size % n == 0]
    told = [n for n in fitting if size // n >= 2] or fitting
    wanted = max(size / devices, 1)
    return min(told, key=lambda n: (max(n, wanted) / min(n, wanted), n), default=1)


def _candidate(count: int, remat: str) -> str:
    again = {"none": "", "all": ", rematerialized"}.get(remat, f", layers {remat} rematerialized")
    return f"{count} micro-batch{'es' if count > 1 else ''}{again}"


def _remat(method: Method) -> str:
    return method.remat if isinstance(method.remat, str) else ",".join(map(str, method.remat))


def _seconds(tried: Tried) -> float:
    return inf if tried.seconds is None else tried.seconds


def _planned(found: Found) -> float:
    return found.plan.predicted.get("step_seconds", inf)
