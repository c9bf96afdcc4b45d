"""What all methods have in common: what the compiler may choose, options that say it, and what has
been chosen.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, ClassVar, cast, final

import jax
from alpa_runtime import trees
from alpa_runtime.errors import FLAG, ROW, ROWS, WHOLE, check_type
from alpa_runtime.plan.stage import EXPORTS
from jax.sharding import PartitionSpec

from alpa_mlir.cluster import Cluster
from alpa_mlir.compiler import schedule_table, schedules, sharding_methods
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.schedule import Schedule, ScheduleProblem

#: Hosts, devices of each host, and the hosts' device type where it matters.
SubmeshLike = tuple[int, int] | tuple[int, int, str]


def submeshes_text(submeshes: Sequence[SubmeshLike], where: str) -> str:
    """As the option of `alpa-search-stages` reads them; names of device types may hold blanks.

    Args:
        where: the method, for messages.

    Raises:
        MethodError: one is no submesh, or its device type cannot be written down.

    Example:
        >>> submeshes_text([(1, 2), (1, 8, "a100")], "PipeshardParallel")
        '1x2,1x8@a100'
    """
    text = ",".join(_text(submesh, where) for submesh in submeshes)
    return f"{{{text}}}" if re.search(r"\s", text) else text


def _text(submesh: SubmeshLike, where: str) -> str:
    given: Any = submesh
    parts = list(cast("Sequence[Any]", given)) if isinstance(given, Sequence) else []
    if (
        len(parts) not in (2, 3)
        or not all(isinstance(size, int) and size >= 1 for size in parts[:2])
        or not all(isinstance(name, str) for name in parts[2:])
    ):
        raise MethodError(
            f"submesh {given!r}",
            where=where,
            fix="use (hosts, devices), or (hosts, devices, device type)",
        )
    text = f"{parts[0]}x{parts[1]}"
    if not parts[2:] or not parts[2]:
        return text
    if re.search(r"""[,{}'"]""", parts[2]):
        raise MethodError(
            f"device type {parts[2]!r}",
            where=where,
            fix="give the type a name without commas, braces and quotes in the cluster's file",
        )
    return f"{text}@{parts[2]}"


def check_layer_ranges(ranges: Sequence[tuple[int, int]], where: str, layers: int) -> None:
    """Raise an error if they are not all layers in order, or not as many as asked for.

    Args:
        ranges: [first, end) of each stage's layers.
        where: the method, for the error.
        layers: how many there are to be; 0 for as many as the last range says.

    Raises:
        MethodError: as said.
    """
    check_type(where, "layer_ranges", ranges, ROW)
    for each in ranges:
        given: Any = each
        if is_single(given) or len(given) != 2 or not all(is_whole(x, 0) for x in given):
            raise MethodError(
                f"layer range {each!r}",
                where=where,
                fix="give [first, end) numbers of layers, such as (0, 2)",
            )
    ends = [0, *(end for _, end in ranges)]
    if not ranges or any(
        lo != end or lo >= hi for (lo, hi), end in zip(ranges, ends, strict=False)
    ):
        raise MethodError(
            f"layer_ranges {ranges!r}",
            where=where,
            fix="give all layers in order, such as [(0, 2), (2, 4)]",
        )
    if layers not in (0, ends[-1]):
        raise MethodError(
            f"layer_ranges of {ends[-1]} layers with layers={layers}",
            where=where,
            fix="leave layers out, or give ranges of all of them",
        )


def layers_of(ranges: Sequence[tuple[int, int]], marked: int) -> int:
    """The option `layers` of a method with these ranges: 0 if the step marks as many, else how many
    there are."""
    layers = ranges[-1][1]
    return 0 if marked == layers else layers


def layer_ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    """As the option of `alpa-search-stages` reads them.

    Example:
        >>> layer_ranges_text([(0, 2), (2, 4)])
        '0-2,2-4'
    """
    return ",".join(f"{lo}-{hi}" for lo, hi in ranges)


_jax: Any = jax


@final
@dataclass(frozen=True, kw_only=True)
class AutoShardingOption:
    """What shardings the solver may choose; names one of the methods of docs/methods.md.

    Attributes:
        enable_auto_sharding: False lets shardings follow from the inputs by propagation
            (`heuristic`).
        force_data_parallel: split the batch and nothing else (`data-parallel`).
        prefer_reduce_scatter: with `force_data_parallel`, split gradients and optimizer state
            (`zero-2`); otherwise the solver weighs both anyway.
        force_zero_stage_3: split parameters too (`zero-3`).
        force_batch_dim_to_mesh_dim: 0 splits the batch over the mesh's first axis, and
            operators over the last (`megatron`).

    Example:
        >>> AutoShardingOption(force_data_parallel=True).method
        'data-parallel'
    """

    enable_auto_sharding: bool = True
    force_data_parallel: bool = False
    prefer_reduce_scatter: bool = False
    force_zero_stage_3: bool = False
    force_batch_dim_to_mesh_dim: int | None = None

    def __post_init__(self) -> None:
        if self.force_batch_dim_to_mesh_dim not in (None, 0):
            raise MethodError(
                f"force_batch_dim_to_mesh_dim {self.force_batch_dim_to_mesh_dim!r}",
                where="AutoShardingOption",
                fix="use 0, with the batch's devices first in mesh_shape",
            )

    @property
    def method(self) -> str:
        """The method that does it."""
        if self.force_zero_stage_3:
            return "zero-3"
        if self.force_data_parallel:
            return "zero-2" if self.prefer_reduce_scatter else "data-parallel"
        if not self.enable_auto_sharding:
            return "heuristic"
        return "auto" if self.force_batch_dim_to_mesh_dim is None else "megatron"


@final
@dataclass(frozen=True, kw_only=True)
class ManualShardingOption:
    """Shardings of the arguments by hand: the method `manual`.

    Attributes:
        mesh_axis_names: of the mesh's axes.
        in_axis_resources: a tree of `PartitionSpec`s over the arguments, or its beginning. None
            holds an argument whole, as for `jax.jit`; `PartitionSpec.UNCONSTRAINED` leaves it to
            the solver.

    Example:
        >>> option = ManualShardingOption(
        ...     mesh_axis_names=("data", "model"), in_axis_resources=(None, PartitionSpec("data")))
    """

    mesh_axis_names: Sequence[str]
    in_axis_resources: Any = PartitionSpec.UNCONSTRAINED

    @property
    def in_shardings(self) -> Any:
        """As methods take them."""

        def pin(x: Any) -> Any:
            if x is None:
                return PartitionSpec()
            return None if x is PartitionSpec.UNCONSTRAINED else x

        def is_leaf(x: Any) -> bool:
            return x is None or isinstance(x, PartitionSpec)

        return _jax.tree.map(pin, self.in_axis_resources, is_leaf=is_leaf)


def chosen_shardings(
    method: Any, auto: AutoShardingOption | None, manual: ManualShardingOption | None
) -> None:
    """Write options into the fields of a method that is being made.

    Raises:
        MethodError: the shardings are chosen twice.
    """
    if auto is None and manual is None:
        return
    if method.method != "auto" or (auto is not None and manual is not None):
        raise MethodError(
            "shardings are chosen twice",
            where=type(method).__name__,
            fix="give one of method, auto_sharding_option and manual_sharding_option",
        )
    if auto is not None:
        object.__setattr__(method, "method", auto.method)
    if manual is not None:
        object.__setattr__(method, "method", "manual")
        object.__setattr__(method, "mesh_axes", tuple(manual.mesh_axis_names))
        object.__setattr__(method, "in_shardings", manual.in_shardings)


@final
@dataclass(frozen=True, kw_only=True)
class AutoLayerOption:
    """Layers that the compiler finds (docs/layers.md).

    Attributes:
        layer_num: how many.
        remat_layer: compute each layer's forward values again for its gradients.
    """

    layer_num: int
    remat_layer: bool = False

    def __post_init__(self) -> None:
        check_type("AutoLayerOption", "layer_num", self.layer_num, WHOLE)
        check_type("AutoLayerOption", "remat_layer", self.remat_layer, FLAG)
        if self.layer_num < 1:
            raise MethodError(
                f"layer_num {self.layer_num!r}",
                where="AutoLayerOption",
                fix="use a whole number of at least 1",
            )


@final
@dataclass(frozen=True, kw_only=True)
class ManualLayerOption:
    """Layers that the step marks (`mark_pipeline_boundary`).

    Attributes:
        remat_layer: compute each layer's forward values again for its gradients.
    """

    remat_layer: bool = False


LayerOption = AutoLayerOption | ManualLayerOption


@final
@dataclass(frozen=True, kw_only=True)
class AutoStageOption:
    """Stages and their submeshes are searched (docs/stage-search.md).

    Attributes:
        pipeline: what may be chosen: `"auto"` for all, or a name of docs/methods.md.
    """

    pipeline: str = "auto"


@final
@dataclass(frozen=True, kw_only=True)
class UniformStageOption:
    """Stages of as many layers each, beside an embedding and a head, on submeshes of one shape.

    Attributes:
        num_stages: by default every layer is a stage; where nobody says how many layers there
            are, the best number is searched.
        submesh_physical_shape: (hosts, devices of each); by default the cluster's devices in
            equal shares.
        submesh_logical_shape: the mesh that these make; searched by default.
    """

    num_stages: int | None = None
    submesh_physical_shape: SubmeshLike | None = None
    submesh_logical_shape: tuple[int, ...] | None = None


@final
@dataclass(frozen=True)
class ManualStageOption:
    """Stages by hand.

    Attributes:
        forward_stage_layer_ids: numbers of the layers of each stage, all layers in order.
        submesh_physical_shapes: (hosts, devices of each) of each stage.
        submesh_logical_shapes: the mesh of each; None searches them.
        submesh_autosharding_option_dicts: has to be empty: `method` counts for all stages.

    Example:
        >>> ManualStageOption([[0], [1, 2]], [(1, 2), (1, 2)]).layer_ranges
        ((0, 1), (1, 3))
    """

    forward_stage_layer_ids: Sequence[Sequence[int]]
    submesh_physical_shapes: Sequence[SubmeshLike]
    submesh_logical_shapes: Sequence[tuple[int, ...]] | None = None
    submesh_autosharding_option_dicts: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for name in ("forward_stage_layer_ids", "submesh_physical_shapes"):
            check_type("ManualStageOption", name, getattr(self, name), ROWS)
        shapes = self.submesh_logical_shapes
        check_type("ManualStageOption", "submesh_logical_shapes", shapes, ROW, None)
        ids = [layer for stage in self.forward_stage_layer_ids for layer in stage]
        if ids != list(range(len(ids))) or not all(self.forward_stage_layer_ids):
            raise MethodError(
                f"forward_stage_layer_ids {self.forward_stage_layer_ids!r}",
                where="ManualStageOption",
                fix="give every layer once, in order, such as [[0, 1], [2]]",
            )
        if any(self.submesh_autosharding_option_dicts):
            raise MethodError(
                "submesh_autosharding_option_dicts for single stages",
                where="ManualStageOption",
                fix="give the method's `method`, which counts for all stages",
            )

    @property
    def layer_ranges(self) -> tuple[tuple[int, int], ...]:
        """[first, end) of each stage's layers."""
        return tuple((stage[0], stage[-1] + 1) for stage in self.forward_stage_layer_ids)


StageOption = AutoStageOption | UniformStageOption | ManualStageOption


# Shardings of arguments that the user has decided.


def pinned_axes(
    in_shardings: Any, mesh_axes: Sequence[str], structure: Any
) -> list[list[list[int]] | None]:
    """Mesh axes of each dimension of each flattened argument; None where nothing is pinned.

    Args:
        in_shardings: a tree of `PartitionSpec`s over the arguments, or its beginning; None pins
            nothing.
        mesh_axes: names of the mesh's axes.
        structure: the tree of the tuple of dynamic arguments.

    Raises:
        MethodError: `in_shardings` is no beginning of that tree, or names an unknown axis.
    """
    if in_shardings is None:
        return [None] * structure.num_leaves
    try:
        specs = trees.broadcast(in_shardings, structure, _is_spec)
    except ValueError as error:
        raise MethodError(
            str(error), where="in_shardings", fix="follow the arguments' tree"
        ) from None
    return [None if spec is None else _axes_of(spec, mesh_axes) for spec in specs]


def check_pin(
    pin: Sequence[Sequence[int]],
    name: str,
    shape: Sequence[int],
    mesh_axes: Sequence[str],
    mesh_shape: Sequence[int] | None,
    micro_batches: int,
) -> None:
    """Whether an argument can be held as it is pinned.

    Args:
        pin: mesh axes of each dimension.
        name, shape: of the argument, a batch with all of its rows.
        mesh_shape: None if it is searched.
        micro_batches: parts of dimension 0; 1 for what is no batch.

    Raises:
        MethodError: names the argument, and the axis.
    """
    if len(pin) > len(shape):
        raise MethodError(
            f"a sharding of {len(pin)} dimensions for {len(shape)}",
            where=name,
            fix="give at most one entry for each dimension",
        )
    used = [axis for axes in pin for axis in axes]
    for axis in used:
        if used.count(axis) > 1:
            raise MethodError(
                f"is pinned to the axis {mesh_axes[axis]!r} twice",
                where=name,
                fix="use each axis for one dimension",
            )
        if mesh_shape is not None and axis >= len(mesh_shape):
            raise MethodError(
                f"is pinned to {mesh_axes[axis]!r}, axis {axis} of a mesh of {len(mesh_shape)}",
                where=name,
                fix="give mesh_axes one name for each axis of mesh_shape",
            )
    for dim, axes in enumerate(pin):
        words = ", ".join(repr(mesh_axes[axis]) for axis in axes)
        if list(axes) != sorted(axes):
            raise MethodError(
                f"dimension {dim} is pinned to {words}, which is not the mesh's order",
                where=name,
                fix=f"list them as in mesh_axes: {', '.join(mesh_axes)}",
            )
        parts = 1 if mesh_shape is None else prod(mesh_shape[axis] for axis in axes)
        count = micro_batches if dim == 0 else 1
        if shape[dim] % count == 0 and shape[dim] // count % parts:
            of = f", in {count} micro-batches," if count > 1 else ""
            raise MethodError(
                f"dimension {dim} of {list(shape)}{of} is pinned to {words}, {parts} parts, which "
                "do not split it evenly",
                where=name,
                fix="pin a dimension that they divide, or none, or give another mesh_shape"
                + (", or fewer micro-batches" if count > 1 else ""),
            )


def _axes_of(spec: Any, mesh_axes: Sequence[str]) -> list[list[int]]:
    if not isinstance(spec, PartitionSpec):
        raise MethodError(
            f"{spec!r} is no sharding", where="in_shardings", fix="use PartitionSpec or None"
        )
    dims: list[list[int]] = []
    entries: tuple[Any, ...] = tuple(spec)
    for entry in entries:
        names = _axis_names(entry)
        unknown = [name for name in names if name not in mesh_axes]
        if unknown:
            raise MethodError(
                f"{spec} names the axis {unknown[0]!r}",
                where="in_shardings",
                fix=f"use axes of mesh_axes: {', '.join(mesh_axes)}",
            )
        dims.append([list(mesh_axes).index(name) for name in names])
    return dims


def _axis_names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, PartitionSpec)


# What all methods have in common: what the compiler may choose, and what has been chosen.

LAYER_BALANCES = ("communication", "operators")
SEMANTICS = ("exact", "relaxed", "independent")
REMAT = ("none", "all", "auto")
REMAT_KEEPS = ("auto", "nothing", "products")
CONSTRAINTS = ("keep", "ignore")
PADDINGS = ("auto", "none", "batch", "little", "all")
PREPARED = ("auto", "none", "converted", "gathered")
OFFLOADED = ("auto", "none", "optimizer", "activations", "all")
# Of a dimension, as a part of it: what padding may cost where all meshes bear it, and at most.
_LITTLE_PADDING = 0.02
_MOST_PADDING = 1.0
# Estimates that only rank candidates may be this far from the best plan.
_COARSE_GAP = 0.05
_COARSE_WORK = 2.5e9  # About five seconds of the solver.
# What "auto" searches; "zb-auto" and "zb-h1" order the plans of these anew.
AUTO_SCHEDULES = ("1f1b", "1f1b-overlap", "gpipe")


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Base of the methods.

    Attributes:
        num_micro_batches: parts of the batch that go through the stages one after another. Of a
            step with a loop of gradient accumulation, whole numbers of its rounds; 1 is then one
            for each round.
        micro_batch_semantics: what several micro-batches compute. `"exact"`: the results of
            `jax.jit` on the whole batch, in one pass or with a barrier between all forward and
            all backward runs (losses that compare examples); an error where neither does.
            `"relaxed"`: the same, but values that couple examples (router balance losses, batch
            statistics) are those of each micro-batch, as in Megatron. `"independent"`: each
            micro-batch is a batch of its own, and results are averaged, as in Alpa.
        widen_sums: add up terms of half precision (gradients of micro-batches) in float32.
        schedule: a name of `schedules()`, such as `"1f1b"`, `"1f1b-overlap"` (hides sending, for
            more memory), `"gpipe"`, `"interleaved-1f1b"` (several stages on each mesh), `"zb-h1"`
            (gradients of weights fill what stages wait) or `"zb-v"` (that with two stages on each
            mesh, in a V; `"v-half"` and `"v-min"` with less memory); or `"auto"` for the one of the
            first three whose plan takes the fewest seconds, `"zb-auto"` or `"zb-h1"` with the
            stages of such a plan, `"interleaved-1f1b"` with up to six stages on each mesh, or
            `"zb-v"`, `"v-half"` or `"v-min"`; or a `Schedule` of one's own, for which the search
            assumes the seconds and the memory of the one that it is like.
            A step with a barrier has `"gpipe"`, one without gradients `"inference"`.
        virtual_stages: how many stages each mesh has, with a schedule that takes several; 0 for
            as many as it usually has (`docs/schedules.md`), and with `"auto"` any; 1 with `"auto"`
            for no more than one.
        layers: how many layers stages are made from; 0 takes it from the model's repeated
            blocks (`docs/layers.md`).
        max_layers: most layers to take where `layers` is 0.
        layer_balance: `"communication"` cuts layers by Eq. 6 of the Alpa paper, `"operators"`
            gives each equally many ops.
        remat: layers whose forward values are computed again for the gradients instead of
            being kept: `"none"`, `"all"`, numbers of layers, or `"auto"` for those of the stages
            with which a step that fits takes the fewest seconds.
        remat_keeps: what of such layers is kept all the same: `"nothing"`, or `"products"`, but for
            products of activations that are larger than what they are made of (scores of
            attention); or `"auto"` for nothing, products or the values of a minimum cut
            (`docs/layers.md`), whatever takes the fewest seconds, where `remat` is `"auto"`, else
            `"nothing"`.
        memory_fraction: part of a device's memory that a plan may use.
        time_limit_seconds: for the shardings of one stage, an outer bound: what ends their search
            is work, about a minute of it, so that a busy machine finds the same plan. Where the
            limit strikes, the plan says so and is not kept.
        method: what shardings may be chosen: `"auto"` for all, or a name of
            `docs/methods.md` such as `"data-parallel"`, `"zero-3"` or `"manual"`.
        sharding_constraints: what `jax.lax.with_sharding_constraint` in the step means:
            `"keep"` holds those values as it says, on every mesh that has axes of these sizes
            (`docs/methods.md`, "Sharding constraints"), `"ignore"` leaves them to the solver.
        padding: which dimensions that the devices do not divide are made longer within the
            stages (`docs/padding.md`), whether or not that pays: `"none"`; `"batch"`, its examples
            alone; `"little"`, all dimensions by at most 2 %; `"all"`, by more where a host's
            devices share the work better then; or `"auto"` for the one of these with which the
            step takes the fewest seconds.
        prepare_weights: what of several micro-batches' work on weights is done once a step
            (`docs/running.md`, "Weights are prepared once"): `"none"`; `"converted"`, what the
            step makes of them, such as bfloat16 of float32, which stays until the last backward
            run; `"gathered"`, gathers of weights as well, where that pays; or `"auto"` for the
            one with which the step takes the fewest seconds.
        offload: what lies in the memory of the devices' hosts while nobody needs it
            (`docs/host-memory.md`): `"none"`; `"optimizer"`, the state that the update alone reads,
            such as moments and weights in float32; `"activations"`, what gradients read of the
            forward phase; `"all"`, both; or `"auto"`, of these what is fastest where no plan fits
            without, or where layers would be computed again and that may take longer. What the step
            itself places there goes there with all but `"none"`.
        in_shardings: with `"manual"`, shardings of the arguments: a tree of `PartitionSpec`s
            over the function's dynamic arguments, or its beginning; None pins nothing.
        mesh_axes: names of the mesh's axes in `in_shardings`.
        num_mesh_axes: most axes of the mesh views that are tried, 2 or 3.
        export: `"shardy"`, whole programs that XLA partitions as annotated, or `"collectives"`,
            programs of one device that need no partitioner.
        layer_loops: which equal layers of a stage become a loop, so that XLA compiles one of
            them (`docs/scan.md`): True for those of scans, whose weights are rows of stacks,
            False for none, `"all"` for those that the user wrote out, too, whose weights then
            come back as `RowArray`s. Written out they take longer to compile, and XLA may move
            collectives of one layer beside the work of the next.
        finalists: how many of the best plans to compile and measure on the devices of this
            process, which have to be of the kind that the cluster describes, before the fastest
            is chosen; 0 leaves the choice to the predictions.
    """

    searches_counts: ClassVar[bool] = False
    """Whether `num_micro_batches` may be several numbers, or None."""

    num_micro_batches: int | Sequence[int] | None = 1
    micro_batch_semantics: str = "exact"
    widen_sums: bool = True
    schedule: str | Schedule = "1f1b"
    virtual_stages: int = 0
    layers: int = 0
    max_layers: int = 64
    layer_balance: str = "communication"
    remat: str | Sequence[int] = "none"
    remat_keeps: str = "auto"
    memory_fraction: float = 0.9
    time_limit_seconds: float = 600.0
    method: str = "auto"
    sharding_constraints: str = "keep"
    padding: str = "auto"
    prepare_weights: str = "auto"
    offload: str = "auto"
    in_shardings: Any = None
    mesh_axes: Sequence[str] = ("x", "y", "z")
    num_mesh_axes: int = 2
    export: str = "shardy"
    layer_loops: bool | str = True
    finalists: int = 0

    def __post_init__(self) -> None:
        where = type(self).__name__
        for name, words in (
            ("export", EXPORTS),
            ("sharding_constraints", CONSTRAINTS),
            ("remat_keeps", REMAT_KEEPS),
            ("padding", PADDINGS),
            ("prepare_weights", PREPARED),
            ("offload", OFFLOADED),
            ("micro_batch_semantics", SEMANTICS),
            ("layer_balance", LAYER_BALANCES),
        ):
            if getattr(self, name) not in words:
                raise MethodError(
                    f"{name} {getattr(self, name)!r}",
                    where=where,
                    fix=f"use one of {', '.join(words)}",
                )
        if self.method not in sharding_methods():
            raise MethodError(
                f"unknown method {self.method!r}",
                where=where,
                fix=f"use one of {', '.join(sharding_methods())}",
            )
        loops: Any = self.layer_loops
        if not isinstance(loops, bool) and not (isinstance(loops, str) and loops == "all"):
            raise MethodError(f"layer_loops {loops!r}", where=where, fix='use True, False or "all"')
        if self.in_shardings is not None and self.method != "manual":
            raise MethodError(
                f"in_shardings with method {self.method!r}", where=where, fix='use "manual"'
            )
        if self.schedule_name not in ("auto", *schedules()):
            raise MethodError(
                f"schedule {self.schedule!r}",
                where=where,
                fix=f"use one of {', '.join(('auto', *schedules()))}",
            )
        counts: Any = self.num_micro_batches
        listed: Any = () if counts is None else (counts,) if is_single(counts) else counts
        for count in listed:
            if not is_whole(count, 1):
                raise MethodError(
                    f"{count!r} micro-batches", where=where, fix="use whole numbers of at least 1"
                )
        if not isinstance(counts, int) and not self.searches_counts:
            raise MethodError(
                f"num_micro_batches is {counts!r}", where=where, fix="give one number"
            )
        if self.num_mesh_axes not in (2, 3):
            raise MethodError(f"{self.num_mesh_axes} mesh axes", where=where, fix="use 2 or 3")
        for name, most, fix in (
            ("memory_fraction", 1.0, "use (0, 1]"),
            ("time_limit_seconds", inf, "use more than 0"),
        ):
            value: Any = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= most:
                raise MethodError(f"{name} {value!r}", where=where, fix=fix)
        for name, least in (
            ("finalists", 0),
            ("layers", 0),
            ("max_layers", 1),
            ("virtual_stages", 0),
        ):
            value = getattr(self, name)
            if not is_whole(value, least):
                raise MethodError(
                    f"{name} {value!r}", where=where, fix=f"use a whole number of at least {least}"
                )
        rounds = [name for name, row in schedule_table().items() if row.takes_several_stages]
        if self.virtual_stages > 1 and self.schedule_name not in rounds:
            raise MethodError(
                f"{self.virtual_stages} virtual_stages with schedule {self.schedule!r}",
                where=where,
                fix=f"use one of {', '.join(rounds)}",
            )
        again: Any = self.remat
        if again not in REMAT and (is_single(again) or not all(is_whole(x, 0) for x in again)):
            raise MethodError(
                f"remat {self.remat!r}",
                where=where,
                fix=f"use one of {', '.join(REMAT)}, or numbers of layers",
            )

    @property
    def schedule_name(self) -> str:
        """What the search knows: `schedule`, or what that is like."""
        return self.schedule if isinstance(self.schedule, str) else self.schedule.like

    @property
    def stages_per_mesh(self) -> int:
        """How many stages lie on each mesh.

        Example:
            >>> alpa_mlir.AutoParallel(schedule="interleaved-1f1b").stages_per_mesh
            2
        """
        return self.virtual_stages or self._usual_stages_per_mesh

    @property
    def least_layers(self) -> int:
        """How many layers its stages need at least, as far as they are given."""
        return 1

    @property
    def _may_share_meshes(self) -> bool:
        return self.schedule_name == "auto" and self.virtual_stages == 0

    @property
    def _usual_stages_per_mesh(self) -> int:
        row = schedule_table().get(self.schedule_name)
        return row.stages_per_mesh if row else 1

    @property
    def paddings(self) -> tuple[str, ...]:
        """What `padding` leaves to try, in this order."""
        return PADDINGS[1:] if self.padding == "auto" else (self.padding,)

    @abstractmethod
    def stage_options(self, cluster: Cluster) -> dict[str, str]:
        """Options of `alpa-search-stages` that fix what the user has chosen.

        Raises:
            MethodError: the choice does not fit the cluster.
        """

    @property
    def has_fixed_meshes(self) -> bool:
        """Whether the user has decided how many devices a plan takes."""
        return False

    @property
    def known_mesh_shape(self) -> tuple[int, ...] | None:
        """The shape of all meshes, if the user has decided it."""
        return None

    def lifted_limits(self) -> Iterator[tuple[str, int, Callable[[int | None], Method]]]:
        """Limits on plans that the user has set, to say what would fit without: the field, its
        value, and the method with another one or, for None, without it. A value of 0 is no number.
        """
        return iter(())

    def settled(self, cluster: Cluster, marked_layers: Callable[[], int]) -> Method:
        """The method for one step, where what was chosen depends on the step.

        Args:
            marked_layers: how many layers the step's own marks make; 0 if it has none.

        Raises:
            MethodError: the choice fits neither the step nor the cluster.
        """
        return self

    def of_rounds(self, rounds: int) -> Method:
        """The method for a step with loops of gradient accumulation of its own.

        One micro-batch, which methods have by default, becomes one for each round; otherwise
        micro-batches are whole numbers of rounds.

        Args:
            rounds: of the loops; 1 for a step without any.

        Raises:
            MethodError: none of the given numbers divides the rounds.
        """
        counts = self.num_micro_batches
        if rounds == 1:
            return self
        listed = () if counts is None else (counts,) if isinstance(counts, int) else counts
        given = [rounds] if tuple(listed) == (1,) else sorted(set(listed)) or range(1, rounds + 1)
        fitting = tuple(n for n in given if rounds % n == 0)
        if not fitting:
            wanted = " or ".join(map(str, given))
            raise MethodError(
                f"{wanted} micro-batches of a step that accumulates gradients in {rounds} rounds",
                where=type(self).__name__,
                fix=f"use a number that divides {rounds}, or take the loop out of the step",
            )
        return replace(self, num_micro_batches=fitting if len(fitting) > 1 else max(fitting))

    @property
    def offloads_state(self) -> bool:
        """Whether the optimizer's state has to lie in the hosts' memory."""
        return self.offload in ("optimizer", "all")

    @property
    def offloads_activations(self) -> bool:
        """Whether activations have to."""
        return self.offload in ("activations", "all")

    def may_cut(self, cluster: Cluster) -> bool:
        """Whether a plan may have several stages, so that scans over layers are unrolled."""
        return sum(cluster.devices_per_host) > 1

    def micro_batch_counts(self, batch_size: int) -> tuple[int, ...]:
        """The counts to choose from, rising; without any given, all that divide the batch.

        Raises:
            MethodError: none of the given numbers divides the batch.
        """
        counts = self.num_micro_batches
        if isinstance(counts, int):
            return (counts,)
        if batch_size == 0:
            return (1,)  # Planning says which argument is empty.
        given = range(1, batch_size + 1) if counts is None else sorted(set(counts))
        fitting = tuple(n for n in given if batch_size % n == 0)
        if not fitting:
            raise MethodError(
                f"none of {tuple(counts or ())} micro-batches divides a batch of {batch_size}",
                where=type(self).__name__,
                fix="give a number that divides it",
            )
        return fitting

    def import_passes(self, cluster: Cluster) -> str:
        """Passes that read the step, of whatever number of micro-batches."""
        kept = "keep-shardings" if self.method == "manual" else "pin-shardings"
        keeps: dict[str, str] = {kept: "true"} if self.sharding_constraints == "keep" else {}
        if self.offload != "none" and cluster.host_copy_seconds_per_byte is not None:
            keeps["keep-placements"] = "true"
        read = _with_options("alpa-import", keeps)
        # Moments come to the device layer by layer.
        cuts = self.may_cut(cluster) or self.offloads_state
        stacks = ("alpa-split-stacked",) if cuts else ()
        return ",".join((read, "alpa-unroll-layers", *stacks, "alpa-undo-sorts"))

    def layer_passes(self, count: int, padding: Sequence[str] = ()) -> str:
        """Passes that make the imported step ready for searches with `count` micro-batches.

        Args:
            padding: of `padding_passes`.
        """
        layers = {
            "layers": str(self.layers),
            "max-layers": str(self.max_layers),
            "balance": self.layer_balance,
            **({"computed-again": "true"} if self.remat == "all" else {}),
        }
        split = {
            "micro-batches": str(count),
            **(
                {"semantics": self.micro_batch_semantics}
                if self.micro_batch_semantics != "exact"
                else {}
            ),
            **({} if self.widen_sums else {"widen-sums": "false"}),
        }
        gather = {"gather": "true"} if self.prepare_weights == "gathered" else {}
        prepare = _with_options("alpa-prepare-weights", gather)
        return ",".join(
            (
                *((_with_options("alpa-split-batch", split),) if count > 1 else ()),
                *padding,
                _with_options("alpa-cluster-layers", layers),
                *((prepare,) if count > 1 and self.prepare_weights != "none" else ()),
                "alpa-trim-activations",
                *(("alpa-offload-state",) if self.offloads_state else ()),
            )
        )

    def search_passes(
        self,
        cluster: Cluster,
        cluster_file: str,
        count: int,
        *,
        coarse: bool = False,
        why: bool = True,
        solved: str = "",
        drops_pins: bool = False,
        start: Mapping[str, str] | None = None,
    ) -> str:
        """The search, in full or, for an estimate, only as far as ranks candidates.

        Args:
            why: whether the error is to say what is closest to fitting, if nothing fits.
            solved: a folder in which solved stages are kept; empty for none.
            drops_pins: whether the step's sharding constraints do not count.
            start: options that say near which plan to look.

        Raises:
            MethodError: the cluster's devices cut collectives into pieces beside products, which
                the method's export does not make.
        """
        if cluster.cuts_products and self.export != "collectives":
            raise MethodError(
                f"the cluster says `collective_matmul`, and export {self.export!r} does not cut "
                "collectives into pieces beside products",
                where=type(self).__name__,
                fix='use export="collectives", or take the key out of the cluster',
            )
        is_searched = self.remat == "auto"
        again = ["none"] if is_searched else self.remat
        again = [again] if isinstance(again, str) else [str(x) for x in again]
        rounds = self.stages_per_mesh
        search = {
            "cluster": cluster_file,
            "num-micro-batches": str(count),
            "schedule": self.schedule_name,
            **(
                {"virtual-stages": str(rounds)}
                if max(rounds, self._usual_stages_per_mesh) > 1
                else {}
            ),
            **({} if coarse or not self._may_share_meshes else {"most-virtual-stages": "6"}),
            "memory-fraction": str(self.memory_fraction),
            "time-limit": str(self.time_limit_seconds),
            "method": self.method,
            **({"remat": "auto"} if is_searched else {}),
            **({"remat-keeps": "auto"} if is_searched and self.remat_keeps == "auto" else {}),
            **({"offload": "activations"} if self.offloads_activations else {}),
            **({"layer-loops": "true"} if self.layer_loops else {}),
            "mesh-axes": str(self.num_mesh_axes),
            **({"gap": str(_COARSE_GAP), "work-limit": str(_COARSE_WORK)} if coarse else {}),
            **({} if why else {"explain-misfit": "false"}),
            **({"drop-pins": "true"} if drops_pins else {}),
            **({"cache-dir": solved} if solved else {}),
            **(start or {}),
            **self.stage_options(cluster),
        }
        return ",".join(
            (
                _with_options(
                    "alpa-rematerialize",
                    {
                        "layers": ",".join(again) or "none",
                        **({"keep": "products"} if self.remat_keeps == "products" else {}),
                    },
                ),
                _with_options("alpa-search-stages", search),
            )
        )

    def finish_passes(self, num_stages: int = 0, count: int = 1) -> str:
        """Passes that make programs of the chosen stages.

        Args:
            num_stages: that were chosen, for `count` micro-batches; only a schedule of one's own
                has to know.

        Raises:
            MethodError: such a schedule makes no steps for them.
        """
        loops = {"written": "true"} if self.layer_loops == "all" else {}
        build: dict[str, str] = {}
        if not isinstance(self.schedule, str):
            if not num_stages:
                raise MethodError(
                    f"schedule {self.schedule.name!r} needs the number of stages",
                    where=type(self).__name__,
                    fix="plan with this method; there are no passes for it before the search",
                )
            meshes = num_stages // self.stages_per_mesh
            problem = ScheduleProblem.placed_for(
                self.schedule_name, meshes, self.stages_per_mesh, count
            )
            build = {"schedule": "custom", "steps": self.schedule.text(problem)}
        return ",".join(
            (
                "alpa-defer-sums",
                "alpa-gather-sums",
                "alpa-slice-stages",
                "alpa-split-backward",
                "alpa-insert-reshards",
                "alpa-optimize-collectives",
                *((_with_options("alpa-roll-layers", loops),) if self.layer_loops else ()),
                "alpa-verify-sharding",
                _with_options("alpa-build-schedule", build),
                "alpa-plan-transfers",
                "alpa-verify-program",
                "alpa-export-shardy" if self.export == "shardy" else "alpa-lower-to-collectives",
                "alpa-expand-maps",
                "alpa-expand-grouped-dots",
                *(("alpa-copy-host-state",) if self.offload != "none" else ()),
            )
        )

    def passes(self, cluster: Cluster, cluster_file: str, count: int) -> str:
        """The whole pass pipeline for one count of micro-batches."""
        parts = (
            self.import_passes(cluster),
            self.layer_passes(count, padding_passes(cluster, self.paddings[0])),
            self.search_passes(cluster, cluster_file, count),
            self.finish_passes(),
        )
        return ",".join(parts)


def padding_passes(cluster: Cluster, padding: str) -> tuple[str, ...]:
    """Passes that make dimensions longer that the cluster's devices do not divide: `"none"` of
    them, those of the `"batch"`, by `"little"` or `"all"`. Devices of a host share a dimension, or
    those of several hosts."""
    hosts = cluster.devices_per_host
    parts = {part for devices in hosts for part in _divisors(devices)}
    if len(set(hosts)) == 1:
        parts.update(hosts[0] * part for part in _divisors(len(hosts)))
    aligns = cluster.reads_rows_slowly and padding != "batch"
    if padding == "none" or (parts == {1} and not aligns):
        return ()
    wastes = {"batch": (_MOST_PADDING,), "little": (_LITTLE_PADDING,)}.get(
        padding, (_MOST_PADDING, _LITTLE_PADDING)
    )
    listed = ",".join(map(str, sorted(parts - {1}) or [1]))
    rows = {"align-rows": "true"} if aligns else {}
    rows |= {"only-batch": "true"} if padding == "batch" else {}
    return tuple(
        _with_options("alpa-pad-dimensions", {"parts": listed, "most-waste": str(waste)} | rows)
        for waste in wastes
    )


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


def is_single(value: Any) -> bool:
    return isinstance(value, str) or not isinstance(value, Iterable)


def is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_mesh_shape(shape: Any) -> bool:
    if not isinstance(shape, Sequence):
        return False
    sizes = cast("Sequence[Any]", shape)
    return 1 <= len(sizes) <= 3 and all(is_whole(size, 1) for size in sizes)


def _with_options(name: str, options: dict[str, str]) -> str:
    def quoted(value: str) -> str:
        is_list = value.startswith("{") and value.endswith("}")
        if is_list or not set(value) & set(" \t\"'{}"):
            return value
        mark = "'" if '"' in value else '"'
        return f"{mark}{value}{mark}"

    if not options:
        return name
    return f"{name}{{{' '.join(f'{key}={quoted(value)}' for key, value in options.items())}}}"
