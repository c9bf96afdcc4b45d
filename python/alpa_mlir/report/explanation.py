"""Why a plan splits its ops as it does, for people; from what the search wrote into the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpa_runtime.errors import check_type
from alpa_runtime.plan import Plan
from alpa_runtime.plan.text import seconds_text

Row = Mapping[str, Any]


def explain(plan: Plan, op: str = "", most: int = 20) -> str:
    """Where each stage's time goes, its dearest ops and decisions, and each one's runner-up.

    A runner-up is the best plan found in which that decision falls otherwise: the decisions that
    share a cost with it are re-optimized one after another, all others stay, and memory is left
    out. Seconds are those of a step, micro-batches included.

    Args:
        plan: as the compiler made it, or loaded from disk.
        op: only ops and decisions with this in their name, or in JAX's name for them.
        most: how many ops and decisions to show for each stage.

    Returns:
        Text of several lines.

    Example:
        >>> print(explain(planned.plan, op="qkv"))  # doctest: +SKIP
    """
    check_type("explain", "plan", plan, Plan)
    lines: list[str] = []
    for number in range(len(plan.stages)):
        found = plan.explanation(number)
        lines.append(f"stage {number}")
        if not found:
            lines.append("  the plan says nothing about it")
            continue
        lines += ["  " + line for line in _stage_lines(found, op, most)]
    return "\n".join(lines)


def _stage_lines(found: Row, op: str, most: int) -> list[str]:
    total = found["compute_seconds"] + found["communication_seconds"] + found["held_bytes_seconds"]
    lines = [
        f"{_time(total)} a step: {_time(found['compute_seconds'])} of computation, "
        f"{_time(found['communication_seconds'])} of communication",
        "communication",
    ]
    for row in sorted(found["communication"], key=lambda row: -row["seconds"]):
        axis = f"axis {row['axis']}" if "axis" in row else "any axis"
        lines.append(
            f"  {row['collective']:<20} {axis:<8} {row['count']:>6} times "
            f"{row['bytes'] / 1e6:>12.3f} MB {_time(row['seconds']):>12}"
        )

    def wanted(rows: list[Row]) -> list[Row]:
        return [row for row in rows if op in row["op"] or op in row["where"]]

    def cost(row: Row) -> float:
        return row["compute_seconds"] + row["communication_seconds"]

    ops = sorted(wanted(found["ops"]), key=cost, reverse=True)
    lines.append(f"ops by cost, {min(most, len(ops))} of {len(ops)}")
    for row in ops[:most]:
        lines.append(
            f"  {_time(row['compute_seconds']):>12} computing "
            f"{_time(row['communication_seconds']):>12} communicating  {_describe(row)}"
        )
        lines.append(f"      {row['specs']}")

    decisions = sorted(wanted(found["decisions"]), key=lambda row: -row["seconds"])
    lines.append(f"decisions by cost, {min(most, len(decisions))} of {len(decisions)}")
    for row in decisions[:most]:
        lines.append(f"  {_time(row['seconds']):>12}  {_describe(row)}: one of {row['choices']}")
        lines.append(f"      chosen    {row['chosen']}")
        if "runner_up" in row:
            more = _time(row["runner_up_more_seconds"])
            lines.append(f"      runner-up {row['runner_up']}: the step takes {more} more")
    return lines


def _describe(row: Row) -> str:
    return " ".join(part for part in (row["op"], row["where"], row["phase"]) if part)


def _time(seconds: float) -> str:
    return ("-" if seconds < 0 else "") + seconds_text(abs(seconds))
