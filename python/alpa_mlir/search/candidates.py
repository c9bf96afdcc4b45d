"""Candidates of the search over micro-batches, schedules and rematerialization.

A step is traced and imported once. For every number of micro-batches the imported module is split
(`alpa-split-batch`) and searched, with a coarse budget where that only ranks candidates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from pathlib import Path

import numpy as np
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import Tried, candidate_text

from alpa_mlir.cluster.description import Cluster
from alpa_mlir.compiler import Module
from alpa_mlir.errors import InfeasiblePlanError, MicroBatchError, PrecisionError
from alpa_mlir.methods.method import Method
from alpa_mlir.trace.tracing import Traced

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Found:
    """A plan in full, and the method that asked for it."""

    plan: Plan
    method: Method

    @property
    def seconds(self) -> float:
        """Predicted for one step."""
        return self.plan.predicted.get("step_seconds", inf)


class Candidates:
    """What is known of each candidate; a context, because the search reads a file.

    Args:
        traced: the step.
        annotated: its signature as the compiler wants it.
        method: its number of micro-batches does not matter here.
        progress: called with (candidates tried, candidates known of, what is tried now).
        solved: a folder in which solved stages are kept, or None.

    Attributes:
        batch_size: examples of a step.
        state_bytes: of the step's state, wherever it lies.
        couplings: by number of micro-batches why it would give other results than the whole
            batch.
    """

    def __init__(
        self,
        traced: Traced,
        annotated: str,
        cluster: Cluster,
        method: Method,
        progress: Progress | None = None,
        solved: Path | None = None,
    ) -> None:
        self._solved = "" if solved is None else str(solved)
        self._traced = traced
        self._annotated = annotated
        self._imported: Module | None = None
        self._modules: dict[int, Module] = {}  # Of so many micro-batches, in layers.
        self._exact: dict[tuple[int, str, str], Found] = {}
        self._estimates: dict[tuple[int, str, str, Cluster, str], Tried] = {}
        self._tried: dict[tuple[int, str, str], Tried] = {}
        self._progress = progress
        self._done = 0
        self.cluster = cluster
        self.method = method
        self.batch_size: int = traced.signature.batch_size
        self.state_bytes: int = sum(
            prod(x.shape) * np.dtype(x.dtype).itemsize
            for x in traced.signature.inputs
            if x.kind == "state"
        )
        self.couplings: dict[int, MicroBatchError] = {}
        self._misfits: list[tuple[int, Method]] = []

    def __enter__(self) -> Candidates:
        self._folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def name(self) -> str:
        """The step's name."""
        return self._traced.signature.name

    def label(self, count: int, method: Method) -> str:
        """`4 micro-batches, rematerialized, gpipe`; a schedule only where it is not as given."""
        text = candidate_text(count, remat_text(method))
        is_given = method.schedule == self.method.schedule
        return text if is_given else f"{text}, {method.schedule_name}"

    @property
    def tried(self) -> tuple[Tried, ...]:
        """All candidates on the step's own cluster; of those planned in full, that plan."""
        return tuple(self._tried.values())

    def estimate(
        self, count: int, method: Method, cluster: Cluster | None = None, dtype: str = ""
    ) -> Tried:
        """A coarse search.

        Args:
            cluster: instead of the step's.
            dtype: of all floating-point numbers that are wider; see `alpa-lower-precision`.
        """
        cluster = cluster or self.cluster
        key = (*_key(count, method), cluster, dtype)
        if key not in self._estimates:
            self.say(self.label(count, method))
            tried = self._estimate(count, method, cluster, dtype)
            self._done += 1
            self._estimates[key] = tried
            if cluster is self.cluster and not dtype:
                self._tried.setdefault(_key(count, method), tried)
        return self._estimates[key]

    def in_full(self, count: int, method: Method) -> Found:
        """The plan.

        Raises:
            InfeasiblePlanError: there is none.
            MicroBatchError: so many micro-batches would give other results than the whole batch.
        """
        key = _key(count, method)
        if key in self._exact:
            return self._exact[key]
        remat = remat_text(method)
        self.say(f"planning {self.label(count, method)}")
        try:
            module = self._module(count).clone()
            self._search(module, count, method)
            stages = int(module.predicted()["stages"])
            module.run(method.finish_passes(stages, count))
        except (InfeasiblePlanError, MicroBatchError) as error:
            self._tried[key] = Tried(
                count, remat, method.schedule_name, None, exact=True, reason=error.what
            )
            if isinstance(error, InfeasiblePlanError):
                self._misfits.append((count, method))
            raise
        plan = module.export_plan()
        found = Found(plan, method)
        self._tried[key] = Tried(
            count,
            remat,
            plan.schedule,
            found.seconds,
            len(plan.stages),
            max(stage.predicted.get("peak_bytes", 0.0) for stage in plan.stages),
            exact=True,
            rematerialized_stages=sum(
                stage.predicted.get("rematerialized_layers", 0) > 0 for stage in plan.stages
            ),
        )
        self._done += 1
        self._exact[key] = found
        return found

    @property
    def planned(self) -> tuple[Found, ...]:
        """What was planned in full, in that order."""
        return tuple(self._exact.values())

    def note(self, found: Found, *, measured: float | None = None, reason: str = "") -> None:
        """Keep what measuring a plan gave: seconds of a step, or why there are none."""
        key = _key(found.plan.num_micro_batches, found.method)
        self._tried[key] = replace(self._tried[key], measured_seconds=measured, reason=reason)
        self._done += 1

    def say(self, what: str) -> None:
        """Tell the progress function what is done now."""
        if self._progress is not None:
            self._progress(self._done, self._done + 1, what)

    def end(self) -> None:
        """Tell the progress function that the search is over."""
        if self._progress is not None:
            self._progress(self._done, self._done, "planned")

    def why_not(self) -> InfeasiblePlanError | None:
        """Which stage of the candidate tried last exceeds which limit; None if memory was no
        candidate's problem."""
        if not self._misfits:
            return None
        count, method = self._misfits[-1]
        self.say(f"why {self.label(count, method)} have no plan")
        try:
            self._search(self._module(count).clone(), count, method, coarse=True, why=True)
        except InfeasiblePlanError as error:
            return error
        return InfeasiblePlanError("no plan fits into memory", where=self.label(count, method))

    def _search(
        self,
        module: Module,
        count: int,
        method: Method,
        cluster: Cluster | None = None,
        *,
        coarse: bool = False,
        why: bool = False,
    ) -> None:
        where = cluster or self.cluster
        module.run(
            method.search_passes(
                where, self._file(where), count, coarse=coarse, why=why, solved=self._solved
            )
        )

    def _estimate(self, count: int, method: Method, cluster: Cluster, dtype: str) -> Tried:
        remat = remat_text(method)
        try:
            module = self._module(count).clone()
            if dtype:
                module.run(f"alpa-lower-precision{{dtype={dtype}}}")
            self._search(module, count, method, cluster, coarse=True)
        except InfeasiblePlanError as error:
            if cluster is self.cluster and not dtype:
                self._misfits.append((count, method))
            return Tried(count, remat, method.schedule_name, None, reason=error.what)
        except (MicroBatchError, PrecisionError) as error:
            return Tried(count, remat, method.schedule_name, None, reason=str(error))
        found = module.predicted()
        return Tried(
            count,
            remat,
            module.chosen_schedule(),
            found["step_seconds"],
            int(found["stages"]),
            found["peak_bytes"],
            rematerialized_stages=int(found["rematerialized_stages"]),
        )

    def _module(self, count: int) -> Module:
        """The step in layers, of the size of one of `count` micro-batches.

        Raises:
            MicroBatchError: so many would give other results than the whole batch.
        """
        if count in self.couplings:
            raise self.couplings[count]
        for item in self._traced.signature.inputs:
            rows = item.shape[0] if item.kind == "batch" else count
            if rows == 0 or rows % count:
                divisors = [n for n in range(1, rows + 1) if rows % n == 0]
                raise MicroBatchError(
                    f"{rows} rows cannot be split into {count} equal micro-batches",
                    where=item.name,
                    fix=_count_fix(divisors),
                )
        if count not in self._modules:
            if self._imported is None:
                module = Module(self._traced.text, self._traced.signature.name)
                self._imported = module.annotate(self._annotated).run(
                    self.method.import_passes(self.cluster)
                )
            try:
                split = self._imported.clone().run(self.method.layer_passes(count))
            except MicroBatchError as error:
                self.couplings[count] = MicroBatchError(
                    error.what, where=error.where, fix=self._coupling_fix()
                )
                raise self.couplings[count] from None
            self._modules[count] = split
        return self._modules[count]

    def _coupling_fix(self) -> str:
        batch = [item.name for item in self._traced.signature.inputs if item.kind == "batch"]
        names = ", ".join(batch[:3]) + (f" and {len(batch) - 3} more" if len(batch) > 3 else "")
        others = {
            "exact": "say with micro_batch_semantics what several ones may compute",
            "relaxed": "look whether micro_batch_semantics='independent' says what is meant",
            "independent": "use micro_batch_semantics='exact', which may take a barrier",
        }
        return (
            f"use one micro-batch, or {others[self.method.micro_batch_semantics]}; or say with "
            f"batch_argnums what the batch is, if it is not {names}"
        )

    def _file(self, cluster: Cluster) -> str:
        path = Path(self._folder.name) / f"cluster-{hash(cluster) & 0xFFFFFFFFFFFF:x}.yaml"
        if not path.exists():
            cluster.save(path)
        return str(path)


def _count_fix(divisors: Sequence[int]) -> str:
    if not divisors:
        return "pass a batch that is not empty"
    if len(divisors) == 1:
        return "use one micro-batch"
    return f"use {' or '.join(map(str, divisors[-4:]))} micro-batches"


def remat_text(method: Method) -> str:
    """`none`, `all`, `auto`, or the numbers of the layers, as `Tried` names them."""
    return method.remat if isinstance(method.remat, str) else ",".join(map(str, method.remat))


def _key(count: int, method: Method) -> tuple[int, str, str]:
    return count, remat_text(method), method.schedule_name
