"""Finds the plan of a traced step: kept from before, or searched over micro-batches, schedules and
rematerialization; where none fits, what would.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from alpa_runtime.parallel_step import progress_bar
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import Tried, candidate_text

from alpa_mlir.cluster import Cluster
from alpa_mlir.compiler import Module
from alpa_mlir.errors import (
    AlpaError,
    DevicesError,
    InfeasiblePlanError,
    MethodError,
    MicroBatchError,
    PrecisionError,
)
from alpa_mlir.methods.method import AUTO_SCHEDULES, Method, check_pin, padding_passes, pinned_axes
from alpa_mlir.search import autotune, plan_cache
from alpa_mlir.search.plan_cache import PlanCache, code_version
from alpa_mlir.search.warm_start import WarmStart
from alpa_mlir.trace.layer_markers import SCOPE as BOUNDARY_SCOPE
from alpa_mlir.trace.tracing import Traced

# A step is traced and imported once. For every number of micro-batches the imported module is split
# (`alpa-split-batch`) and searched, with a coarse budget where that only ranks candidates.

Progress = Callable[[int, int, str], None]
CandidatesOf = Callable[[Method, bool, WarmStart | None], "Candidates"]


_TOP_LEVEL_COMMA = re.compile(r",(?![^{}]*\})")


class StepModules:
    """A traced step behind the passes that make it ready for searches, each run once for all
    searches that want it.

    Args:
        annotated: its signature as the compiler wants it.
    """

    def __init__(self, traced: Traced, annotated: str) -> None:
        self._traced = traced
        self._annotated = annotated
        self._imported: dict[str, Module] = {}
        self._split: dict[tuple[str, str], Module | MicroBatchError] = {}
        # Behind the first of the layer passes, for the last number of micro-batches: ways to write
        # a step differ in the others.
        self._begun: dict[tuple[str, ...], Module] = {}

    def get(self, import_passes: str, layer_passes: str) -> Module:
        """The module, which is to be cloned before it is changed.

        Raises:
            MicroBatchError: so many micro-batches would give other results than the whole batch.
        """
        key = import_passes, layer_passes
        if key not in self._split:
            if import_passes not in self._imported:
                module = Module(self._traced.text, self._traced.signature.name)
                self._imported[import_passes] = module.annotate(self._annotated).run(import_passes)
            try:
                self._split[key] = self._run(self._imported[import_passes], *key)
            except MicroBatchError as error:
                self._split[key] = error
        found = self._split[key]
        if isinstance(found, MicroBatchError):
            raise found
        return found

    def _run(self, imported: Module, import_passes: str, layer_passes: str) -> Module:
        passes = _TOP_LEVEL_COMMA.split(layer_passes)
        known = import_passes, passes[0]
        if any(begun[:2] != known for begun in self._begun):
            self._begun.clear()
        module = imported
        for count in (1, 2):
            done = import_passes, *passes[:count]
            if done not in self._begun:
                self._begun[done] = module.clone().run(passes[count - 1])
            module = self._begun[done]
            if passes[count - 1].startswith("alpa-pad-dimensions") and not module.padded():
                return self.get(import_passes, ",".join(passes[: count - 1] + passes[count:]))
        return module.clone().run(",".join(passes[2:])) if passes[2:] else module


class Found:
    """A candidate that was searched in full.

    Args:
        module: with the stages that were chosen.
        count: of micro-batches.
        is_exported: whether its plan may be asked for.

    Attributes:
        method: that asked for it.
        seconds: predicted for one step.
        all_devices_seconds: of the best plan found that leaves no device idle, if this one does;
            infinite where none is known.
        peak_bytes: the most memory that a device needs.
        schedule: that was chosen.
        stages: what is foreseen of each, as `Module.predicted_stages` has it.
        layers: the first layer of each stage and the end of its last one.
        meshes: the devices of each.
    """

    def __init__(
        self, module: Module, count: int, method: Method, *, is_exported: bool = True
    ) -> None:
        self._module: Module | None = module if is_exported else None
        self.count = count
        self.method = method
        predicted = module.predicted()
        self.seconds: float = predicted["step_seconds"]
        self.all_devices_seconds: float = predicted.get("all_devices_step_seconds", inf)
        self.peak_bytes: float = predicted["peak_bytes"]
        self.schedule: str = module.chosen_schedule()
        self.stages: list[dict[str, float]] = module.predicted_stages()
        ends = [0, *itertools.accumulate(int(stage["layers"]) for stage in self.stages)]
        self.layers: list[tuple[int, int]] = list(itertools.pairwise(ends))
        self.meshes: list[tuple[int, ...]] = list(dict.fromkeys(module.stage_devices()))

    @functools.cached_property
    def plan(self) -> Plan:
        """With its programs, which are made when they are first asked for."""
        assert self._module is not None
        module, self._module = self._module, None
        return module.run(self.method.finish_passes(len(self.stages), self.count)).export_plan()

    def prepares(self, stage: int) -> bool:
        """Whether a stage prepares weights."""
        return "prepare_seconds" in self.stages[stage]

    def rematerializes(self, stage: int) -> bool:
        """Whether a stage computes layers again."""
        return self.stages[stage].get("rematerialized_layers", 0.0) > 0


@dataclass
class KnownSearches:
    """What searches of a step found on clusters that differ in their devices' memory alone.

    A plan that was found where there is more memory, and fits, is the answer where there is less;
    what has no plan has none there either; and none is faster.
    """

    _rows: dict[tuple[str, ...], list[tuple[int, float, Any]]] = field(
        default_factory=dict[tuple[str, ...], list[tuple[int, float, Any]]]
    )

    def put(self, key: tuple[str, ...], memory_bytes: int, peak_bytes: float, found: Any) -> None:
        """Keep what a search found.

        Args:
            key: what was asked.
            memory_bytes: that plans could use, of the device with the least.
            peak_bytes: that the plan uses; 0 if there is none.
        """
        self._rows.setdefault(key, []).append((memory_bytes, peak_bytes, found))

    def find(self, key: tuple[str, ...], memory_bytes: int) -> Any:
        """What is the answer with so much memory, or None."""
        for limit, peak, found in self._rows.get(key, ()):
            if peak <= memory_bytes <= limit:
                return found
        return None

    def with_more(self, key: tuple[str, ...], memory_bytes: int) -> list[Any]:
        """What was found with as much memory or more."""
        return [found for limit, _, found in self._rows.get(key, ()) if limit >= memory_bytes]


class Candidates:
    """What is known of each candidate; a context, because the search reads a file.

    Args:
        traced: the step.
        modules: of the step.
        method: its number of micro-batches does not matter here; of `"auto"` options that the
            candidates have in common (`padding`), the first choice.
        progress: called with (candidates tried, candidates known of, what is tried now).
        solved: a folder in which solved stages are kept, or None.
        drops_pins: whether the step's sharding constraints do not count.
        known: what was found with other memory, to which this adds.
        start: the number of micro-batches to begin with; 0 for one that suits the devices.
        near: a plan from before, near which to look; None for everywhere.
        only_predicts: whether predictions are all that is wanted: no programs, nor searches for
            why there are none.
        is_coarse: whether plans are only searched as far as ranks candidates.

    Attributes:
        batch_size: examples of a step.
        rounds: of its own loops of gradient accumulation; 1 without any.
        state_bytes: of the step's state, wherever it lies.
        couplings: by number of micro-batches why it would give other results than the whole
            batch.
    """

    def __init__(
        self,
        traced: Traced,
        modules: StepModules,
        cluster: Cluster,
        method: Method,
        progress: Progress | None = None,
        solved: Path | None = None,
        drops_pins: bool = False,
        *,
        known: KnownSearches | None = None,
        start: int = 0,
        near: WarmStart | None = None,
        only_predicts: bool = False,
        is_coarse: bool = False,
    ) -> None:
        self._drops_pins = drops_pins
        self.near = near
        self._known = KnownSearches() if known is None else known
        self.only_predicts = only_predicts
        self._is_coarse = is_coarse
        self._memory_bytes = int(cluster.least_memory_bytes * method.memory_fraction)
        self.start = start
        self._padding = padding_passes(cluster, method.paddings[0])
        self._solved = "" if solved is None else str(solved)
        self._traced = traced
        self._step = modules
        self._modules: dict[int, Module] = {}  # Of so many micro-batches, in layers.
        self._exact: dict[tuple[int, str, str], Found] = {}
        self._estimates: dict[tuple[tuple[str, ...], Cluster, str], Tried] = {}
        self._tried: dict[tuple[int, str, str], Tried] = {}
        self._progress = progress
        self._done = 0
        self.cluster = cluster
        self.method = method
        self.batch_size: int = traced.signature.batch_size
        self.rounds: int = traced.rounds
        self.state_bytes: int = sum(
            prod(x.shape) * np.dtype(x.dtype).itemsize
            for x in traced.signature.inputs
            if x.kind == "state"
        )
        self.couplings: dict[int, MicroBatchError] = {}
        self._misfits: list[tuple[int, Method]] = []
        self.timed_out_solves: int = 0  # Of all searches: on another day they may find more.

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
        """`4 micro-batches, rematerialized, padded, gpipe`; a schedule only where it is not as
        given."""
        text = candidate_text(count, remat_text(method))
        text += ", products kept" * (method.remat_keeps == "products")
        text += ", state on hosts" * method.offloads_state
        text += ", activations on hosts" * method.offloads_activations
        text += ", padded" * bool(self._padding)
        is_given = method.schedule == self.method.schedule
        return text if is_given else f"{text}, {method.schedule_name}"

    @property
    def tried(self) -> tuple[Tried, ...]:
        """All candidates on the step's own cluster; of those planned in full, that plan."""
        return tuple(self._tried.values())

    def estimate(
        self, count: int, method: Method, cluster: Cluster | None = None, dtype: str = ""
    ) -> Tried:
        """A coarse search; near a plan from before one in full.

        Args:
            cluster: instead of the step's.
            dtype: of all floating-point numbers that are wider; see `alpa-lower-precision`.
        """
        cluster = cluster or self.cluster
        key = self._question(count, method, coarse=True), cluster, dtype
        if key not in self._estimates:
            is_own = cluster is self.cluster and not dtype
            tried = None
            if is_own and self.near is not None:  # Which takes no longer.
                with contextlib.suppress(InfeasiblePlanError, MicroBatchError):
                    self.in_full(count, method)
                tried = self._tried[_key(count, method)]
            elif is_own:
                tried = self._own_estimate(count, method)
            if tried is None:
                self.say(self.label(count, method))
                tried = self._estimate(count, method, cluster, dtype)
                self._done += 1
                if is_own and count not in self.couplings:
                    question = self._question(count, method, coarse=True)
                    self._known.put(question, self._memory_bytes, tried.peak_bytes, tried)
            self._estimates[key] = tried
            if is_own:
                self._tried.setdefault(_key(count, method), tried)
        return self._estimates[key]

    def _own_estimate(self, count: int, method: Method) -> Tried | None:
        """What is known from elsewhere."""
        question = self._question(count, method, coarse=True)
        tried: Tried | None = self._known.find(question, self._memory_bytes)
        if tried is not None and tried.seconds is None:
            self._misfits.append((count, method))
        return tried

    def _found_question(self, count: int, method: Method) -> tuple[str, ...]:
        """The question of `in_full`, whose answer says more than that of `estimate`."""
        return "found", *self._question(count, method, coarse=self._is_coarse)

    def least_seconds(self, count: int, method: Method, *, in_full: bool) -> float:
        """What no plan is faster than, as far as searches with more memory say."""
        question = (
            self._found_question(count, method)
            if in_full
            else self._question(count, method, coarse=True)
        )
        known = self._known.with_more(question, self._memory_bytes)
        seconds = (None if isinstance(x, InfeasiblePlanError) else x.seconds for x in known)
        return max((inf if each is None else each for each in seconds), default=0.0)

    def _question(self, count: int, method: Method, *, coarse: bool) -> tuple[str, ...]:
        """All that decides the answer of a search, but the cluster."""
        searched = method.search_passes(
            self.cluster,
            "",
            count,
            coarse=coarse,
            why=False,
            drops_pins=self._drops_pins,
            start=self.near and self.near.search_options(),
        )
        read = self.method.import_passes(self.cluster)
        return read, self.method.layer_passes(count, self._padding), searched

    def splits(self, count: int) -> bool:
        """Whether so many micro-batches give the results of the whole batch."""
        try:
            self._module(count)
        except MicroBatchError:
            return False
        return True

    def padded(self, count: int) -> list[str]:
        """Sizes of dimensions that are made longer, `"25 to 32"`.

        Raises:
            MicroBatchError: so many micro-batches would give other results than the whole batch.
        """
        return self._module(count).padded() if self._padding else []

    def prepares(self) -> bool:
        """Whether any number of micro-batches that was looked at has weights to prepare."""
        return any('"prepare"' in module.as_text() for module in self._modules.values())

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
        question = self._found_question(count, method)
        found: Found | InfeasiblePlanError | None = self._known.find(question, self._memory_bytes)
        try:
            if isinstance(found, InfeasiblePlanError):
                raise found
            if found is None:
                self.say(f"planning {self.label(count, method)}")
                module = self._module(count).clone()
                self._search(module, count, method, coarse=self._is_coarse)
                found = Found(module, count, method, is_exported=not self.only_predicts)
                if self.only_predicts:
                    self._known.put(question, self._memory_bytes, found.peak_bytes, found)
        except (InfeasiblePlanError, MicroBatchError) as error:
            self._tried[key] = Tried(
                count, remat, method.schedule_name, None, exact=True, reason=error.what
            )
            if isinstance(error, InfeasiblePlanError):
                self._misfits.append((count, method))
                self._known.put(question, self._memory_bytes, 0.0, error)
            raise
        self._tried[key] = Tried(
            count,
            remat,
            found.schedule,
            found.seconds,
            len(found.stages),
            found.peak_bytes,
            exact=True,
            rematerialized_stages=sum(map(found.rematerializes, range(len(found.stages)))),
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
        key = _key(found.count, found.method)
        self._tried[key] = replace(self._tried[key], measured_seconds=measured, reason=reason)
        self._done += 1

    def say(self, what: str) -> None:
        """Tell the progress function what is done now."""
        if self._progress is not None:
            self._progress(self._done, self._done + 1, what)

    def end(self) -> None:
        """Tell the progress function that the search is over; what was not chosen is let go."""
        self._exact.clear()
        if self._progress is not None:
            self._progress(self._done, self._done, "planned")

    def why_not(self) -> InfeasiblePlanError | None:
        """Which stage of the candidate tried last exceeds which limit; None if memory was no
        candidate's problem."""
        if not self._misfits:
            return None
        count, method = self._misfits[-1]
        if not self.only_predicts:
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
                where,
                self._file(where),
                count,
                coarse=coarse,
                why=why,
                solved=self._solved,
                drops_pins=self._drops_pins,
                start=self.near and self.near.search_options(),
            )
        )
        self.timed_out_solves += int(module.predicted()["timed_out_solves"])

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
        if self._is_coarse and cluster is self.cluster and not dtype:
            plan = Found(module, count, method, is_exported=False)
            question = self._found_question(count, method)
            self._known.put(question, self._memory_bytes, plan.peak_bytes, plan)
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
            MethodError: it has fewer layers than the given stages.
        """
        if count in self.couplings:
            raise self.couplings[count]
        for item in self._traced.signature.inputs:
            rows = item.shape[0] if item.kind == "batch" else count
            if rows == 0 or rows % count:
                divisors = [n for n in range(1, rows + 1) if rows % n == 0]
                raise MicroBatchError(
                    f"{rows} rows cannot be split into {count} equal micro-batches"
                    if rows
                    else "the batch has no rows",
                    where=item.name,
                    fix=_count_fix(divisors),
                )
        if count not in self._modules:
            read = self.method.import_passes(self.cluster)
            try:
                split = self._step.get(read, self.method.layer_passes(count, self._padding))
            except MicroBatchError as error:
                self.couplings[count] = MicroBatchError(
                    error.what, where=error.where, fix=error.fix or self._coupling_fix()
                )
                raise self.couplings[count] from None
            if self.method.offloads_state and "alpa.memory" not in split.as_text():
                raise MethodError(
                    f"offload {self.method.offload!r} of a step of which the update alone reads no "
                    "state of 256 KiB or more",
                    where=self._traced.signature.name,
                    fix='use offload="auto"',
                )
            if self.method.least_layers > 1:
                self._check_layers(split.as_text(), read, count)
            self._modules[count] = split
        return self._modules[count]

    def _check_layers(self, text: str, read: str, count: int) -> None:
        wanted, got = self.method.least_layers, _num_layers(text)
        if got >= wanted:
            return

        def layers_with(layers: int, count: int) -> int:
            passes = replace(self.method, layers=layers).layer_passes(count, self._padding)
            return _num_layers(self._step.get(read, passes).as_text())

        products = _products_by_equation(text)
        size, most = sum(products.values()), max(products.values(), default=0)
        fixes = ["use fewer stages (AutoParallel finds how many)"]
        if layers_with(wanted, count) >= wanted:
            also = ", which cuts between other operations, too" if size < wanted else ""
            fixes.append(f"give layers={wanted}{also}")
        elif most > 1:
            fixes.append("put jax.checkpoint, or jax.shard_map, around each layer by itself")
        if 0 < self.method.layers < wanted:
            why = f"layers={self.method.layers} is given"
        elif count > 1 and layers_with(0, 1) > got:
            why = f"with {count} micro-batches, what needs the whole batch runs behind them"
            fixes.append("use one micro-batch")
        elif BOUNDARY_SCOPE in self._traced.text:
            why = "layer_boundary marks so many"
        elif most > 1:
            why = (
                f"{most} products are in one jax.checkpoint, jax.shard_map or branch, which is "
                "not cut"
            )
        else:
            why = f"there {'is' if size == 1 else 'are'} {size or 'none'}"
        raise MethodError(
            f"{wanted} stages need as many layers, got {got}; a layer is a part of the forward "
            f"computation that has a product, and {why}",
            where=self._traced.signature.name,
            fix=", or ".join(fixes),
        )

    def _coupling_fix(self) -> str:
        inputs = self._traced.signature.inputs
        batch = {re.split(r"[.[]", item.name)[0] for item in inputs if item.kind == "batch"}
        names = " and ".join(sorted(batch))
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


_LAYER = re.compile(r"alpa\.layer = (\d+)")
_FORWARD_PRODUCT = re.compile(
    r"stablehlo\.(?:dot_general|convolution)\b.*alpa\.eqn = (\d+).*alpa\.phase = \"forward\""
)


def _num_layers(text: str) -> int:
    return max(map(int, _LAYER.findall(text)), default=-1) + 1


def _products_by_equation(text: str) -> Counter[str]:
    """How many products each forward equation holds."""
    return Counter(_FORWARD_PRODUCT.findall(text))


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


# Finds the number of micro-batches, the schedule and the plan for them.

# Predicted seconds of the best plan with so many micro-batches; infinite if there is none.
Worth = Callable[[int], float]


def nearest(counts: Sequence[int], wanted: float) -> int:
    """The count that differs from `wanted` by the least factor; the smaller one of two.

    Example:
        >>> nearest((1, 2, 8), 4)
        2
    """
    return min(counts, key=lambda n: (max(n, wanted) / min(n, wanted), n))


# Estimates are too rough to say that a count this little slower is no way to a faster one.
_LEVEL = 1.01


def climb(counts: Sequence[int], start: int, worth: Worth) -> int | None:
    """The best count that is found from `start` up and down a ladder of counts, as long as steps
    do not become slower, and then among the best one's neighbours; None if none has a plan.

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
            if worth(count) >= _LEVEL * worth(best):
                break
            best = min(best, count, key=worth)
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
# Of a stage's computation: products that devices share no further.
_REPEATED = 0.005
# Of a step: gathers of weights, which may be fewer.
_MOVED = 0.005
# And in which layers are computed again.
_RECOMPUTED = 0.02
# And in which it waits for copies to hosts, that is worth saying.
_WAITED = 0.05
# A full plan this much slower than an estimate of another is worth a second look.
_TOLERANCE = 1.05


@dataclass(frozen=True)
class Chosen:
    """The plan that was chosen, all that was tried, and how many solves the clock ended.

    Attributes:
        all_devices_seconds: of a step, the least of all that was planned in full and leaves no
            device idle; infinite where none is known.
    """

    found: Found
    tried: tuple[Tried, ...]
    timed_out_solves: int
    all_devices_seconds: float = inf


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
        candidates = self.candidates
        devices = candidates.cluster.num_devices
        on_all = min(
            each.seconds if sum(map(len, each.meshes)) == devices else each.all_devices_seconds
            for each in candidates.planned
        )
        candidates.end()
        return Chosen(found, candidates.tried, candidates.timed_out_solves, on_all)

    def pads(self, chosen: Chosen | None) -> bool:
        """Whether any dimension is made longer, with the number of micro-batches of a plan."""
        count = self.start() if chosen is None else chosen.found.count
        try:
            return bool(self.candidates.padded(count))
        except MicroBatchError:
            return False

    def start(self) -> int:
        """The given count that is nearest to what the candidates say, or else to a micro-batch of
        one example for each device of a host: few enough to keep devices busy, many enough for a
        pipeline."""
        devices = max(self.candidates.cluster.devices_per_host)
        wanted = self.candidates.start or self.candidates.batch_size / devices
        if self.candidates.near is not None:
            wanted = self.candidates.near.count(self.counts, self.candidates.batch_size)
        return nearest(self.counts, wanted)

    def _only(self, count: int) -> Found:
        try:
            return self.candidates.in_full(count, self.method)
        except InfeasiblePlanError as error:
            raise self.candidates.why_not() or error from None

    def _search(self) -> Found:
        """The best of several numbers of micro-batches."""
        counts = self._exact_counts()
        start = nearest(counts, self.start())
        if self.candidates.only_predicts:
            start = self._first_with_plan(counts, start)
        best = climb(counts, start, lambda n: self._worth(n, self.method))
        is_near = self.candidates.near is not None
        if counts[0] == 1 and len(counts) > 1 and not is_near:  # Many may hide a valley at one.
            self._worth(1, self.method)
        if best is None and not self._ranked():
            raise self.candidates.why_not() or self._no_count()
        return self._plan_best()

    def _first_with_plan(self, counts: Sequence[int], start: int) -> int:
        """The first count from `start` on that has a plan. Searches close to what fits take
        longest, so that it is looked for by halving, as if more micro-batches always needed less.

        Raises:
            InfeasiblePlanError: the most have none either.
        """

        def has_plan(count: int) -> bool:
            return self._worth(count, self.method) < inf

        if has_plan(start) or start in self.candidates.couplings:
            return start
        ladder = [n for n in _ladder(counts, start) if n > start]
        if not ladder or not has_plan(ladder[-1]):
            raise self.candidates.why_not() or self._no_count()
        return _least(ladder[:-1], ladder[-1], has_plan)

    def cannot_beat(self, seconds: float) -> bool:
        """Whether it is known, from searches with more memory, that no plan takes less."""
        if len(self.counts) != 1:
            return False
        return self.candidates.least_seconds(self.counts[0], self.method, in_full=True) >= seconds

    def _exact_counts(self) -> tuple[int, ...]:
        """The counts, if several micro-batches give the results of the whole batch; else one. What
        couples examples couples them for any count, but for rows that counts do not divide."""
        several = [n for n in self.counts if n > 1]
        if several and 1 in self.counts:
            for count in (nearest(several, self.start()), several[0]):
                if not self.candidates.only_predicts:
                    self._worth(count, self.method)  # A candidate in any case.
                if self.candidates.splits(count):
                    return self.counts
            return (1,)
        return self.counts

    def _worth(self, count: int, method: Method) -> float:
        least = self.candidates.least_seconds(count, method, in_full=False)
        if inf > least >= min(map(_seconds, self.candidates.tried), default=inf):
            return least
        return _seconds(self.candidates.estimate(count, method))

    def _ranked(self) -> list[Tried]:
        """Counts that have a plan, the fastest first."""
        return sorted((t for t in self.candidates.tried if t.seconds is not None), key=_seconds)

    def _plan_best(self) -> Found:
        best: Found | None = None
        infeasible: AlpaError | None = None
        for tried in self._ranked()[: 1 + _MOST_RUNNERS_UP]:
            if best is not None and not self._may_beat(tried, best):
                continue
            try:
                found = self.candidates.in_full(tried.num_micro_batches, self.method)
            except _NOT_FOR_THIS_COUNT as error:
                infeasible = error
                continue
            if best is None or found.seconds < best.seconds:
                best = found
        if best is None:
            assert infeasible is not None
            raise infeasible
        return best

    def _may_beat(self, tried: Tried, best: Found) -> bool:
        """Whether what was estimated may be faster than a plan, if it is planned in full too."""
        if best.seconds > _TOLERANCE * _seconds(tried):
            return True
        # Estimates have no stages that share a mesh, by which only pipelines get faster.
        may_share = self.method.schedule == "auto" and len(best.stages) == 1 < tried.stages
        return may_share and _seconds(tried) <= _TOLERANCE * best.seconds

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
        yield from [(tried.num_micro_batches, self.method) for tried in self._ranked()]
        best = min(self.candidates.planned, key=lambda found: found.seconds)
        count = best.count
        if self.method.remat == "auto":
            others = [replace(self.method, remat=remat) for remat in ("none", "all")]
            yield from self._by_worth(count, others)
        if self.method.schedule == "auto" and len(best.stages) > 1:
            names = [name for name in AUTO_SCHEDULES if name != best.schedule]
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
        found[best].plan = chosen.plan  # With what was measured.
        return found[best]

    def _label(self, found: Found) -> str:
        return self.candidates.label(found.count, found.method)

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


# What would have to change for a step to fit: tried, not guessed.

# As many times the hosts are tried at most.
_MOST_HOSTS = 64


def explain_infeasibility(planner: Planner, error: InfeasiblePlanError) -> InfeasiblePlanError:
    """The error with the nearest changes that make a plan fit, each found by a search.

    Args:
        planner: of the step, the cluster and the method that have no plan; its candidates are
            still open.
        error: why there is none: the stage and the limit.
    """
    changes = list(_changes(planner))
    if changes:
        return InfeasiblePlanError(error.what, where=error.where, fix=" or ".join(changes))
    tried = ["bfloat16"]
    if planner.method.num_micro_batches is not None:
        tried.append("more micro-batches")
    if not planner.method.has_fixed_meshes:
        tried.append(f"{_MOST_HOSTS} times the hosts")
    return InfeasiblePlanError(
        f"{error.what}; it does not fit with {' or with '.join(tried)} either",
        where=error.where,
        fix="make the model smaller",
    )


def _changes(planner: Planner) -> Iterator[str]:
    method = planner.method
    yield from _lifted_limits(planner, method)
    count = _more_micro_batches(planner, method)
    if count is not None:
        yield f"fits with {count} micro-batches"
    if method.remat not in ("auto", "all") and _fits(planner, replace(method, remat="all")):
        yield 'fits with remat="all"'
    if not method.has_fixed_meshes:
        yield from _more_hosts(planner, method)
    if _fits(planner, method, dtype="bfloat16"):
        yield "fits in bfloat16"


def _likely_counts(planner: Planner) -> list[int]:
    """The count to begin with, and the largest one, whose micro-batches need least."""
    return list(dict.fromkeys((planner.start(), planner.counts[-1])))


def _fits(
    planner: Planner,
    method: Method,
    *,
    cluster: Cluster | None = None,
    dtype: str = "",
    counts: list[int] | None = None,
) -> int | None:
    """A number of micro-batches with which it fits."""
    # Searches that cannot succeed are the slowest: all state has to lie somewhere.
    where = cluster or planner.candidates.cluster
    held = planner.candidates.state_bytes / (2 if dtype else 1)
    if held > method.memory_fraction * where.memory_bytes:
        return None
    for count in counts or _likely_counts(planner):
        try:
            if planner.candidates.estimate(count, method, cluster, dtype).seconds is not None:
                return count
        except MethodError:  # The method and that cluster have nothing in common.
            continue
    return None


def _more_micro_batches(planner: Planner, method: Method) -> int | None:
    """The least number beyond those that may be chosen, where doubling is tried."""
    if method.num_micro_batches is None:
        return None
    rounds = planner.candidates.rounds
    size = rounds if rounds > 1 else planner.candidates.batch_size
    allowed: list[int] = [n for n in range(planner.counts[-1] + 1, size + 1) if size % n == 0]
    last = planner.counts[-1]
    while allowed:
        count = next((n for n in allowed if n >= 2 * last), allowed[-1])
        if _fits(planner, method, counts=[count]):
            between = [n for n in allowed if last < n < count]
            return _least(between, count, lambda n: bool(_fits(planner, method, counts=[n])))
        last = count
        allowed = [n for n in allowed if n > count]
    return None


def _lifted_limits(planner: Planner, method: Method) -> Iterator[str]:
    """Of the limits that the user has set, the least change of each alone that makes a plan fit."""
    for name, value, changed in method.lifted_limits():
        count = _fits(planner, changed(None))
        if count is None:
            continue
        if not value:
            yield f"fits without {name}"
            continue
        most = planner.candidates.estimate(count, changed(None)).stages
        if name == "max_devices":
            most = planner.candidates.cluster.num_devices
        least = _least(
            range(value + 1, most),
            most,
            lambda n, changed=changed: bool(_fits(planner, changed(n))),
        )
        yield f"fits with {name}={least}"


def _more_hosts(planner: Planner, method: Method) -> Iterator[str]:
    groups = planner.candidates.cluster.host_groups
    for group, (count, kind) in enumerate(groups):

        def fits(hosts: int, group: int = group) -> bool:
            cluster = planner.candidates.cluster.with_hosts(group, hosts)
            try:
                return bool(_fits(planner, method, cluster=cluster))
            except InfeasiblePlanError:
                return False

        hosts = 2 * count
        while hosts <= _MOST_HOSTS * count and not fits(hosts):
            hosts *= 2
        if hosts > _MOST_HOSTS * count:
            continue
        least = _least(range(max(count, hosts // 2) + 1, hosts), hosts, fits)
        yield f"fits with {least} hosts" + (f" of {kind}" if len(groups) > 1 else "")


def _least(smaller: list[int] | range, known: int, fits: Callable[[int], bool]) -> int:
    """The least of `smaller` that fits, found by halving, or else `known`, which does."""
    low, high = 0, len(smaller)
    while low < high:
        middle = (low + high) // 2
        if fits(smaller[middle]):
            high = middle
        else:
            low = middle + 1
    return smaller[low] if low < len(smaller) else known


# The way from a traced step to its plan: kept from before, or searched.


def find_plan(
    traced: Traced,
    cluster: Cluster,
    method: Method,
    kept_in: Path | None = None,
    progress: bool | Progress = False,
    near: WarmStart | None = None,
    *,
    explains: bool = True,
) -> Plan:
    """The best plan for a step on a cluster, which says what else was tried.

    Args:
        method: settled for the cluster (`Method.settled`).
        kept_in: a folder of plans from before, to which this one is added; None for no folder.
        near: a plan from before, near which to look; everywhere where the method rules that plan
            out or nothing fits there, and as well where devices stay idle there.
        progress: True for a bar, or a function of (candidates tried, candidates known of, what is
            tried now).
        explains: whether an error is to say what would fit, which takes searches.

    Raises:
        MethodError, MicroBatchError, UnsupportedOpError, InfeasiblePlanError: by the cause.
        DevicesError: the method's finalists cannot be measured in this process.
    """
    placed = traced.text.count(PLACED_ON_HOST)
    why = _why_placements_stay(cluster, method)
    if placed and why:
        _warn_of_placements(placed, why)
    # A function as a schedule does not say whether it is the one of another day.
    cache = PlanCache(kept_in) if kept_in and isinstance(method.schedule, str) else None
    annotated = signature_json(traced, method)
    name = ""
    if cache is not None:
        devices = autotune.devices_text() if method.finalists else ""
        if near is not None:
            devices += repr(near)
        name = plan_cache.key(traced.text, annotated, cluster, method, code_version(), devices)
        found = cache.get(name)
        if found is not None:
            return found
    shown = progress_bar("planning", "candidate") if progress is True else progress or None
    solved = None if cache is None else cache.solved_folder()
    modules = StepModules(traced, annotated)
    with contextlib.ExitStack() as opened:

        def find(near: WarmStart | None) -> tuple[Chosen, int]:
            def candidates_of(
                variant: Method, drops_pins: bool, near: WarmStart | None
            ) -> Candidates:
                return opened.enter_context(
                    Candidates(
                        traced, modules, cluster, variant, shown, solved, drops_pins, near=near
                    )
                )

            constrained = _has_constraints(traced, method)
            return _best_variant(
                method,
                cluster,
                candidates_of,
                has_constraints=constrained,
                explains=explains and near is None,
                near=near,
            )

        if near is not None and near.is_ruled_out(method):
            near = None
        try:
            chosen, timed_out_solves = find(near)
        except InfeasiblePlanError:
            if near is None:
                raise
            chosen, timed_out_solves = find(None)
        else:
            if near is not None and _leaves_idle(chosen.found.plan, cluster, method):
                other, timed_out = find(None)
                seconds = [
                    each.found.plan.predicted.get("step_seconds", inf) for each in (other, chosen)
                ]
                if seconds[0] < seconds[1]:
                    chosen, timed_out_solves = other, timed_out
    predicted = dict(chosen.found.plan.predicted)
    if (on_all := "all_devices_step_seconds") in predicted:
        predicted[on_all] = min(predicted[on_all], chosen.all_devices_seconds)
    plan = replace(
        chosen.found.plan,
        predicted=predicted,
        tried=chosen.tried,
        fingerprint=traced.fingerprint,
        timed_out_solves=timed_out_solves,
    )
    if placed and not why and not _keeps_activations_on_hosts(plan):
        _warn_of_placements(
            placed, "none of them is kept from the forward to the backward phase of one stage"
        )
    is_default = method.remat == "none" and method.offload == "auto"
    if is_default and not placed and _keeps_activations_on_hosts(plan):
        _warn_of_copies(plan)
    if cache is not None and not plan.timed_out_solves:  # Another search may find a better one.
        cache.put(name, plan)
    return plan


def _leaves_idle(plan: Plan, cluster: Cluster, method: Method) -> bool:
    """Whether a plan has fewer devices than it may."""
    return len(plan.used_devices) < _most_devices(cluster, method)


def _most_devices(cluster: Cluster, method: Method) -> int:
    most: int | None = getattr(method, "max_devices", None)
    return min(cluster.num_devices, most or cluster.num_devices)


PLACED_ON_HOST = '_xla_buffer_placement = "pinned_host"'


def _why_placements_stay(cluster: Cluster, method: Method) -> str:
    """Why what a step places in host memory stays on the devices; empty if it may go there."""
    if method.offload == "none":
        return 'the method says offload="none"'
    if cluster.host_copy_seconds_per_byte is None:
        return "the cluster does not say what memory its hosts have (`host_memory` of `hosts`)"
    return ""


def _keeps_activations_on_hosts(plan: Plan) -> bool:
    return any(
        tensor.on_host
        for stage in plan.stages
        if "forward" in stage.functions
        for tensor in stage.functions["forward"].outputs
    )


def _warn_of_placements(count: int, why: str) -> None:
    warnings.warn(
        f"{count} {'values' if count > 1 else 'value'} that the step places in host memory stay on "
        f"the devices, and count there: {why}",
        stacklevel=2,
    )


def _warn_of_copies(plan: Plan) -> None:
    """Says that layers may be computed again where a step waits for copies to hosts instead."""
    waited = max(stage.predicted.get("host_seconds", 0.0) for stage in plan.stages)
    part = waited / plan.predicted.get("step_seconds", inf)
    if part > _WAITED:
        warnings.warn(
            "nothing fits without copies of activations to the hosts and back, for which a step "
            f'waits {part:.0%} of its time; with remat="auto" layers may be computed again instead',
            stacklevel=2,
        )


def search_best(
    traced: Traced,
    method: Method,
    cluster: Cluster,
    candidates_of: CandidatesOf,
) -> Chosen:
    """The best of a step's candidates, of which only predictions are wanted.

    Args:
        method: settled for the cluster.
        candidates_of: makes those of a variant of the method, opened, without the step's sharding
            constraints or with them, and near a plan or everywhere.

    Raises:
        InfeasiblePlanError, MicroBatchError: there is none.
    """
    chosen, _ = _best_variant(
        method,
        cluster,
        candidates_of,
        has_constraints=_has_constraints(traced, method),
        explains=False,
    )
    return chosen


def _best_variant(
    method: Method,
    cluster: Cluster,
    candidates_of: CandidatesOf,
    *,
    has_constraints: bool,
    explains: bool = True,
    near: WarmStart | None = None,
) -> tuple[Chosen, int]:
    """The best of the method's variants that are worth a search, and how many solves the clock
    ended.

    Args:
        explains: whether an error is to say what would fit, which takes searches.
        near: a plan from before, near which to look; variants that it does not have are left out
            where there is a plan.

    Raises:
        InfeasiblePlanError: none fits.
    """
    rate = cluster.host_copy_seconds_per_byte if method.offload == "auto" else None
    chosen: Chosen | None = None
    misfit: tuple[Planner, InfeasiblePlanError] | None = None
    timed_out_solves = 0

    def consider(planner: Planner) -> InfeasiblePlanError | None:
        nonlocal chosen, timed_out_solves
        if chosen is not None and planner.cannot_beat(chosen.found.seconds):
            return None
        try:
            found = planner.run()
        except InfeasiblePlanError as error:
            return error
        timed_out_solves += found.timed_out_solves
        on_all = min(
            found.all_devices_seconds, inf if chosen is None else chosen.all_devices_seconds
        )
        if chosen is None or found.found.seconds < chosen.found.seconds:
            chosen = found
        chosen = replace(chosen, all_devices_seconds=on_all)
        return None

    def consider_near(prepare_weights: str, drops_pins: bool) -> None:
        assert chosen is not None
        other = _also(chosen, method, prepare_weights=prepare_weights)
        other, own = _near(chosen, other, cluster)
        consider(Planner(candidates_of(other, drops_pins, own)))

    for drops_pins in (False, True)[: 1 + has_constraints]:
        first, *others = (replace(method, padding=padding) for padding in method.paddings)
        planner = Planner(candidates_of(first, drops_pins, near))
        error = consider(planner)
        if error is not None:  # The user is told of what does not depend on padding.
            misfit = planner, error
        for variant in others:
            if chosen is None and not explains:
                break
            if chosen is not None and near is not None and not near.pads:
                break
            # The examples are what devices share first.
            if chosen is not None and variant.padding != "batch":
                used = sum(map(len, chosen.found.meshes))
                if used == _most_devices(cluster, method) and not _wants_padding(chosen):
                    break
            planner = Planner(candidates_of(variant, drops_pins, near))
            if planner.pads(chosen):
                consider(planner)
        is_auto = method.prepare_weights == "auto"
        if chosen is None and is_auto and planner.candidates.prepares():
            other = replace(first, prepare_weights="none")
            consider(Planner(candidates_of(other, drops_pins, near)))
        is_misfit = chosen is None and rate is not None
        for offload in ("optimizer", "activations", "all") if is_misfit else ():
            if chosen is None or offload != "all":
                with contextlib.suppress(MethodError):  # Of a step without such values.
                    other = replace(first, offload=offload)
                    consider(Planner(candidates_of(other, drops_pins, near)))
        if chosen is not None and is_auto and (near is None or near.prepares):
            if _moves_weights(chosen):
                consider_near("gathered", drops_pins)
            if _prepares_scarce(chosen):
                consider_near("none", drops_pins)
        if chosen is not None and rate is not None and (near is None or near.offloads):
            others = [
                *(["optimizer"] if _copies_faster(chosen, rate) else []),
                *(["activations"] if _may_offload_activations(chosen) else []),
            ]
            for other in [_also(chosen, method, offload=offload) for offload in others]:
                with contextlib.suppress(MethodError):
                    consider(Planner(candidates_of(other, drops_pins, near)))
        if chosen is not None:
            return chosen, timed_out_solves
    assert misfit is not None
    raise explain_infeasibility(*misfit) if explains else misfit[1] from None


def _also(chosen: Chosen, asked: Method, **options: Any) -> Method:
    """The chosen method and number of micro-batches, with other options and the schedule that was
    asked for. Where no stages share a mesh, though they might, they are not asked to again."""
    found = chosen.found
    method = replace(
        found.method,
        num_micro_batches=found.count,
        schedule=asked.schedule,
        virtual_stages=asked.virtual_stages,
        **options,
    )
    if method.schedule == "auto" and replace(method, schedule=found.schedule).stages_per_mesh == 1:
        method = replace(method, virtual_stages=1)
    return method


def _near(chosen: Chosen, method: Method, cluster: Cluster) -> tuple[Method, WarmStart | None]:
    """The method as it is asked near the chosen plan, and that plan. Several stages on a mesh are
    asked for by name, so that only plans of that kind are searched."""
    found = chosen.found
    if not WarmStart.suits(method):
        return method, None
    if len(found.stages) > len(found.meshes):
        each = len(found.stages) // len(found.meshes)
        method = replace(method, schedule=found.schedule, virtual_stages=each)
    near = WarmStart.of_stages(cluster, found.meshes, found.layers, found.schedule, found.count)
    return method, replace(near, is_exact=True)


def _moves_weights(chosen: Chosen) -> bool:
    """Whether some stage gathers weights for so long that it is worth a search to gather what
    micro-batches read once a step: in each of them, or new ones, from which something smaller is
    prepared. A method that says how parameters lie has decided that."""
    found = chosen.found
    if found.count == 1 or found.method.method != "auto":
        return False
    for index, stage in enumerate(found.stages):
        seconds = stage.get("weight_move_seconds", 0.0)
        if found.prepares(index):
            seconds += stage.get("new_weight_seconds", 0.0)
        if seconds > _MOVED * found.seconds:
            return True
    return False


def _prepares_scarce(chosen: Chosen) -> bool:
    """Whether layers are computed again, for whose values there may be room without prepared
    weights, and making these in each micro-batch could take less time than that."""
    found = chosen.found
    made = max(stage.get("prepare_seconds", 0.0) for stage in found.stages) * (found.count - 1)
    prepares = any(map(found.prepares, range(len(found.stages))))
    return prepares and _recomputed(found) - made > _RECOMPUTED * found.seconds


def _copies_faster(chosen: Chosen, seconds_per_byte: float) -> bool:
    """Whether layers are computed again, and copying the state of the optimizer, split over all
    devices, could take less time than that."""
    found = chosen.found
    if found.method.offloads_state:
        return False
    copied = max(s.get("optimizer_bytes", 0.0) / s["devices"] for s in found.stages)
    return _recomputed(found) - copied * seconds_per_byte > _RECOMPUTED * found.seconds


def _recomputed(found: Found) -> float:
    """Seconds of a step in which the stage that computes most again does so."""
    return max(stage.get("recomputed_seconds", 0.0) for stage in found.stages)


def _may_offload_activations(chosen: Chosen) -> bool:
    """Whether the search had layers computed again, for long enough, whose values might wait on the
    hosts."""
    found = chosen.found
    return (
        found.method.offload == "auto"
        and found.method.remat == "auto"
        and _recomputed(found) > _RECOMPUTED * found.seconds
    )


def _wants_padding(chosen: Chosen) -> bool:
    """Whether devices of some stage compute so many products alike, or read so many rows slowly,
    that longer dimensions are worth a search."""
    return any(
        stage.get("repeated_seconds", 0.0) + stage.get("unaligned_seconds", 0.0)
        > _REPEATED * stage.get("compute_seconds", 0.0)
        for stage in chosen.found.stages
    )


def _has_constraints(traced: Traced, method: Method) -> bool:
    """Whether sharding constraints of the step, on a mesh of several devices, may be dropped."""
    if method.sharding_constraints != "keep" or method.method == "manual":
        return False
    meshes = re.findall(r"sdy\.mesh(?: @\S+ = )?<\[(.*?)\]", traced.text)
    return any(int(size) > 1 for mesh in meshes for size in re.findall(r"=(\d+)", mesh))


def signature_json(traced: Traced, method: Method) -> str:
    """The signature with the shardings that the method's user has decided."""
    fields: dict[str, Any] = json.loads(traced.signature.to_json())
    # An input of the compiler's own comes last, and has no pin.
    pins = pinned_axes(method.in_shardings, method.mesh_axes, traced.in_tree)
    count = method.num_micro_batches
    for item, pin in zip(fields["inputs"], pins, strict=False):
        if pin is None:
            continue
        shape, is_batch = item["shape"], item["kind"] == "batch"
        parts = count if is_batch and isinstance(count, int) else 1
        check_pin(pin, item["name"], shape, method.mesh_axes, method.known_mesh_shape, parts)
        item["sharding"] = pin + [[]] * (len(shape) - len(pin))
    return json.dumps(fields)
