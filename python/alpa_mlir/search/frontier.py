"""How fast a step could be with other memory and other numbers of devices, and what that costs."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, log, sqrt
from pathlib import Path
from typing import Any, Literal

from alpa_runtime.parallel_step import Progress, progress_bar
from alpa_runtime.plan.interface import example_shape, tokens_of
from alpa_runtime.plan.text import bytes_text, seconds_text, table

from alpa_mlir.cluster import Cluster
from alpa_mlir.errors import AlpaError, InfeasiblePlanError, MethodError, MicroBatchError
from alpa_mlir.methods.method import Method
from alpa_mlir.search.planner import (
    Candidates,
    Chosen,
    KnownSearches,
    StepModules,
    search_best,
    signature_json,
)
from alpa_mlir.search.warm_start import WarmStart
from alpa_mlir.trace.tracing import Input, Traced

Axis = Literal["memory", "devices"]
AXES: tuple[Axis, ...] = ("memory", "devices")

#: With so much memory of a device nothing is short of it.
_PLENTY = 1 << 50
#: Of the memory that devices have, no less is looked at where plans fit into it.
_LEAST_PART = 1 / 4
#: The least memory is found to this factor.
_NEAR = 1.25
#: Plans whose seconds differ by less are one: searches end when no plan is faster by more.
_SAME = 1.01
#: No search is made between points whose memory differs by less.
_CLOSE = 1.05
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """The best plan for some devices.

    Attributes:
        num_devices: of the cluster, idle ones too.
        memory_bytes: the least memory of a device with which this plan is a plan: what it needs,
            over the method's `memory_fraction`.
        step_seconds: predicted.
        num_micro_batches, schedule, num_stages, rematerialized_stages, idle_devices: of the plan.
        offload: what of it lies in the hosts' memory.
        step_cost: for all devices, at the frontier's price; None without one.
        unit_cost: for 10^9 tokens, or 10^6 examples of a step that has none.
        is_dominated: whether fewer devices do it in as many seconds or less.
    """

    num_devices: int
    memory_bytes: int
    step_seconds: float
    num_micro_batches: int
    schedule: str
    num_stages: int
    rematerialized_stages: int
    idle_devices: int
    offload: str
    step_cost: float | None = None
    unit_cost: float | None = None
    is_dominated: bool = False

    @property
    def plan_text(self) -> str:
        """The plan in a few words.

        Example:
            >>> point.plan_text                                    # doctest: +SKIP
            '4 stages, 2 rematerialized, 8 micro-batches, 1f1b'
        """
        words = [f"{self.num_stages} stage{'s' * (self.num_stages > 1)}"]
        if self.rematerialized_stages:
            is_all = self.rematerialized_stages == self.num_stages
            words.append(f"{'' if is_all else f'{self.rematerialized_stages} '}rematerialized")
        words.append(f"{self.num_micro_batches} micro-batch{'es' * (self.num_micro_batches > 1)}")
        words += [self.schedule] if self.num_stages > 1 else []
        words += [f"{self.offload} on hosts"] if self.offload not in ("auto", "none") else []
        words += [f"{self.idle_devices} idle"] if self.idle_devices else []
        return ", ".join(words)


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """What a step takes with other memory, and on other numbers of devices.

    Attributes:
        name: of the step.
        cluster: its name.
        num_devices, device_memory_bytes: of that cluster; memory of the device that has the least.
        examples: of a step.
        tokens: of a step, by `tokens_of`; None if it has none.
        tokens_of: how they were counted.
        price: of a device for an hour, or None.
        memory: on all devices, each with more memory and fewer seconds than the one before. The
            last one is what is taken however much memory there is.
        too_little_bytes: the most memory of a device with which no plan was found; 0 if plans fit
            into the least that was looked at, a quarter of what the devices have.
        devices: with the devices' own memory, by rising number.
        unplanned: numbers of devices without a plan, and why.
    """

    name: str
    cluster: str
    num_devices: int
    device_memory_bytes: int
    examples: int
    tokens: int | None
    tokens_of: str
    price: float | None
    memory: tuple[FrontierPoint, ...]
    too_little_bytes: int
    devices: tuple[FrontierPoint, ...]
    unplanned: tuple[tuple[int, str], ...]

    @property
    def unit(self) -> str:
        """What `unit_cost` is for."""
        return "1M examples" if self.tokens is None else "1B tokens"

    @property
    def own(self) -> FrontierPoint | None:
        """The point of the memory that the cluster's devices have; None if no plan fits there."""
        fits = [p for p in self.memory if p.memory_bytes <= self.device_memory_bytes]
        return fits[-1] if fits else None

    def to_fields(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self) | {
            "unit": self.unit,
            "unplanned": [{"num_devices": n, "reason": why} for n, why in self.unplanned],
        }

    def as_text(self) -> str:
        """A table for each axis."""
        size = f"{self.examples} examples"
        if self.tokens is not None:
            size += f", {self.tokens} tokens ({self.tokens_of})"
        parts = [f"frontier of {self.name} on {self.cluster}; a step has {size}"]
        if self.memory:
            parts.append(self._table("memory/device", self._memory_rows(), self.memory))
        if len(self.memory) == 1:
            parts.append(self._why_one())
        if self.devices:
            parts.append(self._table("devices", self._device_rows(), self.devices))
        parts += [f"no plan on {n} device{'s' * (n > 1)}: {why}" for n, why in self.unplanned]
        return "\n".join(parts)

    def _why_one(self) -> str:
        """Why there is no curve of seconds by memory."""
        same = (
            f"one plan for all memory: down to {bytes_text(self.memory[0].memory_bytes)} a device"
        )
        same += f" none is more than {_SAME - 1:.0%} faster"
        if self.too_little_bytes:
            return f"{same}, and with {bytes_text(self.too_little_bytes)} none was found"
        end = bytes_text(self.device_memory_bytes * _LEAST_PART)
        return f"{same}, and less than {end}, a quarter of the devices', is not looked at"

    def _memory_rows(self) -> list[list[str]]:
        rows: list[list[str]] = []
        for point in self.memory:
            notes: list[str] = []
            if point is self.memory[0] and self.too_little_bytes:
                notes.append(f"no plan was found with {bytes_text(self.too_little_bytes)}")
            if point is self.own:
                notes.append("what these devices do")
            if point.memory_bytes > self.device_memory_bytes:
                notes.append(f"these devices have {bytes_text(self.device_memory_bytes)}")
            if point is self.memory[-1]:
                notes.append("more buys nothing")
            rows.append([bytes_text(point.memory_bytes), "; ".join(notes)])
        return rows

    def _device_rows(self) -> list[list[str]]:
        return [
            [str(p.num_devices), "fewer are as fast" if p.is_dominated else ""]
            for p in self.devices
        ]

    def _table(
        self, axis: str, rows: Sequence[Sequence[str]], points: Sequence[FrontierPoint]
    ) -> str:
        header = [axis, "a step"]
        header += ["memory/device"] if axis == "devices" else []
        header += ["cost of a step", f"cost of {self.unit}"] if self.price is not None else []
        cells: list[list[str]] = []
        for (name, note), point in zip(rows, points, strict=True):
            row = [name, seconds_text(point.step_seconds)]
            row += [bytes_text(point.memory_bytes)] if axis == "devices" else []
            row += [money_text(point.step_cost), money_text(point.unit_cost)] if self.price else []
            cells.append([*row, point.plan_text, note])
        return table([*header, "plan", ""], cells)


def money_text(amount: float | None) -> str:
    """Four figures, and no power of ten.

    Example:
        >>> money_text(0.0123456), money_text(123456.7)
        ('0.01235', '123457')
    """
    if not amount:
        return "0"
    digits = max(0, 3 - int(log(amount, 10) if amount >= 1 else log(amount, 10) - 1))
    return f"{amount:.{digits}f}"


def find_frontier(
    traced: Traced,
    cluster: Cluster,
    settle: Callable[[Cluster], Method],
    *,
    over: Sequence[Axis],
    price: float | None,
    tokens: int | None,
    most_points: int,
    progress: bool | Progress,
) -> Frontier:
    """The frontier of a step; `TracedStep.frontier` has what the arguments mean, and defaults.

    Args:
        settle: the method for a cluster.
    """
    method = settle(cluster)
    if "devices" in over and method.has_fixed_meshes:
        raise MethodError(
            "a frontier over numbers of devices with meshes that are given",
            where=type(method).__name__,
            fix="ask for the frontier over memory alone, or leave the meshes out",
        )
    counted = (tokens, "as given") if tokens is not None else _tokens(traced)
    shown = progress_bar("frontier", "search") if progress is True else progress or None
    with Sweep(traced, signature_json(traced, method), shown) as sweep:
        # The plan of the cluster as it is comes first: that one is what planning would find.
        known = KnownSearches()
        own = sweep.plan(cluster, method, known)
        memory: list[_Plan] = []
        too_little = 0
        if "memory" in over:
            over_memory = _MemorySweep(sweep, cluster, method, most_points, known)
            memory, too_little = over_memory.run(own), over_memory.too_little_bytes
        devices: list[_Plan] = []
        unplanned: list[tuple[int, str]] = []
        for part in cluster.parts() if "devices" in over else ():
            try:
                found = own if part is cluster else sweep.plan(part, settle(part), is_coarse=True)
            except MethodError as error:
                unplanned.append((part.num_devices, error.what))
                continue
            if isinstance(found, _Plan):
                devices.append(found)
            else:
                unplanned.append((part.num_devices, found.what))
        sweep.end()
    if not memory and not devices:
        assert isinstance(own, AlpaError)
        raise own
    examples = max((item.shape[0] for item in _batches(traced)), default=0)
    each = examples / 1e6 if counted is None else counted[0] / 1e9

    def priced(point: FrontierPoint) -> FrontierPoint:
        if price is None:
            return point
        cost = price * point.num_devices * point.step_seconds / _SECONDS_PER_HOUR
        return replace(point, step_cost=cost, unit_cost=cost / each if each else None)

    return Frontier(
        name=traced.signature.name,
        cluster=cluster.name,
        num_devices=cluster.num_devices,
        device_memory_bytes=cluster.least_memory_bytes,
        examples=examples,
        tokens=None if counted is None else counted[0],
        tokens_of="" if counted is None else counted[1],
        price=price,
        memory=tuple(priced(plan.point) for plan in memory),
        too_little_bytes=too_little,
        devices=tuple(priced(point) for point in _marked([plan.point for plan in devices])),
        unplanned=tuple(unplanned),
    )


def _batches(traced: Traced) -> list[Input]:
    """The batch arguments, with examples in front."""
    of_rounds = traced.batch_of_rounds
    return [
        replace(item, shape=example_shape(item.shape, of_rounds))
        for item in traced.signature.inputs
        if item.kind == "batch" and len(item.shape) > of_rounds
    ]


_PRODUCT = re.compile(r'"stablehlo\.dot_general"\(.*-> tensor<((?:\d+x)+)')


def _tokens(traced: Traced) -> tuple[int, str] | None:
    shapes = [
        tuple(int(size) for size in found.split("x")[:-1])
        for found in _PRODUCT.findall(traced.text)
    ]
    return tokens_of(_batches(traced), shapes)


def _marked(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Points by rising number of devices; those on more devices than as fast a one are marked."""
    marked: list[FrontierPoint] = []
    best = inf
    for point in points:
        marked.append(replace(point, is_dominated=point.step_seconds >= best))
        best = min(best, point.step_seconds)
    return marked


@dataclass(frozen=True)
class _Plan:
    """A point, and the number of micro-batches that its search ended at."""

    point: FrontierPoint

    @property
    def memory_bytes(self) -> int:
        return self.point.memory_bytes

    @property
    def seconds(self) -> float:
        return self.point.step_seconds


class Sweep:
    """Searches for one step on many clusters. What does not depend on the cluster is done once;
    solved stages are kept from search to search, in a folder of its own, so that a sweep has the
    same answer whatever was planned before."""

    def __init__(self, traced: Traced, annotated: str, progress: Progress | None = None) -> None:
        self._traced = traced
        self._modules = StepModules(traced, annotated)
        self._progress = progress
        self._done = 0

    def __enter__(self) -> Sweep:
        self._folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def plan(
        self,
        cluster: Cluster,
        method: Method,
        known: KnownSearches | None = None,
        start: int = 0,
        *,
        is_coarse: bool = False,
    ) -> _Plan | AlpaError:
        """The best plan on a cluster, or why there is none.

        Args:
            method: settled for the cluster.
            known: of the same cluster with other memory.
            start: a number of micro-batches that may be the best one.
            is_coarse: whether the plan may be as far from the best one as estimates are.
        """
        method = replace(method, finalists=0)
        with contextlib.ExitStack() as opened:

            def candidates_of(
                variant: Method, drops_pins: bool, near: WarmStart | None
            ) -> Candidates:
                return opened.enter_context(
                    Candidates(
                        self._traced,
                        self._modules,
                        cluster,
                        variant,
                        self._said,
                        Path(self._folder.name),
                        drops_pins,
                        known=known,
                        start=start,
                        near=near,
                        only_predicts=True,
                        is_coarse=is_coarse,
                    )
                )

            try:
                chosen = search_best(self._traced, method, cluster, candidates_of)
            except (InfeasiblePlanError, MicroBatchError) as error:
                return error
            finally:
                self._done += 1
        return _Plan(_point(chosen, cluster, method))

    def _said(self, _done: int, _total: int, what: str) -> None:
        if self._progress is not None:
            self._progress(self._done, self._done + 1, what)

    def end(self) -> None:
        """Tell the progress function that all is done."""
        if self._progress is not None:
            self._progress(self._done, self._done, "planned")


def _point(chosen: Chosen, cluster: Cluster, method: Method) -> FrontierPoint:
    found = chosen.found
    used = {device for mesh in found.meshes for device in mesh}
    return FrontierPoint(
        num_devices=cluster.num_devices,
        memory_bytes=ceil(found.peak_bytes / method.memory_fraction),
        step_seconds=found.seconds,
        num_micro_batches=found.count,
        schedule=found.schedule,
        num_stages=len(found.stages),
        rematerialized_stages=sum(map(found.rematerializes, range(len(found.stages)))),
        idle_devices=cluster.num_devices - len(used),
        offload=found.method.offload,
    )


class _MemorySweep:
    """The plans of one cluster by memory of its devices.

    A search with m bytes finds a plan that needs p <= m, which is the best one for all memory
    between p and m: the next question is below p, or between m and the next plan.
    """

    def __init__(
        self,
        sweep: Sweep,
        cluster: Cluster,
        method: Method,
        most_points: int,
        known: KnownSearches,
    ) -> None:
        self._sweep = sweep
        self._cluster = cluster
        self._method = method
        self._most_points = most_points
        self._known = known
        self._plans: list[_Plan] = []  # Rising in memory, falling in seconds.
        self._asked: list[int] = []
        self.too_little_bytes = 0

    def run(self, own: _Plan | AlpaError) -> list[_Plan]:
        """The plans.

        Args:
            own: of the cluster as it is.
        """
        mine = self._cluster.least_memory_bytes
        start = 0
        if isinstance(own, _Plan):
            self._asked.append(mine)
            self._add(own)
            start = own.point.num_micro_batches
        if self._ask(_PLENTY, start) is None:
            return self._plans
        if isinstance(own, AlpaError):
            self.too_little_bytes = mine
        self._find_least(int(mine * _LEAST_PART))
        while len(self._plans) < self._most_points and (between := self._widest()) is not None:
            low, high, start = between
            self._ask(int(sqrt(low * high)), start)
        thinned: list[_Plan] = []
        for plan in self._plans:  # One that is hardly faster than one with less memory is none.
            if not thinned or plan is own or thinned[-1].seconds > _SAME * plan.seconds:
                thinned.append(plan)
        return thinned

    def _find_least(self, end: int) -> None:
        """Halve memory until nothing fits, or to the end, then look between."""
        while True:
            least, low = self._plans[0], self.too_little_bytes
            if least.memory_bytes <= (low * _NEAR if low else end):
                return
            asked = int(sqrt(low * least.memory_bytes)) if low else least.memory_bytes // 2
            if asked < 1:
                return
            self._ask(max(asked, end), least.point.num_micro_batches)

    def _widest(self) -> tuple[int, int, int] | None:
        """Of the gaps between two plans the largest one that may hold another: from the most
        memory that is known to buy no more than the first, to the second, and where to start."""
        best: tuple[float, tuple[int, int, int]] | None = None
        for a, b in zip(self._plans, self._plans[1:], strict=False):
            asked = [m for m in self._asked if a.memory_bytes <= m < b.memory_bytes]
            low = max([a.memory_bytes, *asked])
            if a.seconds < _SAME * b.seconds or b.memory_bytes < _CLOSE * low:
                continue
            size = log(a.seconds / b.seconds) * log(b.memory_bytes / low)
            gap = low, b.memory_bytes, a.point.num_micro_batches
            if best is None or size > best[0]:
                best = size, gap
        return None if best is None else best[1]

    def _ask(self, memory_bytes: int, start: int) -> _Plan | None:
        cluster = self._cluster.with_memory(memory_bytes)
        self._asked.append(memory_bytes)
        found = self._sweep.plan(cluster, self._method, self._known, start, is_coarse=True)
        if isinstance(found, AlpaError):
            self.too_little_bytes = max(self.too_little_bytes, memory_bytes)
            return None
        self._add(found)
        return found

    def _add(self, plan: _Plan) -> None:
        """Keep the plan, unless another one needs no more and is as fast; drop those of which it is
        that."""

        def is_beaten(one: _Plan, other: _Plan) -> bool:
            no_more = other.memory_bytes <= one.memory_bytes
            return no_more and other.seconds <= one.seconds

        if any(is_beaten(plan, other) for other in self._plans):
            return
        kept = [other for other in self._plans if not is_beaten(other, plan)]
        self._plans = sorted([*kept, plan], key=lambda p: p.memory_bytes)
