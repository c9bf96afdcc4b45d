"""A step on its way to devices: traced, planned, loaded; or all of it when it is called."""

from __future__ import annotations

import inspect
import logging
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, update_wrapper, wraps
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import jax
from alpa_runtime import trees
from alpa_runtime.arrays import WholeArray
from alpa_runtime.cache import CACHE, CacheLike, chosen_folder
from alpa_runtime.calling_convention import CallingConvention
from alpa_runtime.errors import FLAG, FUNCTION, ArgumentMismatchError, check_type
from alpa_runtime.jax_internals import is_transformed
from alpa_runtime.parallel_step import (
    Caller,
    ParallelStep,
    Progress,
    load_on,
    on_terminal,
    phase,
)
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import PlanLike, Tried, plan_summary, read_plan, tried_text
from alpa_runtime.plan.strategy import strategy_text
from alpa_runtime.worker_group import Hosts
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from alpa_mlir import session
from alpa_mlir.cluster import CLUSTER, Cluster, ClusterLike, as_cluster
from alpa_mlir.compiler import Module, compiler_version
from alpa_mlir.errors import MethodError, MicroBatchError
from alpa_mlir.methods.automatic import AutoParallel
from alpa_mlir.methods.method import Method
from alpa_mlir.search.frontier import AXES, Axis, Frontier, find_frontier
from alpa_mlir.search.planner import find_plan
from alpa_mlir.search.warm_start import WarmStart
from alpa_mlir.trace import tracing
from alpa_mlir.trace.call_form import Call, CallForm, Reader, Static, difference
from alpa_mlir.trace.layer_markers import SCOPE as BOUNDARY_SCOPE
from alpa_mlir.trace.objects import is_object
from alpa_mlir.trace.tracing import Traced, known_positions, name_of


@dataclass(frozen=True)
class Options:
    """How a function is to be read and run; see `parallelize`."""

    batch_argnums: int | Sequence[int] | None = None
    static_argnums: int | Sequence[int] | Literal["auto"] = ()
    micro_batch_semantics: Literal["exact", "relaxed", "independent"] | None = None
    donate_state: bool = True
    cache: CacheLike = True
    workers: Hosts | None = None
    donate_argnums: int | Sequence[int] | Literal["auto"] = "auto"
    static_argnames: tuple[str, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None

    def for_call(self, call: Call, reader: Reader) -> Options:
        """The same, where arguments are said by their numbers in a call."""
        batches = self.batch_argnums
        if batches is not None:
            batches = reader.numbers(batches, call)
        donated: tuple[int, ...] | Literal["auto"] = "auto"
        if self.donate_argnums != "auto":
            assert not isinstance(self.donate_argnums, str)
            donated = reader.numbers(self.donate_argnums, call)
        if self.donate_argnames:
            by_name = [i for i, name in enumerate(call.names) if name in self.donate_argnames]
            donated = (*(() if donated == "auto" else donated), *by_name)
        return replace(
            self,
            batch_argnums=batches,
            donate_argnums=donated,
            donate_argnames=(),
            static_argnums=call.static,
            static_argnames=(),
        )

    def for_traced(self, traced: Traced, names: Sequence[str]) -> Options:
        """The same, where the step is known: whether it uses up its state.

        Raises:
            MethodError: `donate_argnums` has only a part of the state that the step returns anew.
        """
        if self.donate_argnums == "auto":
            return self
        count = len(names)
        given = set(known_positions(self.donate_argnums, count))
        dynamic = [i for i in range(count) if i not in known_positions(self.static_argnums, count)]
        carried = {
            dynamic[owner]
            for owner, item in zip(_owners(traced.in_tree), traced.signature.inputs, strict=True)
            if item.carried_by is not None
        }
        if given and carried - given:
            raise MethodError(
                f"donate {', '.join(names[i] for i in sorted(given))}, but the step returns "
                f"{', '.join(names[i] for i in sorted(carried))} anew",
                where="donate_argnums",
                fix="donate all of them, or none, or give donate_state",
            )
        return replace(self, donate_state=bool(given), donate_argnums="auto")


def _owners(in_tree: Any) -> list[int]:
    """For each leaf of the arguments, which one it is of."""
    numbered = trees.unflatten(in_tree, range(in_tree.num_leaves))
    return [i for i, argument in enumerate(numbered) for _ in trees.leaves(argument)]


@dataclass(frozen=True)
class TracedStep:
    """A step as the compiler will read it; `plan` goes on.

    Attributes:
        traced: text, signature and trees.
        fn: the function; None for a step that was read from a file.
        cluster, method: what `plan` takes by default.
        caller: how the function is called, where the step takes other arguments.
    """

    fn: Callable[..., Any] | None = field(repr=False)
    options: Options
    traced: Traced
    cluster: ClusterLike = None
    method: Method = field(default_factory=AutoParallel)
    caller: Caller | None = field(default=None, repr=False)

    def as_text(self) -> str:
        """The StableHLO module."""
        return self.traced.as_text()

    def plan(
        self,
        cluster: ClusterLike = None,
        method: Method | None = None,
        *,
        start: PlanLike | str | Path | None = None,
        cache: CacheLike | None = None,
        progress: bool | Progress = False,
    ) -> PlannedStep:
        """Find the best plan for a cluster.

        Args:
            cluster: a `Cluster`, the name of a preset, a file, a dictionary; by default that of
                the function, and without one the devices of this process.
            method: by default that of the function, and without one `AutoParallel()`.
            start: a plan from before, its step, or the folder where it was saved, for this step or
                one like it, on this cluster or another one. The search looks near it, which takes
                seconds: its own stages, where there may be such, and others on meshes of its sizes
                and the next ones, with numbers of micro-batches next to its own. `Plan.diff` says
                what changed.
            cache: whether plans are kept on disk and found again, or the folder to keep them
                in; by default that of the function. docs/running.md says where they are.
            progress: True for a bar that says what is being tried, or a function of
                (candidates tried, candidates known of, what is tried).

        Raises:
            ClusterFileError, MethodError, MicroBatchError, UnsupportedOpError,
            InfeasiblePlanError: by the cause.
            DevicesError: the method's finalists cannot be measured in this process.
        """
        check_type("TracedStep.plan", "cluster", cluster, CLUSTER)
        check_type("TracedStep.plan", "method", method, Method, None)
        check_type("TracedStep.plan", "cache", cache, CACHE, None)
        check_type("TracedStep.plan", "progress", progress, FLAG, FUNCTION)
        near = None
        if start is not None:
            near = WarmStart.of(read_plan("TracedStep.plan", start, "start"))
        described = as_cluster(self.cluster if cluster is None else cluster)
        return find_step(
            self,
            described,
            self.method if method is None else method,
            near,
            chosen_folder(self.options.cache if cache is None else cache),
            progress,
        )

    def lower(self) -> PlannedStep:
        """The plan, as JAX calls the stage behind a trace: `plan`."""
        return self.plan()

    def frontier(
        self,
        cluster: ClusterLike = None,
        method: Method | None = None,
        *,
        over: Axis | Sequence[Axis] = AXES,
        price: float | None = None,
        tokens: int | None = None,
        most_points: int = 6,
        progress: bool | Progress = False,
    ) -> Frontier:
        """What a step takes with other memory of the devices, and on parts of the cluster.

        Args:
            cluster, method: as of `plan`; finalists are not measured.
            over: `"memory"`, from the least that any plan fits in to where more buys nothing;
                `"devices"`, on 1, 2, 4, .. devices of a host, hosts and racks up to all of them;
                or both.
            price: of a device for an hour, in any currency; costs are then in it.
            tokens: of a step; by default counted in its batch, as the frontier says.
            most_points: searches over memory end when so many plans are known.
            progress: True for a bar, or a function of (searches done, searches known of, what is
                tried now).

        Raises:
            ClusterFileError, MethodError, MicroBatchError, UnsupportedOpError,
            InfeasiblePlanError: by the cause; the last one where no part of the cluster has a plan,
                however much memory there is.

        Example:
            >>> found = train_step.trace(state, batch).frontier(price=2.5)     # doctest: +SKIP
            >>> [(p.num_devices, p.step_seconds) for p in found.devices]       # doctest: +SKIP
            [(8, 2.4), (16, 1.3), (32, 0.9)]
        """
        where = "TracedStep.frontier"
        check_type(where, "cluster", cluster, CLUSTER)
        check_type(where, "method", method, Method, None)
        check_type(where, "progress", progress, FLAG, FUNCTION)
        axes: tuple[Any, ...] = (over,) if isinstance(over, str) else tuple(over)
        if not axes or not set(axes) <= set(AXES):
            raise MethodError(
                f"over {over!r}", where=where, fix=f"use {' or '.join(map(repr, AXES))}, or both"
            )
        for name, value in (("price", price), ("tokens", tokens), ("most_points", most_points)):
            given: Any = value
            if given is not None and not (_is_number(given) and 0 < given < float("inf")):
                raise MethodError(f"{name} {given!r}", where=where, fix="use a positive number")
        described = as_cluster(self.cluster if cluster is None else cluster)
        base = self.method if method is None else method
        if self.options.micro_batch_semantics is not None:
            base = replace(base, micro_batch_semantics=self.options.micro_batch_semantics)
        marked = cache(lambda: _marked_layers(self.traced))

        def settle(part: Cluster) -> Method:
            return base.settled(part, marked).of_rounds(self.traced.rounds)

        return find_frontier(
            self.traced,
            described,
            settle,
            over=axes,
            price=price,
            tokens=tokens,
            most_points=most_points,
            progress=progress,
        )

    def with_plan(self, plan: PlanLike | str | Path, cluster: ClusterLike = None) -> PlannedStep:
        """Take a plan that was made before, if it is for this step.

        Args:
            plan: a plan, its step, or the folder where it was saved.
            cluster: what it has to be made for; by default that of the function, and without one
                the plan's own.

        Raises:
            PlanMismatchError: the plan is for another step or cluster, or made by another
                compiler; names the first difference.
        """
        plan = read_plan("TracedStep.with_plan", plan)
        traced = self.traced
        wanted = self.cluster if cluster is None else cluster
        described = None if wanted is None else as_cluster(wanted)
        plan.check(traced=traced, cluster=described, compiler=compiler_version())
        return PlannedStep(traced, plan, self.options, self.caller)


@dataclass(frozen=True)
class PlannedStep:
    """A plan together with the trees of the function it was made from; `load` goes on.

    Attributes:
        traced, plan: the step and its plan.
        caller: how the function is called, where the step takes other arguments.
    """

    traced: Traced = field(repr=False)
    plan: Plan
    options: Options
    caller: Caller | None = field(default=None, repr=False)

    @property
    def form(self) -> CallingConvention:
        """How the plan is called."""
        return self.traced.form_for(self.plan.num_micro_batches, self.plan.added_inputs)

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
        from alpa_mlir.simulator.figures import figures_of

        plan, tried = self.plan, tried_text(self.tried)
        explanations = [plan.explanation(index) for index in range(len(plan.stages))]
        figures = figures_of(plan, explanations=explanations).lines()
        text = plan.as_text(figures=figures, explanations=explanations)
        return f"{text.rstrip()}\n{tried}\n" if tried else text

    def called(self) -> PlannedStep:
        """The same, where the plan says how this step is called. A kept plan may have been made
        for other containers, other static values that change nothing, or another `donate_state`."""
        call = self.form.to_info(self.options.donate_state)
        by_name = 0 if self.caller is None else self.caller.by_name
        return replace(self, plan=replace(self.plan, call=replace(call, by_name=by_name)))

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
            workers: where to start workers; by default as the function says, without that as
                `init` said, and without that the plan runs in this process.
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
        # Devices that are named are those of this process.
        default = session.default_workers(hosts) if devices is None else hosts
        loaded = load_on(self.plan, devices, default, donate, progress, backend, kept)
        step = ParallelStep(self.form, loaded, self.caller)
        if default is not hosts:
            session.close_at_shutdown(loaded)
        return step

    def compile(self) -> ParallelStep:
        """The step on its devices, as JAX calls this stage: `load`."""
        return self.load()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_OTHER_ROWS = (
    "the step's own loop of gradient accumulation is planned as one pass over the whole batch, "
    "without micro-batches or stages: its rounds take other rows than micro-batches, or what it "
    "differentiates is not split. Rounds may take rows one behind another, "
    "x.reshape(rounds, -1, *x.shape[1:]), or every so many, "
    "x.reshape(-1, rounds, *x.shape[1:]).swapaxes(0, 1), of the batch's arguments"
)


def trace_step(
    fn: Callable[..., Any],
    args: Sequence[Any],
    options: Options,
    cluster: ClusterLike = None,
    carried: Mapping[int, int | None] | None = None,
) -> Traced:
    """A step as its options say, lowered for the devices of the cluster."""
    return tracing.trace(
        fn,
        *args,
        batch_argnums=options.batch_argnums,
        static_argnums=known_positions(options.static_argnums, len(args)),
        carried=carried,
        compute_capability=_gpus_elsewhere(cluster),
    )


def _gpus_elsewhere(cluster: ClusterLike) -> str | None:
    """Compute capability of a cluster of CUDA devices that are not this process's.

    A process with as many devices as the cluster has is where the step is tried. One CPU says
    nothing: every process has it.
    """
    if cluster is None:
        return None
    described, here = as_cluster(cluster), _jax.devices()
    is_here = len(here) >= described.num_devices and (len(here) > 1 or here[0].platform != "cpu")
    return None if is_here else described.compute_capability


def find_step(
    step: TracedStep,
    cluster: Cluster,
    method: Method,
    near: WarmStart | None = None,
    folder: Path | None = None,
    progress: bool | Progress = False,
    *,
    explains: bool = True,
) -> PlannedStep:
    """What `TracedStep.plan` does with checked arguments.

    Args:
        explains: whether an error is to say what would fit, which takes searches.
    """
    if step.options.micro_batch_semantics is not None:
        method = replace(method, micro_batch_semantics=step.options.micro_batch_semantics)
    method = method.settled(cluster, lambda: _marked_layers(step.traced))
    if near is not None:
        near.check(method)
    in_rounds = method.of_rounds(step.traced.rounds)
    try:
        plan = find_plan(step.traced, cluster, in_rounds, folder, progress, near, explains=explains)
    except MicroBatchError as error:
        if step.traced.with_loops is None or in_rounds.num_micro_batches in (
            method.num_micro_batches,
            None,
        ):
            raise
        warnings.warn(
            f"the step's own loop of gradient accumulation stays a loop: {error.what}",
            stacklevel=3,
        )
        traced = step.traced.with_loops()
        plan = find_plan(traced, cluster, method, folder, progress, near, explains=explains)
        return PlannedStep(traced, plan, step.options, step.caller).called()
    if step.traced.rounds > 1 and plan.schedule == "inference":
        warnings.warn(_OTHER_ROWS, stacklevel=3)
    return PlannedStep(step.traced, plan, step.options, step.caller).called()


def _marked_layers(traced: Traced) -> int:
    """How many layers the step's own marks make; 0 if it has none."""
    if BOUNDARY_SCOPE not in traced.text:
        return 0
    module = Module(traced.text).annotate(traced.signature.to_json())
    module.run("alpa-import")
    marks = module.as_text().count("alpa.boundary")
    return marks + 1 if marks else 0


_jax: Any = jax
_log = logging.getLogger("alpa_mlir")


class ParallelFunction:
    """A function that is planned when it is first called, once for each form of arguments.

    The steps can be taken one by one: `f.trace(*args).plan(cluster).load()`, or in JAX's words
    `f.lower(*args).compile()`.

    Within a transformation of JAX (`jax.jit`, `jax.grad`, `jax.vmap`, `jax.eval_shape`) it is the
    function itself, without a plan. In a class it is a method: an object's own is called with the
    object as first argument.

    Raises:
        MethodError: the function is a method of one object of flax.nnx.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        cluster: ClusterLike = None,
        method: Method | None = None,
        options: Options | None = None,
    ) -> None:
        _refuse_bound(fn)
        update_wrapper(self, fn, updated=())
        self.original: Callable[..., Any] = fn
        self.fn: Callable[..., Any] = _by_position(fn)
        self.cluster = cluster
        self.method: AutoParallel | Method = AutoParallel() if method is None else method
        self.options: Options = Options() if options is None else options
        self._reader = Reader(self.fn, self.options.static_argnums, self.options.static_argnames)
        self._reader.check_names(self.options.donate_argnames, "donate_argnames")
        self._reader.check_numbers(self.options.donate_argnums, "donate_argnums")
        self._steps: dict[Any, ParallelStep] = {}
        self._last: ParallelStep | None = None
        self._last_key: Any = None
        self._said: set[str] = set()
        self._taken = ""  # What the arguments of the last trace were taken for.
        session.remember(self)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def trace(self, *args: Any, **named: Any) -> TracedStep:
        """Trace at the whole batch.

        Raises:
            TraceError: the function or its arguments do not fit.
        """
        return self._trace(self._reader.read(args, named))

    def _trace(self, call: Call) -> TracedStep:
        options = self.options.for_call(call, self._reader)
        form = CallForm(self.fn, call)
        arguments = form.arguments(call)
        examples = tuple(
            arg if i in call.static else shapes_of(arg) for i, arg in enumerate(arguments)
        )
        _check_shardings(options, call, examples)
        fn = _with_shardings(form.function(), call.static, options)
        cluster = session.default_cluster(self.cluster)
        traced = trace_step(fn, examples, options, cluster, form.carried)
        options = options.for_traced(traced, call.names)
        self._taken = _classified(
            self._reader.name, call, traced, options.donate_state, options.batch_argnums is None
        )
        self._say(self._taken, shown=False)
        caller = StepCaller(self._reader, call, form, self.original)
        return TracedStep(fn, options, traced, cluster, self.method, caller)

    def lower(self, *args: Any, **named: Any) -> PlannedStep:
        """Trace and plan, as JAX calls the stage before `compile`."""
        return self.plan(*args, **named)

    def plan(self, *args: Any, progress: bool | Progress = False, **named: Any) -> PlannedStep:
        """Trace and plan with this function's cluster and method."""
        with phase("tracing", progress):
            traced = self.trace(*args, **named)
        return traced.plan(progress=progress)

    def compile(self, *args: Any, progress: bool | Progress = False, **named: Any) -> ParallelStep:
        """Trace, plan and load for arguments of this form; remembered."""
        return self._step(self._reader.read(args, named), progress)

    def _step(self, call: Call, progress: bool | Progress) -> ParallelStep:
        key = self._key(call)
        try:
            found = self._steps.get(key)
        except TypeError:
            call.check_hashable()
            raise
        if found is None:
            name, begin = self._reader.name, time.monotonic()
            if self._last_key is not None:
                why = difference(key[-1], self._last_key[-1])
                _announce(f"{name} is traced and planned anew: {why}")
            found = self._steps[key] = self._compile(call, progress)
            seconds = time.monotonic() - begin
            _show(self._taken)
            _announce(
                f"{name} is ready after {seconds:.1f} s: {_runs_text(found.plan)}; memory: "
                f"{found.memory_text()}"
            )
        self._last, self._last_key = found, key
        return found

    def _compile(self, call: Call, progress: bool | Progress) -> ParallelStep:
        with phase("tracing", progress):
            traced = self._trace(call)
        return traced.plan(progress=progress).load(progress=progress)

    def get_executable(self, *args: Any, **named: Any) -> ParallelStep:
        """The step for arguments of this form, planned and compiled, but not run: `compile`.

        Args:
            args: arrays, or trees of `jax.ShapeDtypeStruct`s.
        """
        return self.compile(*args, **named)

    def get_last_executable(self) -> ParallelStep | None:
        """The step that was compiled or called last; None before."""
        return self._last

    def preshard_dynamic_args(self, *args: Any) -> tuple[Any, ...]:
        """The arguments, copied to where the step reads them first: `ParallelStep.place`."""
        return self.compile(*args).place(*args)

    def clear(self, session: int | None = None) -> None:
        """Forget the steps, or those of one session (`init`); the next call plans anew, or finds
        its plan on disk."""
        kept = {k: v for k, v in self._steps.items() if session not in (None, k[0])}
        self._steps = kept
        if self._last is not None and not any(step is self._last for step in kept.values()):
            self._last = self._last_key = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run one step, planning it first if arguments of this form are new."""
        if is_transformed():
            self._say(
                f"{self._reader.name} is called within a transformation of JAX, and is part of it: "
                "not planned by itself"
            )
            return self.original(*args, **named)
        call = self._reader.read(args, named)
        return self._step(call, on_terminal()).call(call)

    def _say(self, text: str, *, shown: bool = True) -> None:
        if text not in self._said:
            self._said.add(text)
            _announce(text, shown=shown)

    def _key(self, call: Call) -> tuple[Any, ...]:
        return session.session_of(self.cluster, self.options.workers), call.key


def _announce(text: str, *, shown: bool = True) -> None:
    """Log a line, and show it."""
    _log.info("%s", text)
    if shown:
        _show(text)


def _show(text: str) -> None:
    """Print a line on a terminal where the log is not shown."""
    if text and on_terminal() and not _log.isEnabledFor(logging.INFO):
        print(f"alpa_mlir: {text}", file=sys.stderr)


def _runs_text(plan: Plan) -> str:
    words = strategy_text(plan)
    summary = f"{plan_summary(plan)}{words and f', {words}'}"
    return f"{summary}, for cluster {plan.cluster['name']}" if "name" in plan.cluster else summary


class StepCaller:
    """How calls of a function become those of a step that was made for one of them."""

    def __init__(
        self, reader: Reader, call: Call, form: CallForm, original: Callable[..., Any]
    ) -> None:
        self._reader = reader
        self._made_for = call
        self._form = form
        self._original = original

    @property
    def by_name(self) -> int:
        names, count = self._made_for.names, self._made_for.by_position
        alone = {p.name for p in _parameters(self._original) if p.kind is p.KEYWORD_ONLY}
        first = next((i for i, name in enumerate(names[:count]) if name in alone), count)
        return len(names) - first

    def check_static(self, args: Sequence[Any]) -> None:
        made_for = self._made_for
        for i in made_for.static:
            value = Static(made_for.values[i])
            if i < len(args) and Static(args[i]) != value:
                raise ArgumentMismatchError(
                    f"another static value of {made_for.names[i]}: {Static(args[i])!r}, was "
                    f"{value!r}",
                    where=self._reader.name,
                    fix="pass the same, or compile the step again",
                )

    def read(self, args: Sequence[Any], named: Mapping[str, Any]) -> Call:
        call = self._reader.read(args, named)
        if call.python_values != self._made_for.python_values:
            raise ArgumentMismatchError(
                difference(call.key, self._made_for.key),
                where=self._reader.name,
                fix="pass the same, or compile the step again",
            )
        return call

    def arguments(self, call: Any) -> tuple[Any, ...]:
        return self._form.arguments(call)

    def placed(self, call: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._form.with_arrays(call, arrays)

    def result(self, call: Any, result: Any) -> Any:
        return self._form.finish(call, result)


def _classified(name: str, call: Call, traced: Traced, donates: bool, is_found: bool) -> str:
    """What the arguments of a step were taken for.

    Args:
        is_found: whether nobody said which ones are batches.
    """
    inputs = iter(zip(_owners(traced.in_tree), traced.signature.inputs, strict=True))
    dynamic = [i for i in range(len(call.names)) if i not in call.static]
    kinds: dict[int, set[str]] = {i: set() for i in dynamic}
    for owner, item in inputs:
        carried = item.carried_by is not None
        kinds[dynamic[owner]].add("carried" if carried else item.kind)
    groups: dict[str, list[str]] = {"state": [], "batch": [], "same": [], "static": []}
    for i, argument in enumerate(call.names):
        if i in call.static:
            groups["static"].append(f"{argument}={Static(call.values[i])!r}")
        elif "carried" in kinds[i]:
            groups["state"].append(argument)
        else:
            groups["batch" if "batch" in kinds[i] else "same"].append(argument)
    parts = [
        (groups["state"], "state (donated)" if donates else "state"),
        (groups["batch"], f"the batch of {traced.signature.batch_size} rows"),
        (groups["same"], "whole for every micro-batch"),
        (groups["static"], "static"),
    ]
    said = [f"{', '.join(names)} as {what}" for names, what in parts if names]
    alike = _alike(call, traced) if is_found else []
    if alike:
        said.append(f"batch_argnums says otherwise, if {' or '.join(alike)} holds examples, too")
    return f"{name} takes {'; '.join(said)}"


def _alike(call: Call, traced: Traced) -> list[str]:
    """Arguments that are carried and might be batches: single arrays with as many rows."""
    rows = traced.signature.batch_size
    has_batch = any(x.kind == "batch" for x in traced.signature.inputs)
    return [
        x.name
        for x in traced.signature.inputs
        if has_batch
        and x.carried_by is not None
        and x.shape[:1] == (rows,)
        and x.name in call.names
    ]


def _check_shardings(options: Options, call: Call, arguments: Sequence[Any]) -> None:
    """Whether the shardings that are given fit the arguments, of which they are a tree, or its
    beginning.

    Raises:
        MethodError: names the argument.
    """
    for option in ("in_shardings", "out_shardings"):
        _check_are_shardings(option, getattr(options, option))
    dynamic = [i for i in range(len(arguments)) if i not in call.static]
    given: Any = options.in_shardings
    if _is_sharding(given):
        given = (given,) * len(dynamic)
    names = [call.names[i] for i in dynamic]
    is_row = type(given) in (tuple, list)
    if not is_row or len(given) != len(dynamic):
        count = len(given) if is_row else f"a {type(given).__name__}"
        raise MethodError(
            f"got {count} for {len(dynamic)} arguments",
            where="in_shardings",
            fix=f"give a tuple of {len(dynamic)}, for {', '.join(names)}; None leaves one free",
        )
    for i, name, prefix in zip(dynamic, names, given, strict=True):
        leaves, structure = trees.flatten(arguments[i])
        try:
            shardings = trees.broadcast(prefix, structure, _is_sharding)
        except ValueError:
            raise MethodError(
                f"the tree for {name} is not that of the argument, nor its beginning",
                where="in_shardings",
                fix="give one sharding for the whole argument, or a tree like it",
            ) from None
        paths = (path for path, _ in trees.flatten_with_path(arguments[i])[0])
        for path, leaf, sharding in zip(paths, leaves, shardings, strict=True):
            if not isinstance(sharding, NamedSharding):
                continue
            try:
                sharding.shard_shape(tuple(leaf.shape))
            except ValueError:
                sizes = dict(sharding.mesh.shape)
                raise MethodError(
                    f"{sharding.spec} over {sizes} does not split {list(leaf.shape)} evenly",
                    where=f"in_shardings of {name}{trees.text(path)}",
                    fix="split a dimension that the axes divide, or none",
                ) from None


def _check_are_shardings(option: str, given: Any) -> None:
    has_mesh = not jax.sharding.get_abstract_mesh().empty
    for _, sharding in trees.flatten_with_path(given, _is_sharding)[0]:
        if isinstance(sharding, PartitionSpec) and not has_mesh:
            raise MethodError(
                f"{sharding} is of no mesh",
                where=option,
                fix="give jax.sharding.NamedSharding(mesh, spec), whose mesh may be an "
                "AbstractMesh, or set a mesh by jax.set_mesh",
            )
        if not _is_sharding(sharding):
            raise MethodError(
                f"{sharding!r} is no sharding",
                where=option,
                fix="give a tree of jax.sharding.Shardings and None",
            )


def _is_sharding(value: Any) -> bool:
    return value is None or isinstance(value, Sharding | PartitionSpec)


def _with_shardings(
    fn: Callable[..., Any], static: Sequence[int], options: Options
) -> Callable[..., Any]:
    """The function with the shardings that its arguments and results are to have."""
    given = {
        name: value
        for name, value in (
            ("in_shardings", options.in_shardings),
            ("out_shardings", options.out_shardings),
        )
        if value is not None
    }
    if not given:
        return fn
    return _jax.jit(fn, static_argnums=tuple(static), **given)


def _refuse_bound(fn: Any) -> None:
    """A method of an object of flax.nnx: as no argument, its arrays would be constants."""
    owner = getattr(fn, "__self__", None)
    if owner is not None and is_object(owner):
        kind, name = type(owner).__name__, name_of(fn)
        raise MethodError(
            f"a method of one {kind}, whose arrays would be constants of the step",
            where=name,
            fix=f"decorate the method in its class, or give {kind}.{name}, which takes the object "
            "as its first argument",
        )


def _by_position(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose keyword-only arguments may be given by position, in their order, up to one
    without a default behind one with a default."""
    parameters = _parameters(fn)
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not keywords or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return fn
    first = parameters.index(keywords[0])

    @wraps(fn)
    def call(*args: Any, **named: Any) -> Any:
        by_name = {p.name: x for p, x in zip(keywords, args[first:], strict=False)}
        return fn(*args[:first], **by_name, **named)

    function: Any = call
    function.__name__ = name_of(fn)
    function.__signature__ = inspect.Signature(_with_positions(parameters))
    return call


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """Of a function, as far as they are known."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return []


def _with_positions(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Parameters of which keyword-only ones have a position, as far as defaults allow."""
    found: list[inspect.Parameter] = []
    has_default = ends = False
    for parameter in parameters:
        is_required = parameter.default is parameter.empty
        if parameter.kind is parameter.KEYWORD_ONLY:
            ends |= has_default and is_required
            if not ends:
                parameter = parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD)
        has_default |= not is_required
        found.append(parameter)
    return found


def shapes_of(tree: Any) -> Any:
    """Shapes and dtypes in place of arrays, so that a plan keeps no data alive."""

    def shape(x: Any) -> Any:
        if not isinstance(x, jax.Array | WholeArray):
            return x
        weak = getattr(x, "weak_type", False)
        return _jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=weak)

    return _jax.tree.map(shape, tree)
