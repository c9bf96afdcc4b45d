"""What a search that begins with a plan from before goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_runtime.plan import Plan

from alpa_mlir.cluster import Cluster
from alpa_mlir.compiler import schedule_table
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.automatic import AutoParallel
from alpa_mlir.methods.kept_stages import submesh_of
from alpa_mlir.methods.method import Method, layer_ranges_text, submeshes_text


@dataclass(frozen=True)
class WarmStart:
    """A plan for another model or cluster, or of an earlier search for the same ones, near which a
    search looks: at meshes of its sizes and the next ones, at numbers of micro-batches next to its
    own, and at padded dimensions, prepared weights and host memory where it has such.

    Attributes:
        submeshes, layers, schedule: as the options of `alpa-search-stages` have them.
        num_stages: of the plan.
        num_micro_batches: of a step.
        batch_size: examples of a step; 0 if that is not known.
        pads, prepares, offloads: what the plan does.
        is_exact: whether to search as closely as everywhere; else to 2 %.
    """

    submeshes: str
    layers: str
    num_stages: int
    schedule: str
    num_micro_batches: int
    batch_size: int = 0
    pads: bool = False
    prepares: bool = False
    offloads: bool = False
    is_exact: bool = False

    @classmethod
    def of(cls, plan: Plan) -> WarmStart:
        """What a plan says."""
        batches = [info.shape[0] for info in plan.inputs if info.kind == "batch" and info.is_given]
        start = cls.of_stages(
            Cluster.from_dict(plan.cluster),
            [mesh.devices for mesh in plan.meshes],
            [stage.layers for stage in plan.stages],
            plan.schedule,
            plan.num_micro_batches,
        )
        return replace(
            start,
            batch_size=max(batches, default=0) * plan.num_micro_batches,
            pads=bool(plan.padded),
            prepares=any("prepare" in stage.functions for stage in plan.stages),
            offloads=any(stage.predicted.get("host_bytes", 0.0) > 0 for stage in plan.stages),
        )

    @classmethod
    def of_stages(
        cls,
        cluster: Cluster,
        meshes: Sequence[Sequence[int]],
        layers: Sequence[tuple[int, int]],
        schedule: str,
        num_micro_batches: int,
    ) -> WarmStart:
        """What the stages of a search say, for another one of the same step.

        Args:
            meshes: the devices of each.
            layers: of each stage, the first one and the end.
        """
        return cls(
            submeshes=submeshes_text([submesh_of(cluster, mesh) for mesh in meshes], "start"),
            layers=layer_ranges_text(layers),
            num_stages=len(layers),
            schedule=schedule if schedule in schedule_table() else "1f1b",
            num_micro_batches=num_micro_batches,
        )

    @staticmethod
    def suits(method: Method) -> bool:
        """Whether a method leaves stages to search."""
        return isinstance(method, AutoParallel) and method.pipeline == "auto"

    def check(self, method: Method) -> None:
        """Raise an error if the method leaves no stages to search.

        Raises:
            MethodError: as said.
        """
        if not isinstance(method, AutoParallel):
            raise MethodError(
                f"start with {type(method).__name__}, which says what the stages are",
                where="plan",
                fix="use AutoParallel, or leave start out",
            )
        if method.pipeline != "auto":
            raise MethodError(
                f"start with pipeline {method.pipeline!r}",
                where="plan",
                fix='use pipeline="auto", or leave start out',
            )

    def is_ruled_out(self, method: Method) -> bool:
        """Whether a limit of the method says that nothing like the plan may be chosen."""
        most = method.max_stages if isinstance(method, AutoParallel) else None
        return most is not None and self.num_stages > most

    def search_options(self) -> dict[str, str]:
        """Options of `alpa-search-stages`."""
        return {
            "start-submeshes": self.submeshes,
            "start-layers": self.layers,
            "start-schedule": self.schedule,
            **({"start-gap": "0"} if self.is_exact else {}),
        }

    def count(self, counts: Sequence[int], batch_size: int) -> float:
        """The number of micro-batches to begin with: the plan's own, if that may be chosen, or else
        what leaves as many examples in each."""
        if self.num_micro_batches in counts or not self.batch_size:
            return self.num_micro_batches
        return max(1.0, self.num_micro_batches * batch_size / self.batch_size)
