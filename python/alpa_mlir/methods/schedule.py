"""Schedules as data: which run comes when on which mesh, and schedules of one's own.

A schedule turns a `ScheduleProblem` into a list of steps for each mesh. The compiler's own are in
the table of `alpa_mlir.compiler.schedules()`; `docs/schedules.md` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from alpa_mlir.compiler import (
    schedule_kept,
    schedule_spans,
    schedule_steps,
    schedule_table,
    schedules,
)
from alpa_mlir.errors import MethodError

KINDS = "FBIW"


class Step(NamedTuple):
    """A run: forward (`"F"`), backward (`"B"`), or its input (`"I"`) or weight part (`"W"`)."""

    kind: str
    stage: int
    micro_batch: int


class StageSeconds(NamedTuple):
    """Seconds of a stage's runs for a micro-batch, and of sending to the next stage and back."""

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    forth: float = 0.0
    back: float = 0.0


@dataclass(frozen=True)
class ScheduleProblem:
    """What a schedule is made for.

    Attributes:
        mesh_of: mesh of each stage; meshes are numbered by their first stage.
        num_micro_batches: of a step.
        has_backward: of each stage; empty for all.
        seconds: of each stage; empty for one second a run and no time for sending.
        limits: activations of so many micro-batches fit on each mesh; empty for one a mesh, or
            what the schedule keeps. Only `zb-auto` and those with stages in a V heed them.
        kept_parts: of each stage, the part of a micro-batch's activations that waits for the
            weight part; empty for all of them.
        sizes: of each stage, a micro-batch's activations as `limits` count them; empty for one
            each.
        steps_overlap: a mesh begins its next step without waiting for the others.
        steps: of the schedule `custom`, one line for each mesh.

    Example:
        >>> ScheduleProblem.in_rounds(2, 1, 4).mesh_of
        (0, 1)
    """

    mesh_of: tuple[int, ...]
    num_micro_batches: int
    has_backward: tuple[bool, ...] = ()
    seconds: tuple[StageSeconds, ...] = ()
    limits: tuple[float, ...] = ()
    kept_parts: tuple[float, ...] = ()
    sizes: tuple[float, ...] = ()
    steps_overlap: bool = False
    steps: str = ""

    @staticmethod
    def in_rounds(num_meshes: int, stages_per_mesh: int, num_micro_batches: int) -> ScheduleProblem:
        """`stages_per_mesh` rounds of stages over the meshes."""
        return ScheduleProblem(tuple(range(num_meshes)) * stages_per_mesh, num_micro_batches)

    @staticmethod
    def in_v(
        num_meshes: int, num_micro_batches: int, *, stages_per_mesh: int = 2
    ) -> ScheduleProblem:
        """Stages over the meshes and back: the first and the last one lie on mesh 0.

        Example:
            >>> ScheduleProblem.in_v(3, 4).mesh_of
            (0, 1, 2, 2, 1, 0)
        """
        forth = tuple(range(num_meshes))
        rounds = (forth[::-1] if r % 2 else forth for r in range(stages_per_mesh))
        return ScheduleProblem(sum(rounds, ()), num_micro_batches)

    @staticmethod
    def placed_for(
        schedule: str, num_meshes: int, stages_per_mesh: int, num_micro_batches: int
    ) -> ScheduleProblem:
        """As the compiler's schedule of that name has them."""
        if schedule_table()[schedule].in_v:
            return ScheduleProblem.in_v(
                num_meshes, num_micro_batches, stages_per_mesh=stages_per_mesh
            )
        return ScheduleProblem.in_rounds(num_meshes, stages_per_mesh, num_micro_batches)

    @property
    def num_meshes(self) -> int:
        """How many meshes there are."""
        return max(self.mesh_of) + 1

    def stages_of(self, mesh: int) -> tuple[int, ...]:
        """The stages of a mesh in order."""
        return tuple(stage for stage, its in enumerate(self.mesh_of) if its == mesh)

    def fields(self) -> dict[str, Any]:
        """As the compiler takes it."""
        return {
            "mesh_of": list(self.mesh_of),
            "num_micro_batches": self.num_micro_batches,
            "has_backward": list(self.has_backward),
            "seconds": [tuple(map(float, times)) for times in self.seconds],
            "limits": list(map(float, self.limits)),
            "kept_parts": list(map(float, self.kept_parts)),
            "sizes": list(map(float, self.sizes)),
            "steps_overlap": self.steps_overlap,
            "steps": self.steps,
        }


def generate_steps(name: str, problem: ScheduleProblem) -> list[list[Step]]:
    """The steps of each mesh under a schedule of the compiler.

    Raises:
        MethodError: the schedule is unknown or does not take the problem.

    Example:
        >>> [str(step.kind) for step in generate_steps("1f1b", ScheduleProblem((0,), 2))[0]]
        ['F', 'B', 'F', 'B']
    """
    return [[Step(*step) for step in mesh] for mesh in schedule_steps(name, problem.fields())]


def most_kept(name: str, problem: ScheduleProblem) -> list[int]:
    """How many activations each mesh keeps at most, one for each stage and micro-batch from the
    forward run to the end of the backward run.

    Raises:
        MethodError: the schedule is unknown.
    """
    return schedule_kept(name, problem.fields())


def spans(name: str, problem: ScheduleProblem) -> list[tuple[float, float]]:
    """When the first run of each mesh begins and its last one ends, in seconds.

    Raises:
        MethodError: the schedule is unknown or does not take the problem.
    """
    return schedule_spans(name, problem.fields())


StepsFunction = Callable[[ScheduleProblem], Sequence[Iterable[tuple[str, int, int]]]]


@dataclass(frozen=True)
class Schedule:
    """A schedule of one's own: `schedule=` of a method takes it like the name of another.

    Attributes:
        name: for messages.
        steps: from the problem to the steps of each mesh, as (kind, stage, micro-batch).
        like: the schedule whose memory the search assumes.

    Example:
        >>> def one_by_one(problem):
        ...     return [
        ...         [(kind, s, b) for b in range(problem.num_micro_batches)
        ...          for kind, stages in (("F", own), ("B", own[::-1])) for s in stages]
        ...         for own in map(problem.stages_of, range(problem.num_meshes))
        ...     ]
        >>> Schedule("one-by-one", one_by_one).text(ScheduleProblem((0, 1), 2))
        'F0.0,B0.0,F0.1,B0.1;F1.0,B1.0,F1.1,B1.1'
    """

    name: str
    steps: StepsFunction
    like: str = "1f1b"

    def __post_init__(self) -> None:
        if self.like not in schedules():
            raise MethodError(
                f"like={self.like!r}",
                where=f"schedule {self.name!r}",
                fix=f"use one of {', '.join(schedules())}",
            )

    def text(self, problem: ScheduleProblem) -> str:
        """The steps as `alpa-build-schedule` takes them.

        Raises:
            MethodError: a step is no (kind, stage, micro-batch).
        """
        lines: list[str] = []
        for mesh, steps in enumerate(self.steps(problem)):
            words: list[str] = []
            for step in steps:
                try:
                    kind, stage, micro_batch = step
                    if kind not in KINDS or len(kind) != 1:
                        raise ValueError
                    words.append(f"{kind}{int(stage)}.{int(micro_batch)}")
                except (TypeError, ValueError):
                    raise MethodError(
                        f"step {len(words)} of mesh {mesh} is {step!r}",
                        where=f"schedule {self.name!r}",
                        fix="give (kind, stage, micro-batch), where kind is F, B, I or W",
                    ) from None
            lines.append(",".join(words))
        return ";".join(lines)
