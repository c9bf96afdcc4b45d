"""Sums that become part of the functions whose results they add, and those that may not."""

from __future__ import annotations

import handmade
import numpy as np
import pytest
from alpa_runtime.execution import program_merge as linear_module
from alpa_runtime.execution.compilation import split_functions
from alpa_runtime.execution.executor import donations
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.execution.program_merge import (
    Accumulate,
    Copy,
    Run,
    Value,
    Zero,
    fold_sums,
    merge_step,
)
from alpa_runtime.plan.tensor import TensorSpec

SCALAR = TensorSpec((), "float32", ())


def run(m, *outputs, function="f"):
    return Run(0, function, m, (0,), outputs)


def values(count, dtype="float32", meshes=()):
    """Values 0 to count - 1 on mesh 0, but for those of `meshes` on mesh 1."""
    return [Value(int(v in meshes), TensorSpec((), dtype, ())) for v in range(count)]


def test_the_first_run_adds_to_zeros():
    actions = [run(0, 1, 2), run(1, 3, 4), Accumulate(0, ((5, 2, 4),))]
    held = values(6)
    assert fold_sums(actions, held, {1, 3, 5}) == [
        Zero((6,)),
        Run(0, "f", 0, (0, 6), (1, 2), (1,)),
        Run(0, "f", 1, (0, 2), (3, 5), (1,)),
    ]
    assert held[6] == Value(0, SCALAR)


def test_the_plans_own_zeros_are_enough():
    actions = [
        Zero((5,)),
        run(0, 1),
        Accumulate(0, ((2, 5, 1),)),
        run(1, 3),
        Accumulate(0, ((4, 2, 3),)),
    ]
    held = values(6)
    assert fold_sums(actions, held, {4}) == [
        Zero((5,)),
        Run(0, "f", 0, (0, 5), (2,), (0,)),
        Run(0, "f", 1, (0, 2), (4,), (0,)),
    ]
    assert len(held) == 6


@pytest.mark.parametrize(
    ("why", "between", "sums", "kept", "held"),
    [
        ("a result of the step", [], ((3, 1, 2),), {2, 3}, values(4)),
        ("read by another, too", [Run(0, "g", 0, (2,), ())], ((3, 1, 2),), {3}, values(4)),
        ("added twice", [], ((3, 1, 2), (4, 1, 2)), {3, 4}, values(5)),
        ("added to itself", [], ((3, 2, 2),), {3}, values(4)),
        ("made before what it is added to", [Zero((4,))], ((3, 4, 2),), {3}, values(5)),
        ("of another mesh", [Copy(2, 4, 0, 0)], ((3, 1, 4),), {3}, values(5, meshes={2})),
        ("no number", [], ((3, 1, 2),), {3}, values(4, "bool")),
    ],
    ids=lambda x: x.replace(" ", "-") if isinstance(x, str) else "",
)
def test_what_stays_a_sum_of_its_own(why, between, sums, kept, held):
    del why
    actions = [run(0, 1, function="e"), run(0, 2), *between, Accumulate(0, sums)]
    count = len(held)
    assert fold_sums(actions, held, kept) == actions
    assert len(held) == count


def test_a_group_is_folded_in_part():
    actions = [run(0, 1, 2), run(1, 3, 4), Accumulate(0, ((5, 1, 3), (6, 2, 4)))]
    folded = fold_sums(actions, values(7), {4, 5, 6})
    assert folded[-1] == Accumulate(0, ((6, 2, 4),))
    assert folded[2] == Run(0, "f", 1, (0, 1), (5, 4), (0,))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    "meshes", [{}, {"first": (1, 1), "second": (1, 1)}, {"first": (1, 2), "second": (2, 2)}]
)
def test_the_same_bits_as_with_sums_of_their_own(schedule, meshes, monkeypatch):
    plan = handmade.as_plan(*handmade.two_stages(4, schedule, **meshes))
    state, batch = handmade.arguments(4)
    arguments = [*state.values(), *batch.values()]
    found = []
    for folds in (True, False):
        if not folds:
            monkeypatch.setattr(linear_module, "fold_sums", lambda actions, values, kept: actions)
        actions = merge_step(plan).actions
        assert any(isinstance(a, Accumulate) for a in actions) != folds
        found.append([np.asarray(x) for x in load(plan)(arguments)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sums_stay_in_their_buffers():
    """All that is added to is given away, zeros too, so that nothing is copied."""
    plan = handmade.as_plan(*handmade.two_stages(3))
    step = merge_step(plan)
    pairs = donations(plan, step, False)
    runs = [a for a in step.actions if isinstance(a, Run) and a.sums]
    assert {(a.stage, a.function) for a in runs} == {(0, "backward"), (1, "backward")}
    for action in runs:
        own = len(plan.stages[action.stage].functions[action.function].inputs)
        wanted = [(own + k, output) for k, output in enumerate(action.sums)]
        assert set(wanted) <= set(pairs[action.stage, action.function])


@pytest.mark.parametrize("is_read", [False, True])
def test_what_waits_for_a_term_waits_for_its_sum(is_read):
    """Unless it reads the term behind the barrier."""
    text = """func.func public @f(%x: tensor<4xf32>, %y: tensor<4xf32>)
        -> (tensor<4xf32>, tensor<4xf32>) {
      %0 = stablehlo.negate %x : tensor<4xf32>
      %1:2 = stablehlo.optimization_barrier %y, %0 : tensor<4xf32>, tensor<4xf32>
      %2 = stablehlo.add %1#0, READ : tensor<4xf32>
      return %0, %2 : tensor<4xf32>, tensor<4xf32>
    }""".replace("READ", "%1#1" if is_read else "%1#0")
    found = split_functions(f"module {{{text}}}", {}, "here", {"f": (0,)})["f"].text
    lines = [line.strip() for line in found.splitlines()]
    (sum_,) = (i for i, line in enumerate(lines) if "stablehlo.add %arg2, %0" in line)
    (barrier,) = (i for i, line in enumerate(lines) if "optimization_barrier" in line)
    assert (sum_ < barrier) == (not is_read)
    assert f"optimization_barrier %arg1, {'%0' if is_read else '%1'} :" in lines[barrier]
