"""What a search tried before it took a plan; part of the plan, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from alpa_runtime.plan.json_nodes import Node
from alpa_runtime.plan.units import seconds_text


@dataclass(frozen=True)
class Tried:
    """One candidate.

    Attributes:
        num_micro_batches, remat: what was tried; `"auto"` left the choice of each stage to the
            search.
        schedule: the best one of those allowed; of no plan, what was allowed.
        seconds: predicted for one step; None if there is no plan.
        stages, peak_bytes: pipeline stages of that plan, and the most memory that one of its
            devices needs; 0 if there is none.
        rematerialized_stages: of `stages`, those that compute layers again for the gradients.
        exact: whether it was planned in full, rather than estimated by a coarse search.
        reason: why there is no plan, or why it could not be measured.
        measured_seconds: of one step, simulated with the seconds that its stages took on the
            devices of this process; None if it was not measured.
    """

    num_micro_batches: int
    remat: str
    schedule: str
    seconds: float | None
    stages: int = 0
    peak_bytes: float = 0
    exact: bool = False
    reason: str = ""
    measured_seconds: float | None = None
    rematerialized_stages: int = 0

    @classmethod
    def read(cls, node: Node) -> Tried:
        def seconds(name: str) -> float | None:
            value = node.optional(name)
            return None if value.value is None else value.number()

        return cls(
            node.get("num_micro_batches").integer(minimum=1),
            node.get("remat").string(),
            node.get("schedule").string(),
            seconds("seconds"),
            node.get("stages").integer(),
            node.get("peak_bytes").number(),
            node.get("exact").boolean(),
            node.get("reason").string(),
            seconds("measured_seconds"),
            node.get("rematerialized_stages").integer(),
        )

    def as_text(self) -> str:
        """One line.

        Example:
            >>> Tried(4, "none", "1f1b", 0.25, 2).as_text()
            '4 micro-batches: about 250 ms in 2 stages, 1f1b'
            >>> Tried(4, "none", "1f1b", 0.25, 1, exact=True, measured_seconds=0.3).as_text()
            '4 micro-batches: 250 ms in 1 stage; measured 300 ms'
            >>> Tried(4, "auto", "1f1b", 0.25, 4, rematerialized_stages=2).as_text()
            '4 micro-batches: about 250 ms in 4 stages, 2 rematerialized, 1f1b'
        """
        text = candidate_text(self.num_micro_batches, self.remat)
        if self.seconds is None:
            return f"{text}: {self.reason}"
        about = "" if self.exact else "about "
        stages = f"{self.stages} stage{'s' if self.stages > 1 else ''}"
        if self.remat == "auto" and self.rematerialized_stages:
            stages += f", {self.rematerialized_stages} rematerialized"
        order = f", {self.schedule}" if self.stages > 1 else ""
        text += f": {about}{seconds_text(self.seconds)} in {stages}{order}"
        if self.measured_seconds is not None:
            text += f"; measured {seconds_text(self.measured_seconds)}"
        return f"{text}; {self.reason}" if self.reason else text


def tried_text(tried: Sequence[Tried]) -> str:
    """A line for each candidate; nothing if there was no choice."""
    if len(tried) < 2:
        return ""
    rows = sorted(tried, key=lambda t: (t.num_micro_batches, t.remat, t.schedule))
    return "\n".join(["tried:", *(f"  {row.as_text()}" for row in rows)])


def candidate_text(count: int, remat: str) -> str:
    """`4 micro-batches, rematerialized`."""
    named = {"none": "", "auto": "", "all": ", rematerialized"}
    again = named.get(remat, f", layers {remat} rematerialized")
    return f"{count} micro-batch{'es' if count > 1 else ''}{again}"
