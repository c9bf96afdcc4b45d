"""What users call to plan: `parallelize`, `compile`, and the steps trace, plan and load."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from pathlib import Path
from typing import Any, Literal, overload

import jax

from alpa_mlir import feasible, finalists, plan_cache
from alpa_mlir import trace as tracing
from alpa_mlir.cache_folder import CacheLike, chosen_folder
from alpa_mlir.candidates import Candidates
from alpa_mlir.cluster import ClusterLike, as_cluster
from alpa_mlir.compiler import compiler_version
from alpa_mlir.count_search import sensible_count
from alpa_mlir.errors import InfeasiblePlanError, MethodError, TraceError
from alpa_mlir.hosts.interface import Hosts
from alpa_mlir.parallel_step import ParallelStep, Progress, load_on, progress_bar
from alpa_mlir.pins import pinned_axes
from alpa_mlir.plan import Plan, Tried
from alpa_mlir.plan_cache import CachedPlan, PlanCache, code_version
from alpa_mlir.planning import Planner
from alpa_mlir.runtime.whole_array import WholeArray
from alpa_mlir.search import AutoParallel, Method
from alpa_mlir.trace import Traced

_jax: Any = jax


@dataclass(frozen=True)
class Options:
    """How a function is to be read and run; see `parallelize`."""

    batch_argnums: int | Sequence[int] | None = None
    static_argnums: int | Sequence[int] = ()
    gradient_reduction: Literal["mean", "sum"] = "mean"
    donate_state: bool = True
    cache: CacheLike = True
    workers: Hosts | None = None


@dataclass(frozen=True)
class TracedStep:
    """A step as the compiler will read it; `plan` goes on.

    Attributes:
        traced: text, signature and trees, at the size of one micro-batch.
        examples: the arguments' shapes, to trace again for another number of micro-batches.
        cluster, method: what `plan` takes by default.
    """

    fn: Callable[..., Any] = field(repr=False)
    examples: tuple[Any, ...] = field(repr=False)
    options: Options
    traced: Traced
    cluster: ClusterLike = None
    method: Method = field(default_factory=AutoParallel)

    def as_text(self) -> str:
        """The StableHLO module."""
        return self.traced.as_text()

    def plan(
        self,
        cluster: ClusterLike = None,
        method: Method | None = None,
        *,
        cache: CacheLike | None = None,
        progress: bool | Progress = False,
    ) -> PlannedStep:
        """Find the best plan for a cluster.

        Args:
            cluster: a `Cluster`, the name of a preset, a file, a dictionary; by default that of
                the function, and without one the devices of this process.
            method: by default that of the function, and without one `AutoParallel()`.
            cache: whether plans are kept on disk and found again, or the folder to keep them
                in; by default that of the function. docs/running.md says where they are.
            progress: True for a bar that says what is being tried, or a function of
                (candidates tried, candidates known of, what is tried).

        Raises:
            ClusterFileError, MethodError, MicroBatchError, UnsupportedOpError,
            InfeasiblePlanError: by the cause.
            DevicesError: the method's finalists cannot be measured in this process.
        """
        described = as_cluster(self.cluster if cluster is None else cluster)
        method = self.method if method is None else method
        kept = _cache(self.options.cache if cache is None else cache)
        if not isinstance(method.schedule, str):
            kept = None  # A function does not say whether it is the one of another day.
        annotated = _signature_json(self.traced, method)
        name = ""
        if kept is not None:
            devices = finalists.devices_text() if method.finalists else ""
            name = plan_cache.key(
                self.traced.text, annotated, described, method, code_version(), devices
            )
            found = kept.get(name)
            if found is not None:
                traced = self.traced.resized(found.signature, found.text)
                return PlannedStep(traced, found.plan, self.options).called()
        candidates = Candidates(
            lambda count: _trace(self.fn, self.examples, self.options, count),
            lambda traced: _signature_json(traced, method),
            self.traced,
            described,
            method,
            progress_bar("planning", "candidate") if progress is True else progress or None,
            None if kept is None else kept.solved_folder(),
        )
        with candidates:
            planner = Planner(candidates)
            try:
                chosen = planner.run()
            except InfeasiblePlanError as error:
                raise feasible.explained(planner, error) from None
        traced = chosen.found.traced
        plan = replace(chosen.found.plan, tried=chosen.tried)
        result = PlannedStep(traced, plan, self.options).signed()
        if kept is not None:
            kept.put(name, CachedPlan(result.plan, traced.signature, traced.text))
        return result

    def with_plan(self, plan: Plan | str | Path, cluster: ClusterLike = None) -> PlannedStep:
        """Take a plan that was made before, if it is for this step.

        Args:
            plan: a plan, or the folder where it was saved.
            cluster: what it has to be made for; by default that of the function, and without one
                the plan's own.

        Raises:
            PlanMismatchError: the plan is for another step or cluster, or made by another
                compiler; names the first difference.
        """
        plan = plan if isinstance(plan, Plan) else Plan.load(plan)
        traced = self.traced
        if plan.num_micro_batches != traced.signature.num_micro_batches:
            traced = _trace(self.fn, self.examples, self.options, plan.num_micro_batches)
        wanted = self.cluster if cluster is None else cluster
        described = None if wanted is None else as_cluster(wanted)
        plan.check(traced=traced, cluster=described, compiler=compiler_version())
        return PlannedStep(traced, plan, self.options)


@dataclass(frozen=True)
class PlannedStep:
    """A plan together with the trees of the function it was made from; `load` goes on.

    Attributes:
        traced, plan: the step, at the size of one micro-batch, and its plan.
    """

    traced: Traced = field(repr=False)
    plan: Plan
    options: Options

    @property
    def tried(self) -> tuple[Tried, ...]:
        """The numbers of micro-batches that the search looked at, and other candidates; and what
        finalists took when they were measured."""
        return self.plan.tried

    @property
    def predicted_seconds(self) -> float:
        """Seconds of one step on the described cluster, as the search foresaw them; where finalists
        were measured, simulated with the seconds that the stages took."""
        return self.plan.predicted.get("step_seconds", float("inf"))

    def as_text(self) -> str:
        """The plan as a table, and what else was tried."""
        if len(self.tried) < 2:
            return self.plan.as_text()
        rows = sorted(self.tried, key=lambda t: (t.num_micro_batches, t.remat, t.schedule))
        lines = [f"  {row.as_text()}" for row in rows]
        return "\n".join([self.plan.as_text().rstrip(), "tried:", *lines]) + "\n"

    def signed(self) -> PlannedStep:
        """The same, where the plan says which step it is for and how it is called."""
        plan = replace(self.plan, fingerprint=self.traced.fingerprint)
        return replace(self, plan=plan).called()

    def called(self) -> PlannedStep:
        """The same, where the plan says how this step is called. A kept plan may have been made
        for other containers, other static values that change nothing, or another `donate_state`."""
        call = self.traced.form.to_info(self.options.donate_state)
        return replace(self, plan=replace(self.plan, call=call))

    def save(self, folder: str | Path) -> Path:
        """Write the plan; `alpa_mlir.load` makes it a step again, on any machine."""
        return self.plan.save(folder)

    def load(
        self,
        *,
        devices: Sequence[Any] | None = None,
        workers: Hosts | None = None,
        progress: bool | Progress = False,
        backend: str = "auto",
        cache: CacheLike | None = None,
    ) -> ParallelStep:
        """Compile every stage for its devices.

        Args:
            devices: `devices[i]` is device i of the plan; by default `jax.devices()`.
            workers: where to start workers; by default as the function says, and without that the
                plan runs in this process.
            progress: True for a progress bar, or a function of (done, total, label).
            backend: who compiles the stages, one of `"auto"`, `"xla"`, `"iree"`; see
                docs/backends.md.
            cache: whether compiled programs are kept on disk and found again, or the folder to
                keep them in; by default that of the function.

        Raises:
            BackendError: the backend is not installed, or cannot compile a stage.
            DevicesError: there are fewer devices than the plan needs.
        """
        donate = self.options.donate_state
        kept = self.options.cache if cache is None else cache
        hosts = self.options.workers if workers is None else workers
        loaded = load_on(self.plan, devices, hosts, donate, progress, backend, kept)
        return ParallelStep(self.traced.form, loaded)


class ParallelFunction:
    """A function that is planned when it is first called, once for each form of arguments.

    The steps can be taken one by one: `f.trace(*args).plan(cluster).load()`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        cluster: ClusterLike = None,
        method: Method | None = None,
        options: Options | None = None,
    ) -> None:
        self.fn = fn
        self.cluster = cluster
        self.method = AutoParallel() if method is None else method
        self.options = Options() if options is None else options
        self._steps: dict[Any, ParallelStep] = {}
        update_wrapper(self, fn)

    def trace(self, *args: Any, num_micro_batches: int | None = None) -> TracedStep:
        """Trace at the size of one micro-batch (by default as many as the method says).

        Raises:
            TraceError, MicroBatchError: the function or its batch does not fit.
        """
        examples = tuple(
            arg if i in _positions(self.options.static_argnums, len(args)) else _shapes(arg)
            for i, arg in enumerate(args)
        )
        counts = self.method.num_micro_batches
        if num_micro_batches is not None:
            traced = _trace(self.fn, examples, self.options, num_micro_batches)
        elif isinstance(counts, int):
            traced = _trace(self.fn, examples, self.options, counts)
        else:
            traced = self._trace_some(examples, counts)
        return TracedStep(self.fn, examples, self.options, traced, self.cluster, self.method)

    def _trace_some(self, examples: tuple[Any, ...], counts: Sequence[int] | None) -> Traced:
        """Trace for a number of micro-batches that the search may well choose; for one if the
        step cannot be traced for more, as where its state has a batch dimension."""
        static = _positions(self.options.static_argnums, len(examples))
        dynamic = [i for i in range(len(examples)) if i not in static]
        batches = self.options.batch_argnums
        if batches is None:
            batches = dynamic[-1:]
        leaves = _jax.tree.leaves([examples[i] for i in _positions(batches, len(examples))])
        sizes = [leaf.shape[0] for leaf in leaves if getattr(leaf, "shape", ())]
        devices = max(as_cluster(self.cluster).devices_per_host)
        count = sensible_count(sizes, counts, devices)
        try:
            return _trace(self.fn, examples, self.options, count)
        except TraceError:
            if count == 1 or (counts is not None and 1 not in counts):
                raise
            return _trace(self.fn, examples, self.options, 1)

    def plan(self, *args: Any, progress: bool | Progress = False) -> PlannedStep:
        """Trace and plan with this function's cluster and method."""
        return self.trace(*args).plan(progress=progress)

    def compile(self, *args: Any, progress: bool | Progress = False) -> ParallelStep:
        """Trace, plan and load for arguments of this form; remembered."""
        key = self._key(args)
        if key not in self._steps:
            self._steps[key] = self.plan(*args, progress=progress).load(progress=progress)
        return self._steps[key]

    def __call__(self, *args: Any) -> Any:
        """Run one step, planning it first if arguments of this form are new."""
        return self.compile(*args)(*args)

    def _key(self, args: Sequence[Any]) -> Any:
        static = _positions(self.options.static_argnums, len(args))
        leaves, tree = _jax.tree.flatten([a for i, a in enumerate(args) if i not in static])
        forms: Any = tuple(
            (x.shape, x.dtype) if hasattr(x, "dtype") else type(x).__name__ for x in leaves
        )
        return tree, forms, tuple(args[i] for i in static)


@overload
def parallelize(
    fn: Callable[..., Any],
    *,
    cluster: ClusterLike = None,
    method: Method | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    gradient_reduction: Literal["mean", "sum"] = "mean",
    donate_state: bool = True,
    cache: CacheLike = True,
    workers: Hosts | None = None,
) -> ParallelFunction: ...
@overload
def parallelize(
    *,
    cluster: ClusterLike = None,
    method: Method | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    gradient_reduction: Literal["mean", "sum"] = "mean",
    donate_state: bool = True,
    cache: CacheLike = True,
    workers: Hosts | None = None,
) -> Callable[[Callable[..., Any]], ParallelFunction]: ...
def parallelize(
    fn: Callable[..., Any] | None = None,
    *,
    cluster: ClusterLike = None,
    method: Method | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    gradient_reduction: Literal["mean", "sum"] = "mean",
    donate_state: bool = True,
    cache: CacheLike = True,
    workers: Hosts | None = None,
) -> ParallelFunction | Callable[[Callable[..., Any]], ParallelFunction]:
    """Make a step of training, inference or evaluation run in parallel, as a decorator.

    Args:
        fn: `(state..., batch) -> result`, written for one device.
        cluster: what to plan for: a `Cluster`, the name of a preset, a file or a dictionary;
            by default the devices of this process.
        method: `AutoParallel()` by default.
        batch_argnums: the arguments that are split into micro-batches along dimension 0; by
            default the last one.
        static_argnums: arguments that are Python values.
        gradient_reduction: whether gradients of micro-batches are averaged or summed; means
            nothing for a step without gradients, whose results are those of the whole batch.
        donate_state: a call uses up the state it is given (if it came from an earlier call).
        cache: whether plans and compiled programs are kept on disk and found again, or the
            folder to keep them in.
        workers: where to start workers, such as `ThreadWorkers()`; None runs plans in this
            process.

    Example:
        >>> @alpa_mlir.parallelize(cluster="cpu-test")   # doctest: +SKIP
        ... def train_step(state, batch): ...
        >>> state, loss = train_step(state, batch)       # doctest: +SKIP
    """
    options = Options(
        batch_argnums, static_argnums, gradient_reduction, donate_state, cache, workers
    )
    if fn is None:
        return lambda function: ParallelFunction(function, cluster, method, options)
    return ParallelFunction(fn, cluster, method, options)


def compile(
    fn: Callable[..., Any],
    *example_args: Any,
    cluster: ClusterLike = None,
    method: Method | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    gradient_reduction: Literal["mean", "sum"] = "mean",
    donate_state: bool = True,
    cache: CacheLike = True,
    workers: Hosts | None = None,
    progress: bool | Progress = False,
) -> ParallelStep:
    """Trace, plan and load a step for arguments like the examples; see `parallelize`.

    Args:
        example_args: arrays, or `jax.ShapeDtypeStruct`s; a batch at its full size.
        progress: True for a progress bar, or a function of (done, total, label).

    Returns:
        The step, called like `fn`.

    Raises:
        AlpaError: every stage has its own named errors.
    """
    options = Options(
        batch_argnums, static_argnums, gradient_reduction, donate_state, cache, workers
    )
    function = ParallelFunction(fn, cluster, method, options)
    return function.compile(*example_args, progress=progress)


def _cache(choice: CacheLike) -> PlanCache | None:
    folder = chosen_folder(choice)
    return None if folder is None else PlanCache(folder)


def _signature_json(traced: Traced, method: Method) -> str:
    """The signature with the shardings that the method's user has decided."""
    fields: dict[str, Any] = json.loads(traced.signature.to_json())
    # An input of the compiler's own comes last, and has no pin.
    pins = pinned_axes(method.in_shardings, method.mesh_axes, traced.in_tree)
    for item, pin in zip(fields["inputs"], pins, strict=False):
        if pin is None:
            continue
        rank = len(item["shape"])
        if len(pin) > rank:
            raise MethodError(
                f"a sharding of {len(pin)} dimensions for {rank}",
                where=item["name"],
                fix="give at most one entry for each dimension",
            )
        item["sharding"] = pin + [[]] * (rank - len(pin))
    return json.dumps(fields)


def _trace(fn: Callable[..., Any], args: Sequence[Any], options: Options, count: int) -> Traced:
    return tracing.trace(
        fn,
        *args,
        num_micro_batches=count,
        batch_argnums=options.batch_argnums,
        static_argnums=options.static_argnums,
        gradient_reduction=options.gradient_reduction,
    )


def _positions(argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    return tuple(n % count for n in numbers) if count else ()


def _shapes(tree: Any) -> Any:
    """Shapes and dtypes in place of arrays, so that a plan keeps no data alive."""

    def shape(x: Any) -> Any:
        if not isinstance(x, jax.Array | WholeArray):
            return x
        weak = getattr(x, "weak_type", False)
        return _jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=weak)

    return _jax.tree.map(shape, tree)
