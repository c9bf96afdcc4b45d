"""Find the number of micro-batches, the schedule and the plan for them.

Candidates are estimated, and only what looks best is planned in full.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf

from alpa_mlir.candidates import Candidates, Found, Tried, remat_text
from alpa_mlir.count_search import climb, nearest
from alpa_mlir.errors import AlpaError, InfeasiblePlanError, TraceError

# Plans in full beyond the first, where that one is slower than others were estimated.
_MOST_RUNNERS_UP = 2
# Plans that need more of the memory might be faster if they needed less.
_SHORT_OF_MEMORY = 0.7
# A full plan this much slower than an estimate of another is worth a second look.
_TOLERANCE = 1.05


@dataclass(frozen=True)
class Chosen:
    """The plan that was chosen, the step as it was traced for it, and all that was tried."""

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
        self.method = candidates.method
        self.variants = self.method.variants()
        self.counts = self.method.micro_batch_counts(candidates.batch_size)

    def run(self) -> Chosen:
        """Search, and plan what is best in full.

        Raises:
            InfeasiblePlanError: nothing that may be chosen fits.
            AlpaError: another error of the step or the cluster.
        """
        best = self._only() if len(self.counts) == 1 else self._climb()
        if best is None:
            misfits = self.candidates.misfits
            raise misfits[-1] if misfits else self._no_count()
        self._try_remat(best)
        found = self._plan_best()
        self.candidates.end()
        return Chosen(found, self.candidates.tried)

    def start(self) -> int:
        """The given count that is nearest to a micro-batch of one example for each device of a
        host: few enough to keep devices busy, many enough for a pipeline."""
        devices = max(self.candidates.cluster.devices_per_host)
        return nearest(self.counts, self.candidates.batch_size / devices)

    def _only(self) -> Tried | None:
        """With one number of micro-batches the usual plan is likely the answer."""
        for method in self.variants:
            try:
                self.candidates.in_full(self.counts[0], method)
            except InfeasiblePlanError:
                continue
            return self.candidates.tried[-1]
        return None

    def _climb(self) -> Tried | None:
        count = climb(self.counts, self.start(), lambda count: _seconds(self._best_of(count)))
        return None if count is None else self._best_of(count)

    def _best_of(self, count: int) -> Tried:
        """The usual variant, or else the first one that fits."""
        for method in self.variants:
            tried = self.candidates.estimate(count, method)
            if tried.seconds is not None:
                return tried
        return self.candidates.estimate(count, self.variants[0])

    def _try_remat(self, best: Tried) -> None:
        """Computing again takes time, so it can only pay where memory is short."""
        others = [m for m in self.variants if remat_text(m) != best.remat]
        memory = self.method.memory_fraction * self.candidates.cluster.least_memory_bytes
        if not others or best.peak_bytes < _SHORT_OF_MEMORY * memory:
            return
        count = best.num_micro_batches
        with ThreadPoolExecutor(1) as pool:  # The compiler runs beside the tracer.
            work = pool.submit(lambda: [self.candidates.estimate(count, m) for m in others])
            self.candidates.traced(count)
            work.result()

    def _plan_best(self) -> Found:
        ranked = sorted((t for t in self.candidates.tried if t.seconds is not None), key=_seconds)
        best: Found | None = None
        misfit: AlpaError | None = None
        for candidate in ranked[: 1 + _MOST_RUNNERS_UP]:
            if best is not None and best.seconds <= _TOLERANCE * _seconds(candidate):
                break
            method = next(m for m in self.variants if remat_text(m) == candidate.remat)
            try:
                found = self.candidates.in_full(candidate.num_micro_batches, method)
            except (InfeasiblePlanError, TraceError) as error:
                misfit = error
                continue
            if best is None or found.seconds < best.seconds:
                best = found
        if best is None:
            assert misfit is not None
            raise misfit
        return best

    def _no_count(self) -> AlpaError:
        return TraceError(
            "the step cannot be traced for any of the numbers of micro-batches: "
            + "; ".join(dict.fromkeys(t.reason for t in self.candidates.tried)),
            where=self.candidates.name,
        )


def _seconds(tried: Tried) -> float:
    return inf if tried.seconds is None else tried.seconds
