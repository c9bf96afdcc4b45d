"""Methods that search: all of a plan, or the shardings on one mesh; and data parallelism."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, ClassVar, final

from alpa_mlir.cluster import Cluster
from alpa_mlir.compiler import pipeline_methods
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.method import (
    AutoShardingOption,
    ManualShardingOption,
    Method,
    check_layer_ranges,
    chosen_shardings,
    is_mesh_shape,
    is_whole,
    layer_ranges_text,
    layers_of,
    submeshes_text,
)
from alpa_mlir.methods.schedule import Schedule


@final
@dataclass(frozen=True, kw_only=True)
class AutoParallel(Method):
    """Everything is searched: stages, meshes, shardings, micro-batches, schedule, remat.

    `num_micro_batches` may be a number, several to choose from, or None for all numbers that
    divide the batch.

    Attributes:
        pipeline: what stages and submeshes may be chosen: `"auto"` for all, or a name of
            `docs/methods.md` such as `"equal-layer"`.
        max_devices: how many devices the plan may take, whichever are fastest; the others stay
            idle. None for all. Needs `pipeline="auto"`.
        max_stages: how many stages the plan may have, all of those that share a mesh counted; 1
            is no pipeline. None for any number.
        layer_ranges: [first, end) of each stage's layers, which the plan keeps; meshes, shardings
            and schedule are searched. `layers` is then the last end. None for any.

    Example:
        >>> AutoParallel(num_micro_batches=4).num_micro_batches
        4
        >>> AutoParallel(pipeline="inter-only").pipeline
        'inter-only'
        >>> AutoParallel(max_stages=1, max_devices=8).max_stages
        1
    """

    searches_counts: ClassVar[bool] = True

    num_micro_batches: int | Sequence[int] | None = None
    schedule: str | Schedule = "auto"
    remat: str | Sequence[int] = "auto"
    pipeline: str = "auto"
    max_devices: int | None = None
    max_stages: int | None = None
    layer_ranges: Sequence[tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_devices", "max_stages"):
            value = getattr(self, name)
            if value is not None and not is_whole(value, 1):
                raise MethodError(
                    f"{name} {value!r}",
                    where="AutoParallel",
                    fix="use a whole number of at least 1",
                )
        if self.max_devices is not None and self.pipeline != "auto":
            raise MethodError(
                "max_devices with a pipeline that takes all devices",
                where="AutoParallel",
                fix='use pipeline="auto", or a smaller cluster',
            )
        if self.max_stages is not None and self.max_stages < self.stages_per_mesh:
            raise MethodError(
                f"max_stages {self.max_stages} with {self.stages_per_mesh} stages on each mesh",
                where="AutoParallel",
                fix="use another schedule, or more stages",
            )
        if self.layer_ranges is not None:
            self._check_layer_ranges(self.layer_ranges)
        if self.pipeline not in pipeline_methods():
            raise MethodError(
                f"unknown pipeline {self.pipeline!r}",
                where="AutoParallel",
                fix=f"use one of {', '.join(pipeline_methods())}",
            )

    def _check_layer_ranges(self, given: Any) -> None:
        check_layer_ranges(given, "AutoParallel", self.layers)
        if self.pipeline not in ("auto", "equal-mesh"):
            raise MethodError(
                f"layer_ranges with pipeline {self.pipeline!r}, which chooses the layers",
                where="AutoParallel",
                fix='use pipeline="auto" or "equal-mesh"',
            )
        most = self.max_stages
        if most is not None and len(given) > most:
            raise MethodError(
                f"{len(given)} layer_ranges with max_stages {most}",
                where="AutoParallel",
                fix="leave one of them out",
            )

    def settled(self, cluster: Cluster, marked_layers: Callable[[], int]) -> Method:
        """With as many layers as `layer_ranges` has, whether or not the step marks these."""
        if self.layer_ranges is None:
            return self
        return replace(self, layers=layers_of(self.layer_ranges, marked_layers()))

    def stage_options(self, cluster: Cluster) -> dict[str, str]:
        options = {"pipeline": self.pipeline}
        if self.max_devices is not None:
            options["max-devices"] = str(self.max_devices)
        if self.max_stages is not None:
            options["max-stages"] = str(self.max_stages)
        if self.layer_ranges is not None:
            options["layer-ranges"] = layer_ranges_text(self.layer_ranges)
        return options

    def lifted_limits(self) -> Iterator[tuple[str, int, Callable[[int | None], Method]]]:
        for name in ("max_stages", "max_devices"):
            value = getattr(self, name)
            if value is not None:
                yield name, value, partial(_with, self, name)
        if self.layer_ranges is not None:
            layers = self.layer_ranges[-1][1]
            yield "layer_ranges", 0, lambda _: replace(self, layer_ranges=None, layers=layers)


def _with(method: AutoParallel, name: str, value: int | None) -> Method:
    return replace(method, **{name: value})


@dataclass(frozen=True, kw_only=True)
class OneMesh(Method, ABC):
    """Base of the methods with one mesh and no pipeline.

    Attributes:
        mesh_shape: sizes of the mesh's axes, such as `(2, 4)`; by default every view of the
            whole cluster is tried.
        device_type: take only hosts of this type, where a cluster has several.
    """

    mesh_shape: tuple[int, ...] | None = None
    device_type: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.virtual_stages > 1:
            raise MethodError(
                f"{self.virtual_stages} virtual_stages without a pipeline",
                where=type(self).__name__,
                fix="use AutoParallel or PipeshardParallel",
            )
        if self.mesh_shape is not None and not is_mesh_shape(self.mesh_shape):
            raise MethodError(
                f"mesh_shape {self.mesh_shape!r}",
                where=type(self).__name__,
                fix="give one to three sizes of at least 1, such as (2, 4)",
            )

    @property
    def stages_per_mesh(self) -> int:
        return 1

    @property
    def has_fixed_meshes(self) -> bool:
        return self.mesh_shape is not None

    @property
    def known_mesh_shape(self) -> tuple[int, ...] | None:
        return self.mesh_shape

    def may_cut(self, cluster: Cluster) -> bool:
        return False

    def stage_options(self, cluster: Cluster) -> dict[str, str]:
        hosts = self._hosts(cluster)
        if self.mesh_shape is None:
            if len(set(hosts)) > 1:
                raise MethodError(
                    f"hosts with {list(hosts)} devices do not make one mesh",
                    where=type(self).__name__,
                    fix="use AutoParallel, or give mesh_shape",
                )
            return {"submeshes": self._submesh(len(hosts), hosts[0])}
        size = prod(self.mesh_shape)
        submesh = (1, size) if size <= hosts[0] else (size // hosts[0], hosts[0])
        if prod(submesh) != size or submesh[0] > len(hosts):
            raise MethodError(
                f"mesh_shape {self.mesh_shape} takes {size} devices of hosts with {list(hosts)}",
                where=type(self).__name__,
                fix="use devices of one host, or whole hosts",
            )
        return {
            "submeshes": self._submesh(*submesh),
            "mesh-shapes": "x".join(map(str, self.mesh_shape)),
        }

    def _submesh(self, hosts: int, devices: int) -> str:
        return submeshes_text([(hosts, devices, self.device_type)], type(self).__name__)

    def _hosts(self, cluster: Cluster) -> list[int]:
        """Devices of each host that may be taken."""
        hosts = list(zip(cluster.devices_per_host, cluster.host_device_types, strict=True))
        fitting = [devices for devices, name in hosts if self.device_type in ("", name)]
        if not fitting:
            raise MethodError(
                f"cluster {cluster.name!r} has no hosts of device type {self.device_type!r}",
                where=type(self).__name__,
                fix=f"use one of {', '.join(sorted(set(cluster.host_device_types)))}",
            )
        return fitting


@final
@dataclass(frozen=True, kw_only=True)
class ShardParallel(OneMesh):
    """One mesh and no pipeline; the shardings are searched, or follow a named method.

    Args:
        auto_sharding_option, manual_sharding_option: other ways to write `method`,
            `in_shardings` and `mesh_axes`.

    Example:
        >>> ShardParallel(mesh_shape=(2, 2)).mesh_shape
        (2, 2)
        >>> ShardParallel(method="zero-2").method
        'zero-2'
    """

    auto_sharding_option: InitVar[AutoShardingOption | None] = None
    manual_sharding_option: InitVar[ManualShardingOption | None] = None

    def __post_init__(
        self,
        auto_sharding_option: AutoShardingOption | None,
        manual_sharding_option: ManualShardingOption | None,
    ) -> None:
        chosen_shardings(self, auto_sharding_option, manual_sharding_option)
        super().__post_init__()


@final
@dataclass(frozen=True, kw_only=True)
class DataParallel(OneMesh):
    """The batch is split over all devices; parameters, optimizer state and gradients are whole on
    each, and gradients are all-reduced. The method `data-parallel` of docs/methods.md.

    Example:
        >>> DataParallel(num_micro_batches=2).method
        'data-parallel'
    """

    method: str = field(default="data-parallel", init=False)


@final
@dataclass(frozen=True, kw_only=True)
class Zero2Parallel(OneMesh):
    """Data parallelism with gradients and optimizer state split over all devices: gradients are
    reduce-scattered, new parameters all-gathered. The method `zero-2` of docs/methods.md
    (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    2020).

    Example:
        >>> Zero2Parallel().method
        'zero-2'
    """

    method: str = field(default="zero-2", init=False)


@final
@dataclass(frozen=True, kw_only=True)
class Zero3Parallel(OneMesh):
    """As `Zero2Parallel`, with parameters split too, and gathered wherever they are used. The
    method `zero-3` of docs/methods.md.

    Example:
        >>> Zero3Parallel().method
        'zero-3'
    """

    method: str = field(default="zero-3", init=False)
