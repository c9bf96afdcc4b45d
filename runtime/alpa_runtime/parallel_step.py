"""A plan as a step that is called like the function it was made from; needs no compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alpa_runtime.cache import CACHE, CacheLike
from alpa_runtime.calling_convention import CallingConvention, positional
from alpa_runtime.checkpoint.save_restore import StateTarget
from alpa_runtime.errors import FLAG, FUNCTION, PATH, ROW, TEXT, DevicesError, check_type
from alpa_runtime.execution.loaded_plan import LoadedPlan
from alpa_runtime.execution.loaded_plan import load as load_plan
from alpa_runtime.jax_internals import without_context_mesh
from alpa_runtime.plan import Plan
from alpa_runtime.step_arguments import (
    initial_state,
    input_placement,
    output_placement,
    placed_arguments,
    step_state,
)
from alpa_runtime.step_trace import ChromeEvents, Recording
from alpa_runtime.worker_group import HOSTS, Hosts
from alpa_runtime.workers.driver import DistributedPlan

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ParallelStep:
    """A step on its devices: called like the function it was made from."""

    form: CallingConvention = field(repr=False)
    loaded: LoadedPlan | DistributedPlan = field(repr=False)

    @property
    def plan(self) -> Plan:
        return self.loaded.plan

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run one step; the arguments and the result have the trees of the function.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the step was made for.
        """
        if named:
            args = positional(self.form.parameters, args, named, self.form.name)
        with without_context_mesh():
            return self.form.unflatten_results(self.loaded(self.form.flatten_args(*args)))

    def init(self, init_fn: Callable[..., Any], *args: Any) -> Any:
        """The first state, made by a function where the step wants it.

        No device and no host ever holds all of it: each mesh runs the part of the function that
        makes the leaves that it owns, sharded as they are wanted. The values are those of
        `jax.jit(init_fn)(*args)`.

        Args:
            init_fn: `(*args) -> state`, of JAX's functions; several arguments of the step that
                are state are a tuple.
            args: small arrays, such as a key.

        Raises:
            TraceError: the function cannot be traced.
            ArgumentMismatchError: it makes another state than the step takes; names the leaf.

        Example:
            >>> state = train_step.init(create_state, jax.random.key(0))   # doctest: +SKIP
        """
        check_type("init", "init_fn", init_fn, FUNCTION)
        state = step_state(self.form, self.plan)
        return initial_state(init_fn, args, state, self.plan, self.loaded)

    def place(self, *args: Any) -> tuple[Any, ...]:
        """The arguments, copied to where the step reads them first.

        A step takes them without another copy. It uses up the state among them, as that of
        earlier calls.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the step was made for.

        Example:
            >>> state, batch = train_step.place(state, batch)              # doctest: +SKIP
        """
        with without_context_mesh():
            return placed_arguments(self.form, self.plan, self.loaded, args)

    def get_input_placement_specs(self) -> tuple[Any, ...]:
        """Where the step wants its arguments: a tree of `PlacementSpec`s for each; None for those
        that are Python values."""
        return input_placement(self.form, self.plan)

    def get_output_placement_specs(self) -> Any:
        """Where the step leaves its results: a tree of `PlacementSpec`s."""
        return output_placement(self.form, self.plan)

    def state_target(self) -> StateTarget:
        """The state that the step takes: what `restore_checkpoint(folder, step)` asks for. Several
        arguments that are state are a tuple."""
        state, loaded = step_state(self.form, self.plan), self.loaded
        if isinstance(loaded, DistributedPlan):
            return state.target(self.plan, lambda _: None, loaded)
        return state.target(self.plan, loaded.sharding_of_input)

    def record(
        self, path: str | Path | None = None, simulated: ChromeEvents | None = None
    ) -> Recording:
        """Record the steps that are called within `with`, action by action, on every worker.

        Args:
            path: where a trace for Perfetto or chrome://tracing is written at the end.
            simulated: what stands beside it in the same file.

        Example:
            >>> timeline = alpa_mlir.simulate(step.plan)                      # doctest: +SKIP
            >>> with step.record("trace.json", timeline) as recording:        # doctest: +SKIP
            ...     state, loss = step(state, batch)
            >>> recording.trace.step_seconds                                  # doctest: +SKIP
            (0.0184,)
        """
        check_type("record", "path", path, PATH, None)
        return Recording(self.loaded, path, simulated)

    def as_text(self) -> str:
        """The order in which the driver starts work, or the workers; XLA's memory of each
        function."""
        return self.loaded.as_text()

    def close(self) -> None:
        """End the workers, if the step has any; arrays that live there are gone."""
        self.loaded.close()


def load(
    plan: Plan | str | Path,
    *,
    arguments: Any = None,
    result: Any = None,
    devices: Sequence[Any] | None = None,
    workers: Hosts | None = None,
    donate_state: bool | None = None,
    progress: bool | Progress = False,
    backend: str = "auto",
    cache: CacheLike = True,
) -> ParallelStep:
    """A saved plan as a step, called like the function it was made from, without tracing it.

    Args:
        plan: the folder that `save` wrote, or a plan.
        arguments: an example of the tuple of arguments that are not static, whose leaves may be
            anything; needed where their trees hold classes that a plan cannot store.
        result: an example of the result, needed for the same reason.
        devices: `devices[i]` is device i of the plan; by default `jax.devices()`.
        workers: where to start workers, such as `ThreadWorkers()`; None runs the plan in this
            process.
        donate_state: whether a call uses up its state; by default as when the plan was made.
        progress: True for a progress bar, or a function of (done, total, label).
        backend: who compiles the stages, one of `"auto"`, `"xla"`, `"iree"`; see docs/backends.md.
        cache: whether compiled programs are kept on disk and found again, or the folder to keep
            them in.

    Raises:
        BackendError: the backend is not installed, or cannot compile a stage.
        PlanFormatError: the folder holds no plan of this version.
        PlanMismatchError: its parts contradict each other, or its trees need an example.
        DevicesError: there are fewer devices than the plan needs.
        PlacementError, WorkerError: the workers cannot hold the plan, or could not be started.

    Example:
        >>> step = load("my_plan")             # doctest: +SKIP
        >>> state, loss = step(state, batch)             # doctest: +SKIP
    """
    plan = read_plan(plan)
    form = CallingConvention.from_plan(plan, arguments, result)
    if donate_state is None:
        donate_state = plan.call is None or plan.call.donate_state
    loaded = load_on(plan, devices, workers, donate_state, progress, backend, cache)
    return ParallelStep(form, loaded)


def read_plan(plan: Plan | str | Path) -> Plan:
    """What `load` is given, as a plan."""
    check_type("load", "plan", plan, Plan, PATH)
    return plan if isinstance(plan, Plan) else Plan.load(plan)


def load_on(
    plan: Plan,
    devices: Sequence[Any] | None,
    workers: Hosts | None,
    donate_state: bool,
    progress: bool | Progress,
    backend: str,
    cache: CacheLike,
) -> LoadedPlan | DistributedPlan:
    """A plan on devices of this process, or on workers; arguments as those of `load`."""
    check_type("load", "devices", devices, ROW, None)
    check_type("load", "workers", workers, HOSTS, None)
    check_type("load", "donate_state", donate_state, FLAG)
    check_type("load", "progress", progress, FLAG, FUNCTION)
    check_type("load", "backend", backend, TEXT)
    check_type("load", "cache", cache, CACHE)
    if workers is not None:
        if devices is not None:
            raise DevicesError(
                "devices of this process and workers",
                where=f"plan of {plan.name}",
                fix="give devices= to ThreadWorkers, or leave them to the workers",
            )
        shown = progress_bar("starting", "worker") if progress is True else progress or None
        placement, group = workers.start(
            plan, donate_state=donate_state, progress=shown, backend=backend, cache=cache
        )
        return DistributedPlan(plan, placement, group, donate_state)
    shown = progress_bar("compiling stages") if progress is True else progress or None
    return load_plan(
        plan,
        devices=devices,
        donate_state=donate_state,
        progress=shown,
        backend=backend,
        cache=cache,
    )


def progress_bar(title: str, unit: str = "program") -> Progress:
    """A bar on standard error that ends when all is done."""
    from tqdm import tqdm

    bar: Any = tqdm(total=0, desc=title, unit=unit, leave=False)

    def show(done: int, total: int, label: str) -> None:
        bar.total = total
        bar.set_postfix_str(label, refresh=False)
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return show
