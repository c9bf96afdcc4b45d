"""A plan as a step that is called like the function it was made from; needs no compiler."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import jax

from alpa_runtime.cache import CACHE, CacheLike
from alpa_runtime.calling_convention import CallingConvention, positional
from alpa_runtime.checkpoint.save_restore import StateTarget
from alpa_runtime.errors import (
    FLAG,
    FUNCTION,
    PATH,
    ROW,
    TEXT,
    DevicesError,
    TraceError,
    check_type,
)
from alpa_runtime.execution.loaded_plan import LoadedPlan
from alpa_runtime.execution.loaded_plan import load as load_plan
from alpa_runtime.jax_internals import ArrayImpl, alone, is_transformed, without_context_mesh
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import PlanLike, read_plan
from alpa_runtime.plan.text import bytes_text
from alpa_runtime.step_arguments import (
    initial_state,
    input_placement,
    input_shardings,
    output_placement,
    output_shardings,
    placed_arguments,
    step_state,
)
from alpa_runtime.step_trace import ChromeEvents, Recording
from alpa_runtime.worker_group import HOSTS, Hosts
from alpa_runtime.workers.driver import DistributedPlan

_jax: Any = jax
Progress = Callable[[int, int, str], None]


class Caller(Protocol):
    """How a function is called whose step takes other arguments: by names of all of them, with
    Python values among their leaves, with objects that change."""

    @property
    def by_name(self) -> int:
        """How many of the last arguments are given by name alone."""
        ...

    def read(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """One call.

        Raises:
            ArgumentMismatchError: its Python values are others than those of the step.
        """
        ...

    def check_static(self, args: Sequence[Any]) -> None:
        """Python values among arguments that are what the step takes.

        Raises:
            ArgumentMismatchError: one is another than the step was made for.
        """
        ...

    def arguments(self, call: Any) -> tuple[Any, ...]:
        """What the step takes."""
        ...

    def placed(self, call: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call with other arrays."""
        ...

    def result(self, call: Any, result: Any) -> Any:
        """What the function returns, of what the step does."""
        ...


class _Numbers:
    """Single numbers among the results of a step on several meshes, which callers use together: a
    loss and a count of tokens, a learning rate of the next step. They are handed out as arrays of
    one device that JAX moves as it likes, and taken back as what the step left on its meshes."""

    def __init__(self) -> None:
        self._placed: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def given(self, results: Any) -> Any:
        return _jax.tree.map(self._give, results)

    def _give(self, x: Any) -> Any:
        if type(x) is not ArrayImpl or x.shape:
            return x
        number, placed = alone(x), self._placed
        key = id(number)
        placed[key] = weakref.ref(number, lambda _: placed.pop(key, None)), x
        return number

    def taken(self, arguments: Any) -> Any:
        return _jax.tree.map(self._take, arguments) if self._placed else arguments

    def _take(self, x: Any) -> Any:
        ref, placed = self._placed.get(id(x), (None, None))
        return x if ref is None or ref() is not x else placed


@dataclass(frozen=True)
class MemoryAnalysis:
    """Memory on a device of the program of a step that takes most, by XLA's names.

    Attributes:
        programs: each of the step's programs, by `stage/function`.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    programs: Mapping[str, MemoryAnalysis]

    @property
    def total(self) -> int:
        """Bytes of arguments, results and temporaries, aliased buffers counted once."""
        taken = self.argument_size_in_bytes + self.output_size_in_bytes + self.temp_size_in_bytes
        return taken - self.alias_size_in_bytes


@dataclass(frozen=True, eq=False)
class ParallelStep:
    """A step on its devices: called like the function it was made from.

    Attributes:
        form: trees of arrays that it takes and returns.
        loaded: the plan on its devices.
        caller: how the function is called; None for steps of saved plans, which take those trees.
    """

    form: CallingConvention = field(repr=False)
    loaded: LoadedPlan | DistributedPlan = field(repr=False)
    caller: Caller | None = field(default=None, repr=False)
    _numbers: _Numbers = field(default_factory=lambda: _Numbers(), init=False, repr=False)

    @property
    def plan(self) -> Plan:
        return self.loaded.plan

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run one step; the arguments and the result have the trees of the function.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the step was made for.
        """
        if is_transformed():
            raise TraceError(
                "a compiled step within a transformation of JAX",
                where=self.form.name,
                fix="call the function there that parallelize gave, or the function itself",
            )
        if self.caller is not None:
            leaves = None if named else self.form.leaves_if_alike(args)
            if leaves is None:
                return self.call(self.caller.read(args, named))
            self.caller.check_static(args)
            return self._run(leaves)
        if named:
            args = positional(self.form.parameters, args, named, self.form.name)
        return self._run(self.form.leaves(args))

    def call(self, call: Any) -> Any:
        """Run one step for a call that its `caller` has read."""
        assert self.caller is not None
        leaves = self.form.leaves(self.caller.arguments(call))
        return self.caller.result(call, self._run(leaves))

    def _run(self, leaves: list[Any]) -> Any:
        with without_context_mesh():
            if len(self.plan.meshes) == 1 or not isinstance(self.loaded, LoadedPlan):
                return self.form.unflatten_results(self.loaded(self.form.arrays(leaves)))
            flat = self.form.arrays(self._numbers.taken(leaves))
            return self._numbers.given(self.form.unflatten_results(self.loaded(flat)))

    def _takes(self, args: Sequence[Any]) -> bool:
        """Whether arguments are the trees of arrays that the step takes."""
        return self.form.leaves_if_alike(args) is not None

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
        earlier calls. Objects that the step changes are changed, and returned.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the step was made for.

        Example:
            >>> state, batch = train_step.place(state, batch)              # doctest: +SKIP
        """
        call = None
        if self.caller is not None and not self._takes(args):
            call = self.caller.read(args, {})
            args = self.caller.arguments(call)
        with without_context_mesh():
            placed = placed_arguments(self.form, self.plan, self.loaded, args)
        if self.caller is None or call is None:
            return placed
        return self.caller.placed(call, placed)

    def arrays_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments as the trees of arrays that the step takes, Python values between them."""
        if self.caller is None or self._takes(args):
            return tuple(args)
        return self.caller.arguments(self.caller.read(args, {}))

    def get_input_placement_specs(self) -> tuple[Any, ...]:
        """Where the step wants its arguments: a tree of `PlacementSpec`s for each; None for those
        that are Python values."""
        return input_placement(self.form, self.plan)

    def get_output_placement_specs(self) -> Any:
        """Where the step leaves its results: a tree of `PlacementSpec`s."""
        return output_placement(self.form, self.plan)

    @property
    def in_tree(self) -> Any:
        """The tree of the arguments that are not static, as the step takes them."""
        return self.form.in_tree

    @property
    def out_tree(self) -> Any:
        """The tree of the result, as the step returns it."""
        return self.form.out_tree

    @property
    def input_shardings(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Where the step wants its arguments, as `jax.stages.Compiled` says it: trees of shardings
        for all arguments, which are given by position, and none for those by name. Several of an
        argument whose pieces lie on several meshes; None of what no mesh reads. Those of workers
        have meshes without devices."""
        return input_shardings(self.form, self.plan, self.loaded), {}

    @property
    def output_shardings(self) -> Any:
        """Where the step leaves its results: a tree of shardings, as of `input_shardings`."""
        return output_shardings(self.form, self.plan, self.loaded)

    def memory_analysis(self) -> MemoryAnalysis:
        """What XLA says of the memory of the step's programs on a device.

        What lies there between programs (micro-batches in flight) is not theirs; `peak_bytes`
        has it.

        Raises:
            BackendError: another compiler does not tell.
        """
        found = self.loaded.memory_stats().items()
        programs = {name: MemoryAnalysis(**stats, programs={}) for name, stats in found}
        return replace(max(programs.values(), key=lambda p: p.total), programs=programs)

    def peak_bytes(self) -> int:
        """The most that a device holds in a step, on the mesh that needs most: what the step holds
        between programs, and the arguments, results and temporaries of the one that runs, as the
        compiler counts them. The plan's `peak_bytes` is what was foreseen.

        Raises:
            BackendError: the compiler does not tell.
        """
        return max(self.loaded.peak_bytes().values())

    def memory_text(self) -> str:
        """`peak_bytes`, and what was foreseen, in words."""
        text = f"{bytes_text(self.peak_bytes())} on a device, as compiled"
        foreseen = self.plan.peak_bytes
        return text if foreseen is None else f"{text}; about {bytes_text(foreseen)} were foreseen"

    def cost_analysis(self) -> dict[str, float]:
        """What a step costs, as the plan counts it: `flops` of all devices and micro-batches, and
        the predicted `optimal_seconds`."""
        plan, flops = self.plan, 0.0
        for stage in plan.stages:
            of = stage.predicted.get
            each = of("forward_flops", 0.0) + of("backward_flops", 0.0)
            flops += plan.num_micro_batches * each + of("update_flops", 0.0)
        return {"flops": flops, "optimal_seconds": plan.predicted.get("step_seconds", math.inf)}

    def state_target(self, count: int | None = None) -> StateTarget:
        """The state that the step takes: what `restore_checkpoint(folder, step)` asks for. Several
        arguments that are state are a tuple.

        Args:
            count: of these the first so many; all by default.
        """
        state, loaded = step_state(self.form, self.plan, count), self.loaded
        if isinstance(loaded, DistributedPlan):
            return state.target(self.plan, lambda _: None, loaded)
        return state.target(self.plan, loaded.sharding_of_input)

    def count_steps_from(self, number: int) -> None:
        """Let errors of workers call the next step by this number, as after a checkpoint."""
        if isinstance(self.loaded, DistributedPlan):
            self.loaded.count_steps_from(number)

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
    plan: PlanLike | str | Path,
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
        plan: the folder that `save` wrote, a plan, or a step, which stands for its plan.
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
    plan = read_plan("load", plan)
    form = CallingConvention.from_plan(plan, arguments, result)
    if donate_state is None:
        donate_state = plan.call is None or plan.call.donate_state
    loaded = load_on(plan, devices, workers, donate_state, progress, backend, cache)
    return ParallelStep(form, loaded)


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
    """A bar on standard error that ends when all is done; none in files and pipes."""
    from tqdm import tqdm

    bar: Any = tqdm(total=0, desc=title, unit=unit, leave=False, disable=not on_terminal())

    def show(done: int, total: int, label: str) -> None:
        bar.total = total
        bar.update(done - bar.n)
        bar.set_postfix_str(label)
        if done == total:
            bar.close()

    return show


@contextmanager
def phase(title: str, progress: bool | Progress) -> Generator[None, None, None]:
    """Name what is done in the block, which has no parts: by a bar, or by a function as that of
    `load`."""
    show = progress_bar(title, "step") if progress is True else progress or None
    if show is not None:
        show(0, 1, title)
    yield
    if progress is True and show is not None:
        show(1, 1, title)


def on_terminal() -> bool:
    """Whether standard error is a terminal, where somebody reads what is in progress."""
    return sys.stderr is not None and sys.stderr.isatty()
