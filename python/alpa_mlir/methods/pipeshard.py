"""Pipelines whose stages the user decides, all of them or their form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, replace
from math import prod
from typing import Any, Literal, final

from alpa_runtime.errors import ROW, check_type

from alpa_mlir.cluster import Cluster
from alpa_mlir.compiler import pipeline_methods
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.method import (
    AutoLayerOption,
    AutoShardingOption,
    AutoStageOption,
    LayerOption,
    ManualLayerOption,
    ManualShardingOption,
    ManualStageOption,
    Method,
    StageOption,
    SubmeshLike,
    UniformStageOption,
    check_layer_ranges,
    chosen_shardings,
    is_mesh_shape,
    is_whole,
    layer_ranges_text,
    layers_of,
    submeshes_text,
)

_WHERE = "PipeshardParallel"


@final
@dataclass(frozen=True, kw_only=True)
class PipeshardParallel(Method):
    """Stages by hand; the shardings inside each are searched, or follow a named method.

    Attributes:
        submeshes: (hosts, devices of each host) of each stage's mesh; or (hosts, devices of each
            host, device type) for hosts of that type, where a cluster has several. With
            `virtual_stages` these are p equal meshes, and stage i lies on mesh i modulo p, or
            with a schedule in a V on mesh 0 to p - 1 and then back.
        mesh_shapes: the logical shape of each mesh; searched by default.
        layer_ranges: [first, end) of each stage's layers, of which there are so many as the last
            one says; searched by default.
        stage_option: instead of these: `ManualStageOption`, or `"uniform"` (the default) or
            `"auto"`, or the options of these names.

    Args:
        layer_option: another way to write `layers` and `remat`; `"manual"` for the step's marks.
        pipeline_schedule: another name of `schedule`; `"inference"` is that of a step without
            gradients, whatever the schedule.
        default_auto_sharding_option, manual_sharding_option: other ways to write `method`,
            `in_shardings` and `mesh_axes`.

    Example:
        >>> method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=4)
        >>> mixed = PipeshardParallel(submeshes=[(1, 8, "a100"), (2, 4, "v100")])
        >>> PipeshardParallel(layer_option=AutoLayerOption(layer_num=4)).layers
        4
    """

    submeshes: Sequence[SubmeshLike] = ()
    mesh_shapes: Sequence[tuple[int, ...]] | None = None
    layer_ranges: Sequence[tuple[int, int]] | None = None
    stage_option: StageOption | Literal["uniform", "auto"] | None = None
    layer_option: InitVar[LayerOption | Literal["manual"] | None] = None
    pipeline_schedule: InitVar[str | None] = None
    default_auto_sharding_option: InitVar[AutoShardingOption | None] = None
    manual_sharding_option: InitVar[ManualShardingOption | None] = None

    def __post_init__(
        self,
        layer_option: LayerOption | Literal["manual"] | None,
        pipeline_schedule: str | None,
        default_auto_sharding_option: AutoShardingOption | None,
        manual_sharding_option: ManualShardingOption | None,
    ) -> None:
        check_type(_WHERE, "submeshes", self.submeshes, ROW)
        for name in ("mesh_shapes", "layer_ranges"):
            check_type(_WHERE, name, getattr(self, name), ROW, None)
        self._choose_layers(layer_option)
        self._choose_stages()
        if pipeline_schedule not in (None, "inference"):
            self._set("schedule", pipeline_schedule)
        chosen_shardings(self, default_auto_sharding_option, manual_sharding_option)
        super().__post_init__()
        if not self.submeshes:
            self._check_searched()
            return
        submeshes_text(self.submeshes, _WHERE)
        meshes = len(self.submeshes)
        stages = meshes * self.stages_per_mesh
        for name, given, wanted in (
            ("mesh_shapes", self.mesh_shapes, meshes),
            ("layer_ranges", self.layer_ranges, stages),
        ):
            if given is not None and len(given) != wanted:
                each = "" if wanted == meshes else f" with {self.stages_per_mesh} stages each"
                raise MethodError(
                    f"{len(given)} {name} for {meshes} submeshes{each}",
                    where=_WHERE,
                    fix=f"give {wanted}, one for each {'mesh' if wanted == meshes else 'stage'}",
                )
        if self.stages_per_mesh > 1 and len({tuple(submesh) for submesh in self.submeshes}) > 1:
            raise MethodError(
                f"unequal submeshes with {self.stages_per_mesh} stages on each",
                where=_WHERE,
                fix=f"give equal submeshes, or another schedule than {self.schedule!r}",
            )
        for submesh, shape in zip(self.submeshes, self.mesh_shapes or (), strict=False):
            if not is_mesh_shape(shape) or prod(shape) != prod(submesh[:2]):
                raise MethodError(
                    f"mesh shape {shape!r} for submesh {submesh!r}",
                    where=_WHERE,
                    fix="give one to three sizes whose product is the submesh's devices",
                )
        if self.layer_ranges is not None:
            check_layer_ranges(self.layer_ranges, _WHERE, self.layers)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _choose_layers(self, option: Any) -> None:
        if option is None:
            return
        option = ManualLayerOption() if option == "manual" else option
        if not isinstance(option, AutoLayerOption | ManualLayerOption):
            raise MethodError(
                f"layer_option {option!r}",
                where=_WHERE,
                fix='use "manual", ManualLayerOption or AutoLayerOption',
            )
        if self.layers or self.remat != "none":
            raise MethodError(
                "layers are chosen twice", where=_WHERE, fix="leave out layers and remat"
            )
        if isinstance(option, AutoLayerOption):
            self._set("layers", option.layer_num)
        self._set("remat", "all" if option.remat_layer else "none")

    def _choose_stages(self) -> None:
        option: Any = self.stage_option
        if isinstance(option, str):
            named = {"uniform": UniformStageOption(), "auto": AutoStageOption()}
            option = named.get(option, option)
        given = self.submeshes or self.mesh_shapes is not None or self.layer_ranges is not None
        if option is None:
            option = None if self.submeshes else UniformStageOption()
        elif not isinstance(option, AutoStageOption | UniformStageOption | ManualStageOption):
            raise MethodError(
                f"stage_option {option!r}",
                where=_WHERE,
                fix='use "uniform", "auto", ManualStageOption, AutoStageOption or '
                "UniformStageOption",
            )
        if given and option is not None:
            raise MethodError(
                "no submeshes" if self.stage_option is None else "stages are chosen twice",
                where=_WHERE,
                fix="give submeshes, (hosts, devices) a stage, or a stage_option",
            )
        if isinstance(option, ManualStageOption):
            self._set("submeshes", tuple(option.submesh_physical_shapes))
            self._set("mesh_shapes", option.submesh_logical_shapes)
            self._set("layer_ranges", option.layer_ranges)
            option = None
        self._set("stage_option", option)

    def _check_searched(self) -> None:
        option = self.stage_option
        if isinstance(option, AutoStageOption) and option.pipeline not in pipeline_methods():
            raise MethodError(
                f"unknown pipeline {option.pipeline!r}",
                where="AutoStageOption",
                fix=f"use one of {', '.join(pipeline_methods())}",
            )
        if isinstance(option, UniformStageOption):
            count = option.num_stages
            if count is not None and not is_whole(count, 1):
                raise MethodError(
                    f"num_stages {count!r}",
                    where="UniformStageOption",
                    fix="use a whole number of at least 1",
                )
            shape = option.submesh_physical_shape
            if shape is not None:
                submeshes_text([shape], "UniformStageOption")

    @property
    def has_fixed_meshes(self) -> bool:
        return bool(self.submeshes)

    @property
    def least_layers(self) -> int:
        return max(1, len(self.submeshes) * self.stages_per_mesh)

    def settled(self, cluster: Cluster, marked_layers: Callable[[], int]) -> Method:
        """Uniform stages, once the number of layers or of stages is known. Layers that the step
        marks are taken if there are as many as is asked for, or as `layer_ranges` has."""
        option, marked = self.stage_option, marked_layers()
        if self.layer_ranges is not None:
            return replace(self, layers=layers_of(self.layer_ranges, marked))
        if self.layers not in (0, marked):
            marked = 0
        if not isinstance(option, UniformStageOption):
            return replace(self, layers=0) if marked else self
        layers = self.layers or marked
        stages = option.num_stages or layers
        if not stages:
            return self
        layers = layers or stages
        if layers % stages:
            raise MethodError(
                f"{stages} uniform stages of {layers} layers",
                where=_WHERE,
                fix="use a number of stages that divides the layers",
            )
        if stages % self.stages_per_mesh:
            raise MethodError(
                f"{stages} stages with {self.stages_per_mesh} on each mesh",
                where=_WHERE,
                fix="use a number of stages that virtual_stages divides",
            )
        meshes, each = stages // self.stages_per_mesh, layers // stages
        submesh = option.submesh_physical_shape or _share(cluster, meshes)
        shape = option.submesh_logical_shape
        return replace(
            self,
            layers=0 if marked else layers,
            submeshes=(submesh,) * meshes,
            mesh_shapes=None if shape is None else (tuple(shape),) * meshes,
            layer_ranges=tuple((i * each, (i + 1) * each) for i in range(stages)),
            stage_option=None,
        )

    def may_cut(self, cluster: Cluster) -> bool:
        if not self.submeshes:
            return super().may_cut(cluster)
        return len(self.submeshes) * self.stages_per_mesh > 1

    def stage_options(self, cluster: Cluster) -> dict[str, str]:
        if isinstance(self.stage_option, AutoStageOption):
            return {"pipeline": self.stage_option.pipeline}
        if self.stage_option is not None:
            return {"pipeline": "uniform"}
        options = {"submeshes": submeshes_text(self.submeshes, _WHERE)}
        if self.mesh_shapes is not None:
            options["mesh-shapes"] = ",".join("x".join(map(str, s)) for s in self.mesh_shapes)
        if self.layer_ranges is not None:
            options["layer-ranges"] = layer_ranges_text(self.layer_ranges)
        return options


def _share(cluster: Cluster, meshes: int) -> tuple[int, int]:
    """The submesh of one of so many equal meshes, (hosts, devices of each).

    Raises:
        MethodError: the cluster cannot be shared out so.
    """
    hosts, total = set(cluster.devices_per_host), cluster.num_devices
    size = total // meshes
    each = max(hosts)
    if len(hosts) > 1 or total % meshes or (each % size and size % each):
        raise MethodError(
            f"{meshes} equal meshes of hosts with {list(cluster.devices_per_host)} devices",
            where=_WHERE,
            fix="use a number of stages that divides the devices of equal hosts, or the hosts, "
            "or give submeshes",
        )
    return (1, size) if size <= each else (size // each, each)
