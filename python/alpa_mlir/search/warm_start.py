"""What a search that begins with a plan from before goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from alpa_runtime.plan import Plan

from alpa_mlir.compiler import schedule_table
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.automatic import AutoParallel
from alpa_mlir.methods.kept_stages import submesh_of
from alpa_mlir.methods.method import Method, layer_ranges_text, submeshes_text


@dataclass(frozen=True)
class WarmStart:
    """A plan for another model or cluster, near which the search for a new one looks: at meshes of
    its sizes and the next ones, at numbers of micro-batches next to its own, and at padded
    dimensions, prepared weights and host memory where it has such.

    Attributes:
        submeshes, layers, schedule: as the options of `alpa-search-stages` have them.
        num_stages: of the plan.
        num_micro_batches: of a step.
        batch_size: examples of a step.
        pads, prepares, offloads: what the plan does.
    """

    submeshes: str
    layers: str
    num_stages: int
    schedule: str
    num_micro_batches: int
    batch_size: int
    pads: bool
    prepares: bool
    offloads: bool

    @classmethod
    def of(cls, plan: Plan) -> WarmStart:
        """What a plan says."""
        known = plan.schedule in schedule_table()
        batches = [info.shape[0] for info in plan.inputs if info.kind == "batch" and info.is_given]
        return cls(
            submeshes=submeshes_text([submesh_of(plan, mesh) for mesh in plan.meshes], "start"),
            layers=layer_ranges_text([stage.layers for stage in plan.stages]),
            num_stages=len(plan.stages),
            schedule=plan.schedule if known else "1f1b",
            num_micro_batches=plan.num_micro_batches,
            batch_size=max(batches, default=0) * plan.num_micro_batches,
            pads=bool(plan.padded),
            prepares=any("prepare" in stage.functions for stage in plan.stages),
            offloads=any(stage.predicted.get("host_bytes", 0.0) > 0 for stage in plan.stages),
        )

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
        }

    def count(self, counts: Sequence[int], batch_size: int) -> float:
        """The number of micro-batches to begin with: the plan's own, if that may be chosen, or else
        what leaves as many examples in each."""
        if self.num_micro_batches in counts or not self.batch_size:
            return self.num_micro_batches
        return max(1.0, self.num_micro_batches * batch_size / self.batch_size)
