"""Why a plan splits its ops as it does, and what its predicted step is limited by, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import PlanLike, as_plan, idle_text, padded_text
from alpa_runtime.plan.stage import StageInfo
from alpa_runtime.plan.strategy import AxisNames, strategy_of
from alpa_runtime.plan.text import bytes_text, seconds_text, table

from alpa_mlir.errors import AlpaError
from alpa_mlir.report._names import op_path
from alpa_mlir.simulator import simulate

Row = Mapping[str, Any]


def explain(plan: PlanLike, op: str = "", most: int = 20) -> str:
    """Where each stage's time goes, its dearest ops and decisions, and each one's runner-up.

    Devices that are in no stage come first, with the reason, then the kinds of parallelism. Ops
    that every device of a stage computes whole, though there are several, are all named, with
    their seconds and source lines, and products that devices share in fewer parts than they are.

    A runner-up is the best plan found in which that decision falls otherwise: the decisions that
    share a cost with it are re-optimized one after another, all others stay, and memory is left
    out. Seconds are those of a step, micro-batches included.

    Args:
        plan: as the compiler made it, or loaded from disk; a planned step stands for its plan.
        op: only ops and decisions with this in their name, or in JAX's name for them.
        most: how many ops and decisions to show for each stage.

    Returns:
        Text of several lines.

    Example:
        >>> print(explain(planned.plan, op="qkv"))  # doctest: +SKIP
    """
    plan = as_plan("explain", plan)
    strategy = strategy_of(plan)
    words = strategy.text and f"strategy: {strategy.text}"
    heads = (idle_text(plan), words, padded_text(plan))
    lines = [line for line in heads if line]
    for number in range(len(plan.stages)):
        found = plan.explanation(number)
        lines.append(f"stage {number}")
        if not found:
            lines.append("  the plan says nothing about it")
            continue
        names = strategy.axes[plan.stages[number].mesh]
        lines += ["  " + line for line in _stage_lines(found, names, op, most)]
    return "\n".join(lines)


def _communication_seconds(found: Row) -> float:
    """What communication adds to the seconds of a step."""
    return float(found["communication_seconds"]) + _hidden_and_exposed(found)[1]


def _hidden_and_exposed(found: Row) -> tuple[float, float]:
    """Seconds of collectives beside other work; plans of before had none."""
    return (
        found.get("hidden_communication_seconds", 0.0),
        found.get("exposed_communication_seconds", 0.0),
    )


def _stage_lines(found: Row, names: AxisNames, op: str, most: int) -> list[str]:
    hidden, exposed = _hidden_and_exposed(found)
    copies = float(found.get("host_seconds", 0.0))
    total = found["compute_seconds"] + found["communication_seconds"] + found["held_bytes_seconds"]
    total += copies
    lines = [
        f"{_time(total + exposed)} a step: {_time(found['compute_seconds'])} of computation, "
        f"{_time(found['communication_seconds'])} of communication"
    ]
    if hidden + exposed > 0:
        lines.append(
            f"{_time(hidden)} of communication more are hidden by other work; "
            f"{_time(exposed)} are left when that has ended"
        )
    if copies > 0:
        lines.append(
            f"{_time(copies)} are copies between devices and the memory of their hosts that the "
            "step waits for"
        )
    if beside := float(found.get("hidden_host_seconds", 0.0)):
        lines.append(f"{_time(beside)} of such copies more are hidden by other work")
    lines.append("communication")
    for row in sorted(found["communication"], key=lambda row: -row["seconds"]):
        axis = names.axis(row["axis"]) if "axis" in row else "all axes"
        kind = row["collective"].replace("_", "-")
        lines.append(
            f"  {kind:<20} over {axis:<9} {row['count']:>6} times "
            f"{bytes_text(row['bytes']):>9} {_time(row['seconds']):>12}"
        )

    lines += _constraint_lines(found)

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
        lines.append(f"      {names.in_text(row['specs'])}")
    lines += _whole_lines(wanted(found["ops"]), total + exposed)
    lines += _repeated_lines(wanted(found["ops"]), found.get("repeated_seconds", 0.0))
    lines += _unaligned_lines(wanted(found["ops"]))

    decisions = sorted(wanted(found["decisions"]), key=lambda row: -row["seconds"])
    lines.append(f"decisions by cost, {min(most, len(decisions))} of {len(decisions)}")
    for row in decisions[:most]:
        lines.append(f"  {_time(row['seconds']):>12}  {_describe(row)}: one of {row['choices']}")
        lines.append(f"      chosen    {names.in_text(row['chosen'])}")
        if "runner_up" in row:
            other = names.in_text(row["runner_up"])
            lines.append(f"      runner-up {other}: {runner_up_text(row, total + exposed)}")
    return lines


def _constraint_lines(found: Row) -> list[str]:
    """What became of the program's sharding constraints in a stage."""
    rows: list[Row] = list(found.get("constraints", ()))
    if not rows:
        return []
    cost = found.get("constraints_seconds")
    kept = sum(row["count"] for row in rows if "held" in row)
    total = sum(row["count"] for row in rows)
    lines = [
        f"sharding constraints, {kept} of {total} values held as they say"
        + ("" if cost is None else f": they cost {_time(cost)} a step")
    ]
    for row in rows:
        what = f"held as {row['held']}" if "held" in row else f"dropped, since {row['dropped']}"
        times = f", {row['count']} values" if row["count"] > 1 else ""
        lines.append(f"  {row['line']} {row['wants']}{times}: {what}")
    return lines


_NEGLIGIBLE = 1e-3  # Of a stage's seconds.


def _whole_lines(rows: list[Row], stage_seconds: float) -> list[str]:
    """Ops that every device of a mesh computes, all of them: those that no choice splits, and
    those that are cheapest so."""
    whole = [row for row in rows if row.get("whole") and row["compute_seconds"] > 0]
    stuck = [row for row in whole if not row.get("may_split")]
    cheapest = [row for row in whole if row.get("may_split")]
    lines: list[str] = []
    for title, some in (
        ("ops that every device runs whole, since no choice of the method splits them", stuck),
        ("ops that every device runs whole, since moves for a split would cost more", cheapest),
    ):
        if some:
            lost = sum(map(_whole_seconds, some))
            lines.append(f"{title}, {len(some)}: {_time(lost)} more than if devices shared them")
            lines += _whole_places(some, stage_seconds)
    return lines + _whole_tokens_lines(whole)


def _whole_seconds(row: Row) -> float:
    """What devices would save by sharing the op; plans of before had all that it takes."""
    return row.get("whole_seconds", row["compute_seconds"])


def _whole_places(rows: list[Row], stage_seconds: float) -> list[str]:
    """By line of the program; of the cheapest, which together are negligible, only their sum.
    Calls are all named."""
    places: dict[tuple[str, str, str], list[float]] = {}
    splittable: set[str] = set()  # Targets that a rule may split.
    reasons: dict[str, str] = {}  # By target, why known calls are whole.
    for row in rows:
        place = (row["op"], row.get("target", ""), row.get("line", ""))
        places.setdefault(place, []).append(_whole_seconds(row))
        if row.get("may_have_rule"):
            splittable.add(row["target"])
        if "whole_call" in row:
            reasons[row["target"]] = row["whole_call"]
    lines: list[str] = []
    calls: set[str] = set()
    small: list[float] = []
    left = _NEGLIGIBLE * stage_seconds
    for place, seconds in sorted(places.items(), key=lambda item: sum(item[1])):
        left -= sum(seconds)
        if left >= 0 and not place[1]:
            small += places.pop(place)
    for (op, target, line), seconds in sorted(places.items(), key=lambda item: -sum(item[1])):
        words = [op, f"@{target}" * bool(target), f"at {line}" * bool(line)]
        times = f", {len(seconds)} times" if len(seconds) > 1 else ""
        lines.append(f"  {_time(sum(seconds)):>12}  {' '.join(filter(None, words))}{times}")
        if target and target not in calls:
            calls.add(target)
            if op == "alpa.map":
                fix = "it is called for each block of a shard_map, which the mesh does not divide"
            elif target in reasons:
                fix = f"its rule is known: {reasons[target]}"
            elif target in splittable:
                fix = (
                    f"to split it, give alpa_mlir.sharding_rule({target!r}, "
                    "'.. -> ..', cost=..) before the step is traced"
                )
            else:
                fix = "it has side effects or was compiled for these shapes: no rule splits it"
            lines.append(" " * 6 + fix)
    if small:
        lines.append(
            f"  {_time(sum(small)):>12}  {len(small)} {'more ' * bool(places)}ops, together less "
            f"than {100 * _NEGLIGIBLE:g} % of the stage's seconds"
        )
    return lines


def _repeated_lines(rows: list[Row], seconds: float) -> list[str]:
    """Products that several devices compute alike, though not all of them; by line."""
    places: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        if row.get("parts", 1) > 1:
            place = (row["op"], row.get("line", ""), row["parts"])
            places.setdefault(place, []).append(row["compute_seconds"])
    if not places:
        return []
    lines = [
        f"products that devices share in fewer parts than they are, "
        f"{sum(map(len, places.values()))}; with those that run whole, {_time(seconds)} more than "
        "if all devices shared all products"
    ]
    for (op, line, parts), each in sorted(places.items(), key=lambda item: -sum(item[1])):
        words = [op, f"at {line}" * bool(line), f"in {parts} parts"]
        times = f", {len(each)} times" if len(each) > 1 else ""
        lines.append(f"  {_time(sum(each)):>12}  {' '.join(filter(None, words))}{times}")
    return lines + _whole_tokens_lines([row for row in rows if row.get("parts", 1) > 1])


def _unaligned_lines(rows: list[Row]) -> list[str]:
    """Products whose rows tensor cores read slowly; by line."""
    places: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if lost := row.get("unaligned_seconds", 0.0):
            places.setdefault((row["types"], row.get("line", "")), []).append(lost)
    if not places:
        return []
    seconds = sum(map(sum, places.values()))
    lines = [
        f"products with rows that are no multiple of 16 bytes, {sum(map(len, places.values()))}: "
        f"{_time(seconds)} more than with longer rows"
    ]
    for (types, line), each in sorted(places.items(), key=lambda item: -sum(item[1])):
        times = f", {len(each)} times" if len(each) > 1 else ""
        lines.append(f"  {_time(sum(each)):>12}  {types}{f' at {line}' * bool(line)}{times}")
    return lines


def _whole_tokens_lines(rows: list[Row]) -> list[str]:
    """Why devices that compute attention alike do not share its tokens; each reason once."""
    reasons = dict.fromkeys(row["whole_tokens"] for row in rows if "whole_tokens" in row)
    return [f"  attention keeps its tokens whole: {reason}" for reason in reasons]


_TIE = 1e-6  # Of a stage's seconds.


def runner_up_text(row: Row, stage_seconds: float) -> str:
    """What the runner-up of a decision costs, which is found without regard to memory."""
    more: float = row["runner_up_more_seconds"]
    if abs(more) <= _TIE * stage_seconds:
        return "a tie"
    return "no slower, memory left out" if more < 0 else f"the step takes {_time(more)} more"


def _describe(row: Row) -> str:
    op = row["op"].removeprefix("stablehlo.").removeprefix("chlo.")
    # Outside of modules the path is JAX's name alone, mostly that of the operation.
    return " ".join(filter(None, dict.fromkeys((op, op_path(row["where"]), row["phase"]))))


def _time(seconds: float) -> str:
    return ("-" if seconds < 0 else "") + seconds_text(abs(seconds))


# What a plan's predicted step is limited by: a stage, a device's memory, a link.

# Of a device's memory: a stage that needs more has little choice left.
_TIGHT = 0.8
_PHASES = ("forward_seconds", "backward_seconds")


@dataclass(frozen=True)
class StageLimits:
    """What a stage spends and needs.

    Attributes:
        micro_batch_seconds: forward and backward of one micro-batch.
        update_seconds: once a step, with what is prepared of weights before the micro-batches.
        communication_seconds: of a step, between the devices of the stage; None if the plan does
            not say.
        peak_bytes, capacity_bytes: of one device; None if the plan or the cluster do not say.
        host_bytes: that a device has in the memory of its host.
        gap: how far the solver's choice of shardings may be from the best, as a part of it.
        is_optimal: whether it is proved to be the best.
    """

    stage: int
    layers: tuple[int, int]
    micro_batch_seconds: float
    update_seconds: float
    communication_seconds: float | None
    peak_bytes: float | None
    capacity_bytes: float | None
    gap: float | None
    is_optimal: bool
    host_bytes: float = 0.0


@dataclass(frozen=True)
class Bottlenecks:
    """What limits a step.

    Attributes:
        slowest: the stage whose micro-batches take longest; the others wait for it.
        bubble_fraction: the part of all devices' time in which nothing is computed; None if the
            step cannot be simulated.
        not_simulated: why not; empty if it can.
        link, link_utilization: the busiest link, and the part of the step in which it is busy;
            None and 0 if nothing goes from mesh to mesh.
        tight: stages that need most of a device's memory.
    """

    plan: Plan
    stages: tuple[StageLimits, ...]
    slowest: int
    bubble_fraction: float | None
    link: str | None
    link_utilization: float
    not_simulated: str = ""

    @property
    def tight(self) -> tuple[int, ...]:
        return tuple(
            s.stage
            for s in self.stages
            if s.peak_bytes and s.capacity_bytes and s.peak_bytes > _TIGHT * s.capacity_bytes
        )

    def as_text(self) -> str:
        """A table of the stages, and a line for each limit."""
        rows = [
            [
                str(s.stage),
                f"{s.layers[0]}-{s.layers[1] - 1}",
                seconds_text(s.micro_batch_seconds),
                seconds_text(s.update_seconds),
                "?" if s.communication_seconds is None else seconds_text(s.communication_seconds),
                _memory(s),
                "optimal" if s.is_optimal else "?" if s.gap is None else f"within {s.gap:.1%}",
            ]
            for s in self.stages
        ]
        header = (
            "stage",
            "layers",
            "a micro-batch",
            "update",
            "communication",
            "memory",
            "shardings",
        )
        lines = [table(header, rows), *(f"- {line}" for line in self._lines())]
        return "\n".join(lines)

    def _lines(self) -> list[str]:
        lines: list[str] = []
        step = self.plan.predicted.get("step_seconds")
        most = self.stages[self.slowest].micro_batch_seconds
        count = self.plan.num_micro_batches
        if step:
            part = count * most / step
            lines.append(
                f"stage {self.slowest} is the slowest: its {count} x {seconds_text(most)} are "
                f"{part:.0%} of the predicted {seconds_text(step)}"
            )
        if len(self.stages) > 1 and most:
            least = min(s.micro_batch_seconds for s in self.stages)
            lines.append(f"the fastest stage takes {least / most:.0%} of that")
        if self.bubble_fraction is None:
            lines.append(f"the step cannot be simulated: {self.not_simulated}")
        else:
            lines.append(
                f"{self.bubble_fraction:.1%} of all devices' time is spent on no function: on "
                "waiting for other stages and for transfers, and at both ends of the step"
            )
        if self.link is not None:
            lines.append(f"the busiest link, {self.link}, is in use {self.link_utilization:.1%}")
        for stage in self.tight:
            found = self.stages[stage]
            lines.append(f"stage {stage} is limited by memory: {_memory(found)}")
        lines += _constraint_summary(self.plan)
        if not self.tight and all(s.capacity_bytes for s in self.stages):
            lines.append("memory limits no stage")
        return lines


def bottlenecks(plan: Plan) -> Bottlenecks:
    """What limits a plan's step, from what the search foresaw and a simulation.

    Raises:
        PlanFormatError: an explanation of the plan is malformed.

    Example:
        >>> print(bottlenecks(Plan.load("my_plan")).as_text())      # doctest: +SKIP
    """
    timeline, reason = None, ""
    try:
        timeline = simulate(plan)
    except AlpaError as error:
        reason = str(error)
    memory = None if timeline is None else timeline.memory
    stages = tuple(
        _limits(plan, i, stage, None if memory is None else memory[stage.mesh].capacity_bytes)
        for i, stage in enumerate(plan.stages)
    )
    busiest = timeline.links[0] if timeline is not None and timeline.links else None
    return Bottlenecks(
        plan,
        stages,
        max(range(len(stages)), key=lambda i: stages[i].micro_batch_seconds),
        None if timeline is None else timeline.bubble_fraction,
        None if busiest is None else busiest.link,
        0.0 if busiest is None else busiest.utilization,
        reason,
    )


def _constraint_summary(plan: Plan) -> list[str]:
    """A line for the stages that hold, or drop, sharding constraints of the program."""
    rows: list[Row] = []
    costs: list[str] = []
    for number in range(len(plan.stages)):
        found: Row = plan.explanation(number) or {}
        rows += found.get("constraints", ())
        if found.get("constraints_seconds"):
            costs.append(f"{_time(found['constraints_seconds'])} of stage {number}")
    if not rows:
        return []
    dropped = sum(row["count"] for row in rows if "dropped" in row)
    held = sum(row["count"] for row in rows) - dropped
    text = f"{held} values are held as sharding constraints of the program say"
    text += f", which costs {', '.join(costs)}" if costs else ""
    return [text + (f"; {dropped} are not, see below" if dropped else "")]


def _limits(plan: Plan, index: int, stage: StageInfo, capacity: float | None) -> StageLimits:
    found = plan.explanation(index)
    solver = stage.solver
    return StageLimits(
        index,
        stage.layers,
        sum(stage.predicted.get(name, 0.0) for name in _PHASES),
        sum(stage.predicted.get(f"{name}_seconds", 0.0) for name in ("prepare", "update")),
        None if found is None else _communication_seconds(found),
        stage.predicted.get("peak_bytes"),
        capacity,
        solver.get("gap"),
        solver.get("status") == "optimal",
        stage.predicted.get("host_bytes", 0.0),
    )


def _memory(stage: StageLimits) -> str:
    if stage.peak_bytes is None:
        return "?"
    host = f", {bytes_text(stage.host_bytes)} on host" if stage.host_bytes else ""
    if not stage.capacity_bytes:
        return bytes_text(stage.peak_bytes) + host
    part = stage.peak_bytes / stage.capacity_bytes
    return f"{bytes_text(stage.peak_bytes)}, {part:.0%} of {bytes_text(stage.capacity_bytes)}{host}"
