"""A plan bound to devices of this process: `load` once, then one call per step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any

import jax
import jax.numpy
import numpy as np
from jax.sharding import NamedSharding

from alpa_runtime.arrays import PlacedBatch
from alpa_runtime.backends import make_backend
from alpa_runtime.backends.interface import Job, Progress
from alpa_runtime.backends.xla import Device
from alpa_runtime.cache import CacheLike
from alpa_runtime.calling_convention import Boundary, check_argument, check_is_there, input_shape
from alpa_runtime.devices import make_meshes
from alpa_runtime.errors import DeletedArrayError
from alpa_runtime.execution.executor import MAX_IN_FLIGHT, BoundStep, Event, bind_step
from alpa_runtime.execution.host_shards import as_parts
from alpa_runtime.execution.program_merge import (
    Accumulate,
    Copy,
    Exchange,
    Place,
    Reshard,
    Run,
    Send,
    Zero,
    merge_step,
)
from alpa_runtime.jax_internals import (
    ArrayImpl,
    are_own,
    is_deleted,
    mark_own,
    refuse_readers,
    sharding_of,
    with_auto_axes,
)
from alpa_runtime.plan import Plan
from alpa_runtime.plan.text import bytes_text, spec_text

_jax: Any = jax
jnp: Any = jax.numpy


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
    linear = merge_step(plan)
    boundary = Boundary(plan, check_argument)
    meshes = make_meshes(plan, None if devices is None else list(devices))
    bound = bind_step(
        plan,
        linear,
        dict(enumerate(meshes)),
        donate_state=donate_state,
        max_in_flight=max_in_flight,
        backend=make_backend(backend, cache, plan.binaries),
        progress=progress,
    )
    return LoadedPlan(bound, boundary, donate_state)


class LoadedPlan:
    """A plan on its devices. Calls return before the work is done, as JAX does."""

    def __init__(self, bound: BoundStep, boundary: Boundary, donate_state: bool) -> None:
        self.plan: Plan = bound.plan
        plan = self.plan
        self._bound = bound
        self._linear = bound.step
        self._boundary = boundary
        self._donate = donate_state
        self._known_avals: list[Any] = [None] * len(plan.inputs)
        self._placed: dict[int, tuple[Any, jax.Array]] = {}
        self._splits = {a.arg for a in bound.batch_places if a.micro_batch is not None}
        # Those that use arrays up come first, so that others know which these are.
        self._states = sorted(bound.state_places, key=lambda place: not self._gives(place))
        self._given = sum(map(self._gives, self._states))
        self._state_values = [place.value for place in self._states]
        self._state_shardings = [bound.shardings[value] for value in self._state_values]
        self._state_avals: list[Any] | None = None  # Of arrays that were found right.
        placed = {a.value for a in bound.step.actions if isinstance(a, Place)}
        carriers = [x.carried_by for x in plan.inputs if x.carried_by is not None]
        self._made_states = [i for i in carriers if placed.isdisjoint(bound.step.results[i])]
        self._batches = [i for i, info in enumerate(plan.inputs) if info.kind != "state"]

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
        args = self._boundary.take_apart(args, self._place_piece)
        own = [args[place.arg] for place in self._states]
        if self._are_results(own):
            args = self._checked(args, self._batches)
            states = dict(zip(self._state_values, own, strict=True))
            used = own[: self._given]
        else:
            args = self._checked(args, range(len(args)))
            taken: dict[int, jax.Array] = {}
            states = {
                place.value: self._place_state(place, args[place.arg], taken)
                for place in self._states
            }
            used = list(taken.values())
            self._state_avals = [self._known_avals[place.arg] for place in self._states]
        batches: dict[int, Any] = {}
        for i in self._batches:
            x = args[i]
            if not isinstance(x, PlacedBatch):
                x = self._batch(i, jnp.copy(x) if any(x is y for y in used) else x)
            batches[i] = x

        def feed(place: Place, target: NamedSharding) -> jax.Array:
            x = batches[place.arg]
            is_placed = isinstance(x, PlacedBatch)
            return x.parts[place.value] if is_placed else self._part(x, place, target)

        results: list[Any] = self._bound(states, feed)
        mark_own(results[i] for i in self._made_states)
        refuse_readers(filter(is_deleted, used), self._refuse_used)
        return self._boundary.put_together(results)

    def _refuse_used(self) -> None:
        raise DeletedArrayError(
            "the array was donated to a step",
            where=self.plan.name,
            fix="use the state that the last step returned, or donate_state=False",
        )

    def _place_piece(self, index: int, piece: Any) -> Any:
        target = self.sharding_of_input(index)
        return piece if target is None else _own(_jax.device_put(piece, target))

    def put(self, index: int, x: Any) -> Any:
        """Place an argument ahead of the step that takes it.

        Args:
            index: of the plan's input.
            x: an array of NumPy, which may change afterwards, or of JAX.

        Returns:
            What steps take in its place, without a copy: of state an array of JAX, which the next
            step may use up.

        Raises:
            ArgumentMismatchError: it has another shape or dtype than the plan's.
        """
        shape = input_shape(self.plan, index)
        info = self.plan.inputs[index]
        x = check_argument(x, info, shape)
        if info.kind == "state":
            target = self.sharding_of_input(index)
            if target is None or (are_own([x]) and x.sharding is target):
                return x
            return _own(_jax.device_put(np.array(x), target))
        batch = self._batch(index, x)
        parts: dict[int, jax.Array] = {}
        order: dict[int | None, int] = {}
        for place in self._bound.batch_places:
            if place.arg == index:
                target: Any = self._bound.shardings[place.value]
                parts[place.value] = self._part(batch, place, target)
                order.setdefault(place.micro_batch, place.value)
        if not parts:  # Nobody reads it.
            return x
        return PlacedBatch(self, shape, np.dtype(x.dtype), parts, order)

    def sharding_of_input(self, index: int) -> NamedSharding | None:
        """Where input `index` of the plan is wanted first; None if the step does not read it."""
        return self._bound.first_places.get(index)

    def devices_of(self, mesh: int) -> tuple[Any, ...]:
        """The devices of a mesh, in row-major order."""
        return self._bound.devices_of(mesh)

    @property
    def platform(self) -> str:
        """What programs for its devices are lowered for: `cpu`, `cuda`, `rocm`."""
        return self._bound.platform

    def run_once(self, jobs: Sequence[Job], arguments: Sequence[Any]) -> list[list[jax.Array]]:
        """Compile and run programs beside the step's, such as those that make its state.

        Args:
            jobs: their meshes are those of the plan.
            arguments: arrays of NumPy, which every device of each program's mesh holds whole.

        Returns:
            The results of each program.
        """
        results = self._bound.run_once(jobs, arguments)
        for made in results:
            mark_own(made)
        return results

    def start_trace(self) -> None:
        """Record the following steps; `ParallelStep.record` is the usual way."""
        self._bound.start_trace()

    def stop_trace(self) -> list[Event]:
        """What was recorded, when all of it is done."""
        return self._bound.stop_trace()

    def close(self) -> None:
        """Nothing: its devices are those of this process."""

    def memory_bytes(self) -> dict[str, int]:
        """Bytes on each device that XLA needs for each function, by `stage/function`."""
        return self._bound.memory_bytes()

    def memory_stats(self) -> dict[str, dict[str, int]]:
        """The same in parts, as XLA has them."""
        return self._bound.memory_stats()

    def peak_bytes(self) -> dict[int, int]:
        """The most that a device of each mesh holds in a step, by the compiler's count."""
        return self._bound.peak_bytes(self._donate)

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
                    sums = f", adding up {len(action.sums)} results" if action.sums else ""
                    lines.append(f"run stage {action.stage} {action.function}{mb}{sums}")
                case Accumulate():
                    lines.append(f"accumulate {len(action.sums)} values on mesh {action.mesh}")
                case Zero():
                    mesh = self._linear.values[action.values[0]].mesh
                    lines.append(f"zeros for {len(action.values)} values on mesh {mesh}")
                case Reshard():
                    held = self._linear.values[action.value]
                    form = spec_text(held.tensor.spec)
                    lines.append(
                        f"%{action.value} = %{action.source} as {form} on mesh {held.mesh}"
                    )
                case Send() | Exchange():
                    raise AssertionError("of several workers")
                case Copy():
                    to = self._linear.values[action.value].mesh
                    lines.append(f"%{action.value} = copy %{action.source} to mesh {to}")
        return "\n".join(lines)

    def _are_results(self, states: Sequence[Any]) -> bool:
        """Whether all arrays of state are what a step made, each once and where it is wanted, so
        that none need be looked at by itself: with hundreds of them that takes a millisecond."""
        if self._state_avals is None or not set(map(type, states)) <= {ArrayImpl}:
            return False
        return (
            are_own(states[: self._given])
            and all(map(is_, map(sharding_of, states), self._state_shardings))
            and [x.aval for x in states] == self._state_avals
            and not any(map(is_deleted, states))
            # Of the address; `id` takes four times as long.
            and len(set(map(object.__hash__, states))) == len(states)
        )

    def _checked(self, args: Sequence[Any], which: Iterable[int]) -> list[Any]:
        """The arguments; those of these numbers are looked at."""
        inputs = self.plan.inputs
        result = list(args)
        for i in which:
            x, info = args[i], inputs[i]
            if type(x) is ArrayImpl and x.aval is self._known_avals[i] and not x.is_deleted():
                continue
            if isinstance(x, PlacedBatch) and x.home is not self:
                result[i] = x = np.asarray(x)
            check_is_there(x, info.name)  # XLA would crash, not complain.
            result[i] = check_argument(x, info, input_shape(self.plan, i))
            self._known_avals[i] = getattr(x, "aval", None)
        return result

    def _gives(self, place: Place) -> bool:
        """Whether a step uses up the array of a place."""
        return self._donate and place.value in self._bound.given

    def _place_state(self, place: Place, x: Any, used: dict[int, jax.Array]) -> jax.Array:
        """Of an array of JAX itself or a copy; `used` are those that the step uses up."""
        target: Any = self._bound.shardings[place.value]
        given = self._gives(place)
        if type(x) is ArrayImpl or isinstance(x, jax.Array):
            if given and x.sharding is target and are_own([x]) and id(x) not in used:
                used[id(x)] = x
                return x
            if x.sharding is target or x.sharding.is_equivalent_to(target, x.ndim):
                return _own(_copy(x, target)) if given or id(x) in used else x
            if not given:
                return self._keep(place.value, x, target)
        return _own(_jax.device_put(np.array(x), target))

    def _keep(self, value: int, x: jax.Array, target: NamedSharding) -> jax.Array:
        """An array that is not carried is copied to its mesh once, as long as it is given."""
        known = self._placed.get(value)
        if known is None or known[0]() is not x:
            known = self._placed[value] = (weakref.ref(x), _jax.device_put(x, target))
        return known[1]

    def _batch(self, index: int, x: Any) -> Any:
        """An array of JAX or its micro-batches, or a copy on the host, which nobody changes."""
        if isinstance(x, jax.Array):
            if index not in self._splits:
                return x
            return _split_rows(with_auto_axes(x), self.plan.num_micro_batches)
        return np.array(x)

    def _part(self, batch: Any, place: Place, target: NamedSharding) -> jax.Array:
        """What a place wants of a batch that `_batch` prepared."""
        if isinstance(batch, np.ndarray):
            name = self.plan.inputs[place.arg].name
            return self._bound.cutters[place.value].put(as_parts(batch), name)
        part = batch if place.micro_batch is None else batch[place.micro_batch]
        is_there = part.sharding.is_equivalent_to(target, part.ndim)
        return part if is_there else _jax.device_put(part, target)


def _copy(x: jax.Array, target: NamedSharding) -> jax.Array:
    """On the same devices: what is not committed to them, functions of JAX would move to the first
    of all."""
    return jnp.copy(x) if x.committed else _jax.device_put(x, target, may_alias=False)


def _own(x: jax.Array) -> jax.Array:
    mark_own([x])
    return x


def _rows(x: jax.Array, count: int) -> list[jax.Array]:
    return jnp.split(x, count, axis=0)


_split_rows = _jax.jit(_rows, static_argnums=1)
