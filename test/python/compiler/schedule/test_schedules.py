"""Every schedule is complete, ends, keeps what it promises, and waits as published."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from alpa_mlir.compiler import Module, schedule_table, schedules
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.schedule import (
    Schedule,
    ScheduleProblem,
    StageSeconds,
    Step,
    generate_steps,
    most_kept,
    spans,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import sliced_module

TRAINING = [name for name, row in schedule_table().items() if not row.forward_only]
BY_NAME = [name for name in schedules() if name in TRAINING]
ROUNDS = [name for name in BY_NAME if schedule_table()[name].takes_several_stages]
IN_V = [name for name in BY_NAME if schedule_table()[name].in_v]
MILLISECONDS = st.integers(0, 40)


def follow(problem: ScheduleProblem, meshes: list[list[Step]]) -> list[tuple[float, float]]:
    """Begin and end of each mesh's runs, by dependencies alone; fails if a mesh waits forever."""
    times = problem.seconds or (StageSeconds(),) * len(problem.mesh_of)
    backward = problem.has_backward or (True,) * len(problem.mesh_of)
    ends: dict[Step, float] = {}
    at, free = [0] * len(meshes), [0.0] * len(meshes)
    begin: list[float | None] = [None] * len(meshes)

    def ready(step: Step) -> float | None:
        kind, stage, index = step
        if kind == "F":
            if stage == 0:
                return 0.0
            before = ends.get(Step("F", stage - 1, index))
            apart = problem.mesh_of[stage] != problem.mesh_of[stage - 1]
            return None if before is None else before + times[stage - 1].forth * apart
        if kind == "W":
            return ends.get(Step("I", stage, index))
        mine = ends.get(Step("F", stage, index))
        later = next((s for s in range(stage + 1, len(backward)) if backward[s]), None)
        if mine is None or later is None:
            return mine
        for kind in "BI":
            if Step(kind, later, index) in ends:
                apart = problem.mesh_of[stage] != problem.mesh_of[later]
                return max(mine, ends[Step(kind, later, index)] + times[later - 1].back * apart)
        return None

    moved = True
    while moved:
        moved = False
        for mesh, steps in enumerate(meshes):
            while at[mesh] < len(steps):
                step = steps[at[mesh]]
                start = ready(step)
                if start is None:
                    break
                start = max(start, free[mesh])
                begin[mesh] = start if begin[mesh] is None else begin[mesh]
                forward, inputs, weights = times[step.stage][:3]
                free[mesh] = ends[step] = start + {
                    "F": forward, "B": inputs + weights, "I": inputs, "W": weights
                }[step.kind]  # fmt: skip
                at[mesh] += 1
                moved = True
    assert at == [len(steps) for steps in meshes], "a mesh waits forever"
    return [(first or 0.0, end) for first, end in zip(begin, free, strict=True)]


def kept(problem: ScheduleProblem, steps: list[Step]) -> float:
    """The most activations at a time; a stage without a backward run keeps none."""
    now = most = 0.0
    for step in steps:
        part = problem.kept_parts[step.stage] if problem.kept_parts else 1.0
        size = problem.sizes[step.stage] if problem.sizes else 1.0
        change = {"F": size, "B": -size, "I": size * (part - 1), "W": -size * part}
        if not problem.has_backward or problem.has_backward[step.stage]:
            # Limits leave room for what one input part makes.
            before, now = now, now + change[step.kind]
            most = max(most, before if step.kind == "I" else now if step.kind == "F" else 0.0)
    return most


def check(name: str, problem: ScheduleProblem) -> None:
    meshes = generate_steps(name, problem)
    assert len(meshes) == problem.num_meshes
    found = Counter(step for steps in meshes for step in steps)
    backward = problem.has_backward or (True,) * len(problem.mesh_of)
    for stage, mesh in enumerate(problem.mesh_of):
        own = Counter({step: n for step, n in found.items() if step.stage == stage})
        assert sum(n for step, n in own.items() if step in meshes[mesh]) == sum(own.values())
        for index in range(problem.num_micro_batches):
            kinds = [step.kind for step in own.elements() if step.micro_batch == index]
            expected = ["F"], ["B", "F"], ["F", "I", "W"]
            assert sorted(kinds) in (expected[1:] if backward[stage] else expected[:1])
    ours = follow(problem, meshes)
    for mine, theirs in zip(ours, spans(name, problem), strict=True):
        assert mine == pytest.approx(theirs)
    whole = replace(problem, kept_parts=(), sizes=())
    for steps, most in zip(meshes, most_kept(name, problem), strict=True):
        if not schedule_table()[name].forward_only:
            assert kept(whole, steps) <= most


@st.composite
def seconds(draw: st.DrawFn, num_stages: int) -> tuple[StageSeconds, ...]:
    return tuple(
        StageSeconds(*(draw(MILLISECONDS) / 1000 for _ in StageSeconds._fields))
        for _ in range(num_stages)
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_stage_on_a_mesh(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(BY_NAME))
    stages = data.draw(st.integers(1, 9))
    problem = replace(
        ScheduleProblem.in_rounds(stages, 1, data.draw(st.integers(1, 30))),
        seconds=data.draw(seconds(stages)),
        has_backward=tuple(data.draw(st.lists(st.booleans(), min_size=stages, max_size=stages))),
        kept_parts=tuple(data.draw(st.sampled_from([0.25, 0.5, 1.0])) for _ in range(stages)),
    )
    check(name, problem)


def test_orders_that_fit_fewer_micro_batches_alone_give_way() -> None:
    """The best orders of some round trips keep too much where there are more micro-batches."""
    times = [StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0)] * 6
    times[3] = times[3]._replace(forward=0.001)
    times[4] = times[4]._replace(forth=0.001)
    check("dualpipe-v", replace(ScheduleProblem.in_rounds(2, 3, 5), seconds=tuple(times)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rounds_of_stages(data: st.DataObject) -> None:
    """Whatever is left over when micro-batches are divided among the meshes."""
    name = data.draw(st.sampled_from([*ROUNDS, "inference"]))
    meshes, rounds = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    problem = ScheduleProblem.in_rounds(meshes, rounds, data.draw(st.integers(1, 40)))
    stages = meshes * rounds
    problem = replace(
        problem,
        seconds=data.draw(seconds(stages)),
        has_backward=(False,) * stages if name == "inference" else (),
    )
    check(name, problem)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_stages_in_a_v(data: st.DataObject) -> None:
    """Unequal stages, any number of micro-batches, and a limit on what they keep together."""
    name, meshes = data.draw(st.sampled_from(IN_V)), data.draw(st.integers(1, 8))
    problem = ScheduleProblem.in_v(meshes, data.draw(st.integers(1, 30)))
    stages = 2 * meshes
    some = [
        tuple(data.draw(st.sampled_from(values)) for _ in range(stages))
        for values in ([0.25, 1.0, 1.5], [0.5, 1.0, 3.0])
    ]
    problem = replace(
        problem,
        seconds=data.draw(seconds(stages)),
        has_backward=data.draw(st.sampled_from([(), (False,) + (True,) * (stages - 1)])),
        kept_parts=some[0],
        sizes=some[1],
        limits=data.draw(st.sampled_from([(), (6.0,) * meshes, (2.0 * meshes + 6,) * meshes])),
    )
    check(name, problem)
    for steps, limit in zip(generate_steps(name, problem), problem.limits, strict=False):
        assert kept(problem, steps) <= limit + 1e-3


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_programs_are_proven(data: st.DataObject) -> None:
    """What `alpa-build-schedule` makes of an order passes `alpa-verify-program`: every run takes
    its own micro-batch's values, sums are complete, and no mesh waits forever."""
    name, meshes = data.draw(st.sampled_from(BY_NAME)), data.draw(st.integers(1, 6))
    count = data.draw(st.integers(1, 14))
    rounds = schedule_table()[name].stages_per_mesh
    module = Module(sliced_module(meshes, rounds, count, name))
    module.run(f"alpa-build-schedule{{schedule={name}}},alpa-verify-program")
    assert module.as_text().count("alpa.program ") == meshes


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_zb_auto_heeds_its_limit_and_loses_to_no_one(data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, 8))
    problem = replace(
        ScheduleProblem.in_rounds(stages, 1, data.draw(st.integers(1, 24))),
        seconds=data.draw(seconds(stages)),
        kept_parts=tuple(data.draw(st.sampled_from([0.0, 0.4, 1.0, 2.5])) for _ in range(stages)),
        limits=tuple(
            data.draw(st.sampled_from([1.0, 1.5, stages / 2 + 1, float(stages), 2.0 * stages]))
            for _ in range(stages)
        ),
        steps_overlap=data.draw(st.booleans()),
    )
    check("zb-auto", problem)
    meshes = generate_steps("zb-auto", problem)
    for steps, limit in zip(meshes, problem.limits, strict=True):
        assert kept(problem, steps) <= limit + 1e-3

    def worth(name: str) -> float:
        times = spans(name, problem)
        ends = [end - begin * problem.steps_overlap for begin, end in times]
        return max(ends)

    # What waits for weight parts may be more than ZB-H1 has room for.
    if min(problem.limits) >= stages and max(problem.kept_parts) <= 1:
        assert worth("zb-auto") <= min(worth("1f1b"), worth("zb-h1")) + 1e-9


def bubble(name: str, problem: ScheduleProblem) -> Fraction:
    """The part of the time in which the busiest mesh waits, exactly for whole seconds."""
    times = problem.seconds or (StageSeconds(),) * len(problem.mesh_of)
    busiest = 0.0
    for mesh in range(problem.num_meshes):
        own = [times[stage] for stage in problem.stages_of(mesh)]
        runs = 1 if schedule_table()[name].forward_only else 3
        busiest = max(busiest, problem.num_micro_batches * sum(sum(t[:runs]) for t in own))
    end = max(end for _, end in follow(problem, generate_steps(name, problem)))
    return 1 - Fraction(busiest) / Fraction(end)


@pytest.mark.parametrize("meshes", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_published_bubbles(meshes: int, rounds: int) -> None:
    """(p - 1) / (v m + p - 1): GPipe and 1F1B (v = 1), interleaved (Megatron-LM, section 2.2)."""
    for count in (meshes, 2 * meshes, 2 * meshes + 1, 4 * meshes - 1):
        problem = ScheduleProblem.in_rounds(meshes, rounds, count)
        expected = Fraction(meshes - 1, rounds * count + meshes - 1)
        for name in ["interleaved-1f1b"] if rounds > 1 else ["gpipe", "1f1b", "interleaved-1f1b"]:
            assert bubble(name, problem) == expected
        forwards = replace(problem, has_backward=(False,) * len(problem.mesh_of))
        assert bubble("inference", forwards) == expected


@pytest.mark.parametrize("times", [(1, 1, 1), (3, 3, 2), (4, 5, 3), (5, 2, 2)])
@pytest.mark.parametrize("meshes", [2, 4, 8])
def test_zero_bubble_waits(meshes: int, times: tuple[int, int, int]) -> None:
    """(p - 1)(F + I - W) seconds of ZB-H1, (p - 1)(F + I + W) of 1F1B (Qi et al., table 2)."""
    forward, inputs, weights = times
    problem = replace(
        ScheduleProblem.in_rounds(meshes, 1, 3 * meshes),
        seconds=(StageSeconds(*map(float, times)),) * meshes,
    )
    busy = 3 * meshes * sum(times)
    for name, waiting in [("1f1b", sum(times)), ("zb-h1", forward + inputs - weights)]:
        end = max(end for _, end in follow(problem, generate_steps(name, problem)))
        assert end - busy == (meshes - 1) * waiting
    twice = replace(problem, limits=(2.0 * meshes,) * meshes, steps_overlap=True)
    if times == (1, 1, 1):  # Nothing waits any more (section 2.2).
        assert max(end - begin for begin, end in spans("zb-auto", twice)) == busy


@pytest.mark.parametrize("meshes", [2, 3, 4, 6, 8, 9, 16])
@pytest.mark.parametrize("rest", [0, 1])
def test_bubbles_and_memory_in_a_v(meshes: int, rest: int) -> None:
    """With runs of one second, two thirds of p of V-Min and half of p of V-Half in micro-batches of
    1F1B's three seconds, none of ZB-V (Qi et al., 2024); DualPipeV's formula, p = PP / 2."""
    count = 3 * meshes + rest
    problem = ScheduleProblem.in_v(meshes, count)
    for name, most, published in [
        ("v-min", (meshes + 4) // 3, 4 * meshes),
        ("v-half", (meshes + 2) // 2, 3 * meshes),
        ("zb-v", meshes, meshes - 1),  # Of a single step; see below.
        ("dualpipe-v", meshes + 1 / 2, 2 * (meshes - 1)),
    ]:
        meshes_steps = generate_steps(name, problem)
        assert max(kept(problem, steps) for steps in meshes_steps) <= 2 * most
        assert max(end for _, end in follow(problem, meshes_steps)) - 6 * count <= published
        assert most_kept(name, problem) == [min(2 * most, 2 * count)] * meshes
    overlap = replace(problem, steps_overlap=True)
    assert max(end - begin for begin, end in spans("zb-v", overlap)) == 6 * count


@pytest.mark.parametrize("meshes", [2, 4, 7])
def test_breadth_first_waits_as_interleaved(meshes: int) -> None:
    for rounds, count in [(2, meshes), (3, 2 * meshes + 1)]:
        problem = ScheduleProblem.in_rounds(meshes, rounds, count)
        assert bubble("breadth-first", problem) == bubble("interleaved-1f1b", problem)
        assert most_kept("breadth-first", problem) == [rounds * count] * meshes
        for steps in generate_steps("breadth-first", problem):  # A stage's runs follow each other.
            runs = [(step.kind, step.stage) for step in steps]
            assert sum(a != b for a, b in pairwise(runs)) == 2 * rounds - 1


def test_reproduces_the_papers_bubbles() -> None:
    """1.5B and 28.3B models, profiled seconds and bubble rates of Qi et al., section 5."""
    for meshes, count, run, published in [
        (8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585)),
        (32, 96, (10.419, 10.207, 7.715, 0.408), (0.2646, 0.1421)),
    ]:
        *computing, sending = run
        problem = replace(
            ScheduleProblem.in_rounds(meshes, 1, count),
            seconds=(StageSeconds(*computing, sending, sending),) * meshes,
        )
        for name, rate in zip(("1f1b", "zb-h1"), published, strict=True):
            assert float(bubble(name, problem)) == pytest.approx(rate, abs=5e-5)


def test_errors_say_what_is_wrong() -> None:
    several = ScheduleProblem.in_rounds(2, 2, 2)
    with pytest.raises(MethodError, match="'1f1b' takes one stage on each mesh"):
        generate_steps("1f1b", several)
    with pytest.raises(MethodError, match="takes stages in rounds"):
        generate_steps("interleaved-1f1b", ScheduleProblem.in_v(2, 2))
    with pytest.raises(MethodError, match="'zb-v' needs room for the activations of one"):
        generate_steps("zb-v", replace(ScheduleProblem.in_v(2, 2), limits=(2.0, 1.5)))
    with pytest.raises(MethodError, match="there is no schedule `zigzag`"):
        generate_steps("zigzag", several)
    with pytest.raises(MethodError, match="runs forwards only"):
        generate_steps("inference", several)
    with pytest.raises(MethodError, match="room for the activations of one"):
        generate_steps("zb-auto", replace(ScheduleProblem((0, 1), 2), limits=(1.0, 0.5)))
    with pytest.raises(MethodError, match="a limit for each of 2 meshes, got 1"):
        generate_steps("zb-auto", replace(ScheduleProblem((0, 1), 2), limits=(1.0,)))
    endless = (StageSeconds(1e308, 1e308, 1e308),) * 2
    with pytest.raises(MethodError, match="do not add up to a number"):
        spans("zb-auto", ScheduleProblem((0, 1), 4, seconds=endless))
    with pytest.raises(MethodError, match="numbered by their first stage"):
        generate_steps("gpipe", ScheduleProblem((1, 0), 2))


CUSTOM = ScheduleProblem((0, 1), 2)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("F0.0 F0.1", "alpa_schedule_c1: expected a line for each of 2 meshes, got 1"),
        ("F2.0;F1.0", "alpa_schedule_c1: mesh 0, step 0 `F2.0`: there are 2 stages"),
        ("F0.2;F1.0", "alpa_schedule_c1: mesh 0, step 0 `F0.2`: there are 2 micro-batches"),
        ("F0.0 F1.0;F1.1", "alpa_schedule_c2: mesh 0, step 1 `F1.0`: stage 1 is on mesh 1"),
        ("F0.0 F0.0;F1.0", "alpa_schedule_c3: mesh 0, step 1 `F0.0`: this run is there already"),
        ("F0.0 I0.0 B0.0;F1.0", "alpa_schedule_c3: mesh 0, step 2 `B0.0`"),
        ("F0.0 B0.0 F0.1;F1.0", "alpa_schedule_c4: mesh 0 lacks `B0.1`"),
        (
            "F0.0 B0.0 F0.1 I0.1;F1.0 B1.0 F1.1 B1.1",
            "alpa_schedule_c4: mesh 0 lacks `W0.1`",
        ),
        ("B0.0 F0.0;F1.0", "alpa_schedule_c5: mesh 0, step 0 `B0.0`: its forward run comes later"),
        ("F0.0 W0.0;F1.0", "alpa_schedule_c5: mesh 0, step 1 `W0.0`: its input part comes later"),
        (
            "F0.0 B0.0 F0.1 B0.1;F1.0 F1.1 B1.1 B1.0",
            "alpa_schedule_c6: mesh 0 waits forever at `B0.0`, mesh 1 at `F1.1`",
        ),
        ("F0.0 X;F1.0", "mesh 0, step 1: expected F, B, I or W with a stage"),
        ("", "no steps are given"),
    ],
)
def test_wrong_custom_steps(steps: str, message: str) -> None:
    with pytest.raises(MethodError) as caught:
        generate_steps("custom", replace(CUSTOM, steps=steps))
    assert f"custom schedule: {message}" in str(caught.value)


def test_custom_steps_are_taken_as_they_are() -> None:
    def zb_h1(problem: ScheduleProblem) -> list[list[Step]]:
        return generate_steps("zb-h1", problem)

    problem = ScheduleProblem.in_rounds(3, 1, 5)
    text = Schedule("mine", zb_h1, like="zb-h1").text(problem)
    custom = replace(problem, steps=text)
    assert generate_steps("custom", custom) == zb_h1(problem)
    assert most_kept("custom", custom) == [3, 3, 3]
    with pytest.raises(MethodError, match="step 0 of mesh 0"):
        Schedule("mine", lambda problem: [[("G", 0, 0)]]).text(problem)
    with pytest.raises(MethodError, match="like='zigzag'"):
        Schedule("mine", zb_h1, like="zigzag")
