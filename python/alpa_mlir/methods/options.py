"""Options of methods as Alpa groups them; each is another way to write fields of a method."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import jax
from alpa_runtime.errors import FLAG, ROW, ROWS, WHOLE, check_type
from jax.sharding import PartitionSpec

from alpa_mlir.errors import MethodError

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
    """Stages of as many layers each, on submeshes of one shape.

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
