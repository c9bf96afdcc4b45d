"""Functions placed as another one is: its first state, and evaluation of the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from typing import Any, Literal, cast, final

import jax
from alpa_runtime import trees
from alpa_runtime.errors import FUNCTION, WHOLE, check_type
from alpa_runtime.execution.loaded_plan import LoadedPlan
from alpa_runtime.parallel_step import ParallelStep, Progress
from alpa_runtime.plan import Plan
from alpa_runtime.step_arguments import PlacementSpec
from jax.sharding import PartitionSpec

from alpa_mlir.cluster import Cluster
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.automatic import ShardParallel
from alpa_mlir.methods.kept_stages import submesh_of
from alpa_mlir.methods.method import Method
from alpa_mlir.methods.pipeshard import PipeshardParallel
from alpa_mlir.stages import Options, ParallelFunction, StepCaller, TracedStep, shapes_of
from alpa_mlir.trace.call_form import Call, CallForm
from alpa_mlir.trace.layer_markers import StageCuts
from alpa_mlir.trace.tracing import known_positions

_jax: Any = jax


@final
@dataclass(frozen=True, eq=False)
class CreateStateParallel:
    """For a function that makes the first state of a training step: where the step wants it.

    `parallelize` makes a `StateFunction` of it. No device ever holds all of the state
    (`ParallelStep.init`).

    Attributes:
        train_step: takes the state as its first argument.
        other_args: its other arguments, arrays or shapes: a tuple or list of them, or the only
            one.

    Example:
        >>> method = CreateStateParallel(train_step, (batch,))                   # doctest: +SKIP
        >>> state = parallelize(create_state, method=method)(jax.random.key(0))  # doctest: +SKIP
    """

    train_step: ParallelFunction
    other_args: Any

    def __post_init__(self) -> None:
        check_type("CreateStateParallel", "train_step", self.train_step, ParallelFunction)


class StateFunction:
    """Makes the first state of a step, as `CreateStateParallel` says."""

    def __init__(self, fn: Callable[..., Any], method: CreateStateParallel) -> None:
        others: Any = method.other_args
        self.fn = fn
        self.train_step: ParallelFunction = method.train_step
        is_several = isinstance(others, tuple | list)
        self._others: Sequence[Any] = cast("Sequence[Any]", others) if is_several else (others,)
        update_wrapper(self, fn)

    def get_executable(self, *args: Any) -> ParallelStep:
        """The step that the state is for, planned and compiled for it.

        Args:
            args: of the function that makes the state.
        """
        shapes = _jax.eval_shape(self.fn, *args)
        return self.train_step.compile(shapes, *self._others)

    def get_last_executable(self) -> ParallelStep | None:
        """The step that was compiled or called last; None before."""
        return self.train_step.get_last_executable()

    def __call__(self, *args: Any) -> Any:
        """The state, on the meshes that own it.

        Raises:
            TraceError, ArgumentMismatchError: the function does not make the step's state.
        """
        return self.get_executable(*args).init(self.fn, *args)


@final
@dataclass(frozen=True, eq=False)
class FollowParallel:
    """For a function of the weights of another one, such as an evaluation: it takes them where
    that one keeps them, on the same meshes in the same shardings.

    Attributes:
        src_func: has been called, or compiled, before this function is.
        num_micro_batches: of this function; one by default.
        get_input_placement_specs: gives, for each argument that is not static, a tree of
            `PlacementSpec`s or the beginning of one; None where the solver may choose. By default
            the first argument is the state of `src_func`, or its `params`, and a batch of the
            same form lies as its batch does.
        pipeline_schedule: of this function; means nothing without gradients.
        layer_option: `"follow"` cuts stages where the first weight of the next mesh is used,
            `"manual"` where the function marks it.

    Example:
        >>> evaluate = parallelize(loss_of, method=FollowParallel(train_step))   # doctest: +SKIP
        >>> evaluate(state.params, batch)                                        # doctest: +SKIP
    """

    src_func: ParallelFunction
    num_micro_batches: int | None = None
    get_input_placement_specs: Callable[[], Sequence[Any]] | None = None
    pipeline_schedule: str = "inference"
    layer_option: Literal["follow", "manual"] = "follow"

    def __post_init__(self) -> None:
        where, specs = "FollowParallel", self.get_input_placement_specs
        check_type(where, "src_func", self.src_func, ParallelFunction)
        check_type(where, "num_micro_batches", self.num_micro_batches, WHOLE, None)
        check_type(where, "get_input_placement_specs", specs, FUNCTION, None)
        if self.layer_option not in ("follow", "manual"):
            raise MethodError(
                f"layer_option {self.layer_option!r}",
                where="FollowParallel",
                fix='use "follow" or "manual"',
            )

    def source(self) -> ParallelStep:
        """The step that is followed.

        Raises:
            MethodError: there is none yet.
        """
        found = self.src_func.get_last_executable()
        if found is None:
            raise MethodError(
                "the function to follow has not been compiled",
                where="FollowParallel",
                fix="call it, or its get_executable(*args), before",
            )
        return found

    def specs(self, source: ParallelStep, args: Sequence[Any]) -> tuple[Any, ...]:
        """Placement of each argument that is not static."""
        if self.get_input_placement_specs is not None:
            return tuple(self.get_input_placement_specs())
        state, *others = source.get_input_placement_specs()
        wanted = trees.structure(args[0])
        choices: list[Any] = [state, getattr(state, "params", None)]
        if isinstance(state, Mapping):
            choices.append(cast("Mapping[str, Any]", state).get("params"))
        fitting = [tree for tree in choices if tree is not None and trees.structure(tree) == wanted]
        if not fitting:
            raise MethodError(
                f"argument 0 is neither the state of {source.plan.name}, nor its params",
                where="FollowParallel",
                fix="give get_input_placement_specs",
            )
        known = [tree for tree in others if tree is not None]

        def batch(position: int) -> Any:
            if position > len(known):
                return None
            tree = known[position - 1]
            return tree if trees.structure(tree) == trees.structure(args[position]) else None

        return (fitting[0], *map(batch, range(1, len(args))))


class FollowingFunction(ParallelFunction):
    """A function as `FollowParallel` says."""

    def __init__(self, fn: Callable[..., Any], follow: FollowParallel, options: Options) -> None:
        super().__init__(fn, None, None, options)
        self.follow = follow

    def _trace(self, call: Call) -> TracedStep:
        return self._as_followed(call)[1]

    def _key(self, call: Call) -> tuple[Any, ...]:
        number, *rest = super()._key(call)
        return number, self.follow.source().loaded, *rest

    def _as_followed(self, call: Call) -> tuple[_Followed, TracedStep]:
        form = CallForm(self.fn, call)
        args = form.arguments(call)
        options = self.options.for_call(call, self._reader)
        found = self._followed(form.function(), args, options)
        traced = found.function.trace(*args)
        return found, replace(traced, caller=StepCaller(self._reader, call, form, self.original))

    def _compile(self, call: Call, progress: bool | Progress) -> ParallelStep:
        (found, traced), source = self._as_followed(call), self.follow.source()
        planned = traced.plan(progress=progress)
        if not isinstance(source.loaded, LoadedPlan):
            workers = self.options.workers or self.follow.src_func.options.workers
            return planned.load(workers=workers, progress=progress)
        devices = _devices(source.loaded, found.meshes, planned.plan)
        return planned.load(devices=devices, progress=progress)

    def _followed(
        self, function: Callable[..., Any], args: Sequence[Any], options: Options
    ) -> _Followed:
        follow, source = self.follow, self.follow.source()
        static, plan = known_positions(options.static_argnums, len(args)), source.plan
        shapes = [arg if i in static else shapes_of(arg) for i, arg in enumerate(args)]
        dynamic = [arg for i, arg in enumerate(shapes) if i not in static]
        specs = follow.specs(source, dynamic)
        axes = max((mesh.axes for mesh in plan.meshes), key=len)
        common: dict[str, Any] = {
            "num_micro_batches": follow.num_micro_batches or 1,
            "method": "manual",
            "sharding_constraints": "ignore",
            "padding": "none",
            "mesh_axes": axes,
            "in_shardings": _jax.tree.map(_pin, specs, is_leaf=_is_spec),
        }
        cluster = Cluster.from_dict(plan.cluster)
        if len(plan.stages) == 1:
            method: Method = ShardParallel(mesh_shape=plan.meshes[0].shape, **common)
            return _Followed(ParallelFunction(function, cluster, method, options), (0,))
        stages, fn = list(range(len(plan.stages))), function
        if follow.layer_option == "follow":
            batches = _batches(options, len(args), static)
            owners = _owners(specs, dynamic, batches)
            cuts = StageCuts(owners, [stage.mesh for stage in plan.stages])
            fn = cuts.marked(function, static)
            _jax.eval_shape(partial(_with_static, fn, shapes, static), *dynamic)
            stages = list(cuts.stages)
        rounds = len(plan.stages) // len(plan.meshes)
        if rounds > 1 and len(stages) < len(plan.stages):
            raise MethodError(
                f"the function uses weights of {len(stages)} of {len(plan.stages)} stages, which "
                f"schedule {plan.schedule!r} deals out in rounds",
                where="FollowParallel",
                fix="follow a function with another schedule",
            )
        numbers = tuple(plan.stages[stage].mesh for stage in stages[: len(stages) // rounds])
        meshes = [plan.meshes[number] for number in numbers]
        named = follow.pipeline_schedule
        if named == "inference" or rounds > 1:
            named = plan.schedule
        if named == "inference":  # Of a step without gradients; 1f1b becomes it where none are.
            named = "1f1b"
        method = PipeshardParallel(
            submeshes=[submesh_of(cluster, mesh.devices) for mesh in meshes],
            mesh_shapes=[mesh.shape for mesh in meshes],
            layer_ranges=[(i, i + 1) for i in range(len(stages))],
            schedule=named,
            virtual_stages=rounds,
            **common,
        )
        return _Followed(ParallelFunction(fn, cluster, method, options), numbers)


@dataclass(frozen=True)
class _Followed:
    """How a function follows.

    Attributes:
        meshes: of the followed plan, those of the function's own plan in order.
    """

    function: ParallelFunction
    meshes: tuple[int, ...]


def _batches(options: Options, count: int, static: Sequence[int]) -> list[bool]:
    """Which of the arguments that are not static are batches; by default the last one."""
    dynamic = [i for i in range(count) if i not in static]
    given = options.batch_argnums
    found = dynamic[-1:] if given is None else known_positions(given, count)
    return [i in found for i in dynamic]


def _with_static(
    fn: Callable[..., Any], args: Sequence[Any], static: Sequence[int], *dynamic: Any
) -> Any:
    rest = iter(dynamic)
    return fn(*[arg if i in static else next(rest) for i, arg in enumerate(args)])


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PlacementSpec)


def _pin(spec: PlacementSpec | None) -> PartitionSpec | None:
    return None if spec is None or not spec.mesh_ids else spec.sharding_specs[0]


def _owners(
    specs: Sequence[Any], dynamic: Sequence[Any], batches: Sequence[bool]
) -> list[int | None]:
    """For each flat argument the mesh that has it as a weight; None for batches."""
    owners: list[int | None] = []
    for position, (spec, arg, is_batch) in enumerate(zip(specs, dynamic, batches, strict=True)):
        structure = trees.structure(arg)
        if is_batch:
            owners += [None] * structure.num_leaves
            continue
        try:
            flat = trees.broadcast(spec, structure, _is_spec)
        except ValueError as error:
            raise MethodError(
                str(error),
                where=f"placement specs of argument {position}",
                fix="follow the argument's tree",
            ) from None
        for leaf, form in zip(flat, trees.leaves(arg), strict=True):
            # A counter or position is no weight: it may be used wherever its mesh comes.
            is_weight = len(form.shape) > 1 or _jax.numpy.issubdtype(form.dtype, _jax.numpy.inexact)
            meshes = () if leaf is None or not is_weight else leaf.mesh_ids
            if len(meshes) > 1:
                raise MethodError(
                    f"a stack of layers that lies on meshes {', '.join(map(str, meshes))}",
                    where=f"FollowParallel: argument {position}",
                    fix='mark the layers, and use layer_option="manual", or write the layers out',
                )
            owners.append(meshes[0] if meshes else None)
    return owners


def _devices(source: LoadedPlan, meshes: Sequence[int], plan: Plan) -> list[Any]:
    """Devices of this process for a plan whose meshes are some of another one's."""
    places: dict[int, Any] = {}
    for mesh, number in zip(plan.meshes, meshes, strict=True):
        places.update(zip(mesh.devices, source.devices_of(number), strict=True))
    others = iter([device for device in _jax.devices() if device not in places.values()])
    return [places[i] if i in places else next(others) for i in range(plan.num_devices)]
