"""A plan bound to devices of this process: `load` once, then one call per step."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy
import numpy as np
from jax.sharding import Mesh, NamedSharding

from alpa_mlir.cache_folder import CacheLike
from alpa_mlir.errors import ArgumentMismatchError
from alpa_mlir.plan import InputInfo, Plan
from alpa_mlir.plan_text import bytes_text, spec_text
from alpa_mlir.runtime.action_jobs import action_jobs
from alpa_mlir.runtime.actions import (
    Accumulate,
    Action,
    Copy,
    LinearStep,
    Place,
    Reshard,
    Result,
    Run,
    Zero,
)
from alpa_mlir.runtime.backends.choice import make_backend
from alpa_mlir.runtime.boundary import Boundary
from alpa_mlir.runtime.compile_stages import compile_jobs, stage_jobs
from alpa_mlir.runtime.devices import make_meshes
from alpa_mlir.runtime.donation import donations
from alpa_mlir.runtime.linear import linearize
from alpa_mlir.runtime.program import Backend, Job, Program, Progress
from alpa_mlir.runtime.run_once import run_once
from alpa_mlir.runtime.transfer import Move, bind_reshard
from alpa_mlir.runtime.xla import Device, mesh_devices, named_sharding

_jax: Any = jax
jnp: Any = jax.numpy
Buffers = list[Any]
Bound = Callable[[Buffers], None]

MAX_IN_FLIGHT = 32


def load(
    plan: Plan,
    *,
    devices: Sequence[Device] | None = None,
    donate_state: bool = True,
    progress: Progress | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    backend: str = "auto",
    cache: CacheLike = True,
) -> LoadedPlan:
    """Check a plan, compile its stages and bind them to devices.

    Args:
        devices: `devices[i]` is the plan's device i; by default `jax.devices()`.
        donate_state: a call uses up the arrays of carried state that an earlier call returned;
            others are copied and stay valid.
        progress: called with (done, total, label) as programs are compiled.
        max_in_flight: programs that may be started and not finished.
        backend: who compiles the stages, one of `"auto"`, `"xla"`, `"iree"`; see docs/backends.md.
        cache: whether compiled programs are kept on disk and found again, or the folder to keep
            them in.

    Raises:
        BackendError: the backend is not installed, or cannot compile a stage.
        PlanMismatchError: the parts of the plan contradict each other.
        DevicesError: there are fewer devices than the plan needs.

    Example:
        >>> step = load(Plan.load("my_plan"))        # doctest: +SKIP
        >>> results = step(arguments)                # doctest: +SKIP
    """
    linear = linearize(plan)
    boundary = Boundary(plan, check_argument)
    meshes = make_meshes(plan, None if devices is None else list(devices))
    stages = stage_jobs(plan, donations(plan, linear, donate_state))
    others = action_jobs(plan, linear)
    jobs: list[Job] = [*stages.values(), *others.values()]
    compiler = make_backend(backend, cache)
    compiled = compile_jobs(jobs, meshes, progress, compiler)
    shardings = [named_sharding(meshes[v.mesh], v.tensor) for v in linear.values]
    return LoadedPlan(
        plan,
        linear,
        boundary,
        meshes,
        compiler,
        shardings,
        dict(zip(stages, compiled[: len(stages)], strict=True)),
        dict(zip(others, compiled[len(stages) :], strict=True)),
        donate_state,
        max_in_flight,
    )


class LoadedPlan:
    """A plan on its devices. Calls return before the work is done, as JAX does."""

    def __init__(
        self,
        plan: Plan,
        linear: LinearStep,
        boundary: Boundary,
        meshes: Sequence[Mesh],
        backend: Backend,
        shardings: list[NamedSharding],
        stages: dict[tuple[int, str], Program],
        others: dict[int, Program],
        donate_state: bool,
        max_in_flight: int,
    ) -> None:
        self.plan = plan
        self._linear = linear
        self._boundary = boundary
        self._meshes = meshes
        self._backend = backend
        self._stages = stages
        self._donate = donate_state
        self._flight = _Flight(max_in_flight)
        self._shardings = shardings
        self._known_avals: list[Any] = [None] * len(plan.inputs)
        self._movers: dict[int, Move] = {}
        self._placed: dict[int, tuple[Any, jax.Array]] = {}
        self._first_places: dict[int, NamedSharding] = {}
        for action in linear.actions:
            if isinstance(action, Place):
                self._first_places.setdefault(action.arg, shardings[action.value])
        self._splits = {
            a.arg for a in linear.actions if isinstance(a, Place) and a.micro_batch is not None
        }
        self._state_places = [
            a for a in linear.actions if isinstance(a, Place) and plan.inputs[a.arg].kind == "state"
        ]
        self._steps = [
            self._bind(action, others.get(i))
            for i, action in enumerate(linear.actions)
            if not (isinstance(action, Place) and plan.inputs[action.arg].kind == "state")
        ]
        self._finish = [_finisher(result) for result in linear.results]
        self._given = {
            a.value for a in self._state_places if plan.inputs[a.arg].carried_by is not None
        }

    def __call__(self, args: Sequence[Any]) -> list[jax.Array]:
        """Run one step.

        Args:
            args: one array per argument of the function, in the plan's order; batch arguments
                whole, with micro-batches times the plan's rows in dimension 0, and so are
                stacks of layers, or as an earlier call returned them.

        Returns:
            One array per result of the function. State stays on the mesh that owns it; a stack
            whose layers have several owners is a `StackedArray`.

        Raises:
            ArgumentMismatchError: an argument has another shape or dtype than the plan's.
        """
        args = self._checked(self._boundary.take_apart(args, self.sharding_of_input))
        buffers: Buffers = [None] * (len(self._linear.values) + 1)
        used: set[int] = set()
        for place in self._state_places:
            buffers[place.value] = self._place_state(place, args[place.arg], used)
        buffers[-1] = [self._split(x) if i in self._splits else x for i, x in enumerate(args)]
        for step in self._steps:
            step(buffers)
        return self._boundary.put_together([finish(buffers) for finish in self._finish])

    def sharding_of_input(self, index: int) -> NamedSharding | None:
        """Where input `index` of the plan is wanted first; None if the step does not read it."""
        return self._first_places.get(index)

    @property
    def platform(self) -> str:
        """JAX's name of the kind of its devices: `cpu`, `gpu`."""
        return str(mesh_devices(self._meshes[0])[0].platform)

    def run_once(self, jobs: Sequence[Job], arguments: Sequence[Any]) -> list[list[jax.Array]]:
        """Compile and run programs beside the step's, such as those that make its state.

        Args:
            jobs: their meshes are those of the plan.
            arguments: arrays of NumPy, which every device of each program's mesh holds whole.

        Returns:
            The results of each program.
        """
        meshes = dict(enumerate(self._meshes))
        return run_once(jobs, arguments, meshes, self._backend)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes on each device that XLA needs for each function, by `stage/function`."""
        return {f"{s}/{name}": e.memory_bytes() for (s, name), e in self._stages.items()}

    def as_text(self) -> str:
        """Each function's memory and the order in which the driver starts things."""
        lines = [f"{name}: {bytes_text(n)} a device" for name, n in self.memory_bytes().items()]
        for action in self._linear.actions:
            match action:
                case Place():
                    part = "" if action.micro_batch is None else f" part {action.micro_batch}"
                    mesh = self._linear.values[action.value].mesh
                    name = self.plan.inputs[action.arg].name
                    lines.append(f"%{action.value} = place {name}{part} on mesh {mesh}")
                case Run():
                    mb = "" if action.micro_batch is None else f" micro-batch {action.micro_batch}"
                    lines.append(f"run stage {action.stage} {action.function}{mb}")
                case Accumulate():
                    lines.append(f"accumulate {len(action.sums)} values on mesh {action.mesh}")
                case Zero():
                    mesh = self._linear.values[action.value].mesh
                    lines.append(f"%{action.value} = zeros on mesh {mesh}")
                case Reshard():
                    held = self._linear.values[action.value]
                    form = spec_text(held.tensor.spec)
                    lines.append(
                        f"%{action.value} = %{action.source} as {form} on mesh {held.mesh}"
                    )
                case Copy():
                    to = self._linear.values[action.value].mesh
                    lines.append(f"%{action.value} = copy %{action.source} to mesh {to}")
        return "\n".join(lines)

    def _checked(self, args: Sequence[Any]) -> list[Any]:
        inputs = self.plan.inputs
        result = list(args)
        for i, (x, info) in enumerate(zip(args, inputs, strict=True)):
            if isinstance(x, jax.Array) and x.is_deleted():  # XLA would crash, not complain
                raise ArgumentMismatchError(
                    "the array was given away to an earlier step",
                    where=info.name,
                    fix="use the state that the last step returned, or donate_state=False",
                )
            aval = getattr(x, "aval", None)
            if aval is not None and aval is self._known_avals[i]:
                continue
            result[i] = check_argument(x, info, self.full_shape(i))
            self._known_avals[i] = aval
        return result

    def full_shape(self, index: int) -> tuple[int, ...]:
        """The shape of input `index` of the plan, batches whole."""
        info = self.plan.inputs[index]
        if info.kind == "state" or not info.shape:
            return info.shape
        return (info.shape[0] * self.plan.num_micro_batches, *info.shape[1:])

    def _place_state(self, place: Place, x: Any, used: set[int]) -> jax.Array:
        target = self._shardings[place.value]
        given = self._donate and place.value in self._given
        if isinstance(x, jax.Array):
            # Results of a step have the very object as their sharding: they are ours to use up.
            if x.sharding is target and id(x) not in used:
                used.add(id(x))
                return x
            there = x.sharding.is_equivalent_to(target, x.ndim)
            if there:
                return jnp.copy(x) if given else x
            if not given:
                return self._keep(place.value, x, target)
        return _jax.device_put(np.array(x), target)

    def _keep(self, value: int, x: jax.Array, target: NamedSharding) -> jax.Array:
        """An array that is not carried is copied to its mesh once, as long as it is given."""
        known = self._placed.get(value)
        if known is None or known[0]() is not x:
            known = self._placed[value] = (weakref.ref(x), _jax.device_put(x, target))
        return known[1]

    def _split(self, x: Any) -> Sequence[Any]:
        count = self.plan.num_micro_batches
        if isinstance(x, jax.Array):
            return _split_rows(x, count)
        return np.split(np.array(x), count)

    def _bind(self, action: Action, executable: Program | None) -> Bound:
        match action:
            case Place():
                return self._bind_place(action)
            case Copy():
                return self._bind_copy(action)
            case Run():
                executable = self._stages[action.stage, action.function]
                inputs, outputs = action.inputs, action.outputs
            case Accumulate():
                lefts = tuple(left for _, left, _ in action.sums)
                inputs = lefts + tuple(right for _, _, right in action.sums)
                outputs = tuple(value for value, _, _ in action.sums)
            case Zero():
                inputs, outputs = (), (action.value,)
            case Reshard():
                inputs, outputs = (action.source,), (action.value,)
        assert executable is not None
        return _bind_call(executable.call, inputs, outputs, action.last, self._flight)

    def _bind_place(self, place: Place) -> Bound:
        target = self._shardings[place.value]
        value, arg, part = place.value, place.arg, place.micro_batch

        def run(buffers: Buffers) -> None:
            x = buffers[-1][arg]
            x = x if part is None else x[part]
            buffers[value] = _jax.device_put(x if isinstance(x, jax.Array) else np.array(x), target)

        return run

    def _bind_copy(self, copy: Copy) -> Bound:
        move = self._movers.get(copy.by)
        if move is None:
            source, target = self._shardings[copy.source], self._shardings[copy.value]
            info = self.plan.reshards[copy.by]
            move = self._movers[copy.by] = bind_reshard(info, self.plan.meshes, source, target)
        sent, value, last = copy.source, copy.value, copy.last

        def run(buffers: Buffers) -> None:
            buffers[value] = move(buffers[sent])
            for v in last:
                buffers[v] = None

        return run


class _Flight:
    """Keeps the number of started programs bounded: XLA's thread pool is finite."""

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit)
        self.started: deque[jax.Array] = deque()

    def add(self, array: jax.Array) -> None:
        self.started.append(array)
        while len(self.started) > self.limit:
            oldest = self.started.popleft()
            if not oldest.is_deleted():  # given to a later program, which is in here as well
                oldest.block_until_ready()


def _bind_call(
    execute: Callable[[list[Any]], list[jax.Array]],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    last: tuple[int, ...],
    flight: _Flight,
) -> Bound:
    def run(buffers: Buffers) -> None:
        made = execute([buffers[v] for v in inputs])
        for v, array in zip(outputs, made, strict=True):
            buffers[v] = array
        for v in last:
            buffers[v] = None
        if made:
            flight.add(made[0])

    return run


def _finisher(result: Result) -> Callable[[Buffers], jax.Array]:
    values, scale = result.values, result.scale
    if result.join is None and scale == 1.0:
        return lambda buffers: buffers[values[0]]
    join = result.join or "sum"
    return lambda buffers: _join([buffers[v] for v in values], join, scale)


def _join_values(arrays: list[jax.Array], join: str, scale: float) -> jax.Array:
    if join == "concat":
        return jnp.concatenate(arrays, axis=0)
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return (total * scale).astype(total.dtype) if scale != 1.0 else total


def _rows(x: jax.Array, count: int) -> list[jax.Array]:
    return jnp.split(x, count, axis=0)


_join = _jax.jit(_join_values, static_argnums=(1, 2))
_split_rows = _jax.jit(_rows, static_argnums=1)


def check_argument(x: Any, info: InputInfo, shape: tuple[int, ...]) -> Any:
    """The argument itself, or as a NumPy array if it is a Python number.

    Raises:
        ArgumentMismatchError: shape or dtype differ from the plan's.
    """
    if isinstance(x, bool | int | float | complex):
        x = np.asarray(x, jnp.dtype(info.dtype))
    found = tuple(np.shape(x))
    if found != shape:
        raise ArgumentMismatchError(
            f"shape {list(found)}, expected {list(shape)}",
            where=info.name,
            fix="give what the step was planned for, or plan it again for this shape",
        )
    dtype = _jax.dtypes.canonicalize_dtype(x.dtype) if hasattr(x, "dtype") else np.asarray(x).dtype
    if dtype != jnp.dtype(info.dtype):
        raise ArgumentMismatchError(
            f"dtype {dtype}, expected {info.dtype}",
            where=info.name,
            fix=f"convert it with .astype({info.dtype!r})",
        )
    return x if x.dtype == dtype else np.asarray(x, dtype)
