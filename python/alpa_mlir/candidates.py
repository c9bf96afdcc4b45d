"""Candidates of the search over micro-batches, schedules and rematerialization.

A step is traced once. For every other number of micro-batches the traced module is rescaled
(`alpa-rescale`) and searched with a coarse budget; what is planned in full is traced at its own
size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd, inf, prod
from pathlib import Path

import numpy as np

from alpa_mlir.cluster import Cluster
from alpa_mlir.compiler import Module
from alpa_mlir.errors import InfeasiblePlanError, MicroBatchError, RescaleError, TraceError
from alpa_mlir.method import Method
from alpa_mlir.plan import Plan
from alpa_mlir.plan_tried import Tried, candidate_text
from alpa_mlir.traced import Traced

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Found:
    """A plan in full, the step as it was traced for it, and the method that asked for it."""

    traced: Traced
    plan: Plan
    method: Method

    @property
    def seconds(self) -> float:
        """Predicted for one step."""
        return self.plan.predicted.get("step_seconds", inf)


class Candidates:
    """What is known of each candidate; a context, because the search reads a file.

    Args:
        trace: the step, traced for so many micro-batches.
        annotated: the signature of a traced step as the compiler wants it.
        first: the step as it is traced already.
        method: its number of micro-batches does not matter here.
        progress: called with (candidates tried, candidates known of, what is tried now).
        solved: a folder in which solved stages are kept, or None.

    Attributes:
        batch_size: examples of a step.
        state_bytes: of the step's state, wherever it lies.
        whole_only: why the step has one micro-batch only; empty if it may have several.
    """

    def __init__(
        self,
        trace: Callable[[int], Traced],
        annotated: Callable[[Traced], str],
        first: Traced,
        cluster: Cluster,
        method: Method,
        progress: Progress | None = None,
        solved: Path | None = None,
    ) -> None:
        self._solved = "" if solved is None else str(solved)
        self._trace = trace
        self._annotated = annotated
        self._traced = {first.signature.num_micro_batches: first}
        self._base = first.signature.num_micro_batches
        self._modules: dict[int, Module] = {}  # Of traces.
        self._rescaled: dict[int, Module] = {}  # Fit for estimates alone: constants stay.
        self._exact: dict[tuple[int, str, str], Found] = {}
        self._estimates: dict[tuple[int, str, str, Cluster, str], Tried] = {}
        self._tried: dict[tuple[int, str, str], Tried] = {}
        self._progress = progress
        self._done = 0
        self.cluster = cluster
        self.method = method
        self.batch_size: int = first.signature.batch_size
        self.state_bytes: int = sum(
            prod(x.shape) * np.dtype(x.dtype).itemsize
            for x in first.signature.inputs
            if x.kind == "state"
        )
        self.whole_only: str = first.whole_only
        self._misfits: list[tuple[int, Method]] = []

    def __enter__(self) -> Candidates:
        self._folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def name(self) -> str:
        """The step's name."""
        return self._traced[self._base].signature.name

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
        """A coarse search, on a rescaled module where it can be had.

        Args:
            cluster: instead of the step's.
            dtype: of all floating-point numbers that are wider; see `alpa-rescale`.
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
        """The plan from a module of its own size.

        Raises:
            InfeasiblePlanError: there is none.
            TraceError: the step cannot be traced for that number of micro-batches.
            MicroBatchError: it uses values that only the whole batch has.
        """
        key = _key(count, method)
        if key in self._exact:
            return self._exact[key]
        remat = remat_text(method)
        self.say(f"planning {self.label(count, method)}")
        traced = self.traced(count)
        module = self._module_of(traced).clone()
        try:
            self._search(module, count, method)
            stages = int(module.predicted()["stages"])
            gradients = traced.signature.gradient_reduction
            module.run(method.finish_passes(gradients, stages, count))
        except (InfeasiblePlanError, MicroBatchError) as error:
            self._tried[key] = Tried(
                count, remat, method.schedule_name, None, exact=True, reason=error.what
            )
            if isinstance(error, InfeasiblePlanError):
                self._misfits.append((count, method))
            raise
        plan = module.export_plan()
        found = Found(traced, plan, method)
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

    def traced(self, count: int) -> Traced:
        """The step at the size of one of `count` micro-batches."""
        if count not in self._traced:
            self._traced[count] = self._trace(count)
        return self._traced[count]

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
                module.run(f"alpa-rescale{{dtype={dtype}}}")
            self._search(module, count, method, cluster, coarse=True)
        except InfeasiblePlanError as error:
            if cluster is self.cluster and not dtype:
                self._misfits.append((count, method))
            return Tried(count, remat, method.schedule_name, None, reason=error.what)
        except (TraceError, MicroBatchError, RescaleError) as error:
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
        """The step in layers, of the size of one of `count` micro-batches."""
        if count in self._rescaled:
            return self._rescaled[count]
        if count in self._traced:
            return self._module_of(self._traced[count])
        module = self._module_of(self._traced[self._base]).clone()
        try:
            common = gcd(self._base, count)
            module.run(f"alpa-rescale{{batch={self._base // common}/{count // common}}}")
        except RescaleError:
            return self._module_of(self.traced(count))
        self._rescaled[count] = module
        return module

    def _module_of(self, traced: Traced) -> Module:
        count = traced.signature.num_micro_batches
        if count not in self._modules:
            module = Module(traced.text, traced.signature.name)
            module.annotate(self._annotated(traced))
            self._modules[count] = module.run(self.method.import_passes(self.cluster))
        return self._modules[count]

    def _file(self, cluster: Cluster) -> str:
        path = Path(self._folder.name) / f"cluster-{hash(cluster) & 0xFFFFFFFFFFFF:x}.yaml"
        if not path.exists():
            cluster.save(path)
        return str(path)


def remat_text(method: Method) -> str:
    """`none`, `all`, `auto`, or the numbers of the layers, as `Tried` names them."""
    return method.remat if isinstance(method.remat, str) else ",".join(map(str, method.remat))


def _key(count: int, method: Method) -> tuple[int, str, str]:
    return count, remat_text(method), method.schedule_name
