"""Stages that share a mesh, split backwards and sums over meshes run as the single-device step."""

from __future__ import annotations

import copy
import dataclasses
import json
import re

import handmade
import handmade_sums
import numpy as np
import pytest
from alpa_mlir import errors
from alpa_runtime.execution import program_merge
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.execution.program_merge import (
    Accumulate,
    Copy,
    Reshard,
    Run,
    Zero,
    merge_step,
    worker_step,
)
from alpa_runtime.plan import Plan
from alpa_runtime.worker_group import Placement
from reshard_plans import STRATEGIES


@pytest.fixture(scope="module")
def good():
    return handmade_sums.plan_fields(2)


@pytest.mark.parametrize(
    ("micro_batches", "strategy"), [(1, "broadcast"), (3, "all_gather"), (2, "send")]
)
def test_equals_single_device(micro_batches, strategy):
    assert strategy in STRATEGIES
    step = load(handmade_sums.as_plan(*handmade_sums.plan_fields(micro_batches, strategy)))
    handmade_sums.check_steps(step, micro_batches)


def test_actions_of_sums(good):
    """The first mesh adds the others' parts to its own, in order, and hands the sum back."""
    linear = merge_step(handmade_sums.as_plan(*good))
    zeros = [a.values for a in linear.actions if isinstance(a, Zero)]
    assert sorted(map(len, zeros)) == [1, 1, 1, 2]  # One is the plan's own.
    assert len([a for a in linear.actions if isinstance(a, Reshard)]) == 4
    scalars = [
        (linear.values[a.source].mesh, linear.values[a.value].mesh)
        for a in linear.actions
        if isinstance(a, Copy) and linear.values[a.value].tensor.shape == ()
    ]
    assert scalars == [(1, 0), (2, 0), (0, 1), (0, 2)]
    last = [a for a in linear.actions if isinstance(a, Accumulate) and a.mesh == 0][-2:]
    assert last[1].sums[0][1] == last[0].sums[0][0]
    assert [len(r) for r in linear.results] == [1] * 6


def test_an_all_reduce_gives_the_same_bits_everywhere():
    """Each mesh puts out its own copy of the sum."""
    fields, modules = handmade_sums.plan_fields(2)
    fields["outputs"] += [{**fields["outputs"][5], "name": f"norm2 of {m}"} for m in (1, 2)]
    fields["programs"][1]["instructions"].insert(-2, "output 41 = result 6")
    free = fields["programs"][1]["instructions"].index("free 0 31 41")
    fields["programs"][1]["instructions"][free] = "free 0 31"
    fields["programs"][2]["instructions"][-2:-1] = ["free 0", "output 1 = result 7"]
    state, batch = handmade_sums.arguments(2)
    step = load(handmade_sums.as_plan(fields, modules))
    *_, norm2, of_1, of_2 = step([*state.values(), batch["x"], batch["y"]])
    assert np.asarray(norm2).tobytes() == np.asarray(of_1).tobytes() == np.asarray(of_2).tobytes()


def change(mesh, old, new):
    """Another instruction in place of the first that begins so; none if `new` is empty."""

    def edit(fields):
        lines = fields["programs"][mesh]["instructions"]
        at = next(i for i, line in enumerate(lines) if line.startswith(old))
        lines[at : at + 1] = [re.sub(f"^{re.escape(old)}", new, lines[at])] if new else []

    return edit


def widen(fields):
    """Mesh 2 brings a part of another shape."""
    change(2, "zero 1: float32[][]", "zero 1: float32[4][R]")(fields)


def reshard_field(index, **edit):
    return lambda fields: fields["reshards"][index].update(edit)


FIRST = "all_reduce 43 = 42 among 0 1 2 tag 500"
SECOND = "all_reduce 41 = 40 among 0 1 2"
WRONG = [
    (change(1, SECOND, "all_reduce 41 = 40 among 0 1"), "sums over .*"),
    (change(1, SECOND, "all_reduce 41 = 40 among 0 2"), "of mesh 1"),
    (change(1, SECOND, "all_reduce 41 = 40 among 1 0 2"), "in order"),
    (change(1, SECOND, "all_reduce 41 = 40 among 0 1 9"), "of 3, each"),
    (change(2, "all_reduce 1 = 1 among 0 1 2", "all_reduce 1 = 1 among 2"), "at least two"),
    (
        change(1, f"{SECOND} tag 500", f"{SECOND} tag 7"),
        r"mesh 0, instruction \d+: waits at 'all_reduce 43 .* for mesh 1, which does not come",
    ),
    (change(1, "all_reduce", ""), "for mesh 1, which does not come|slot 41 holds nothing"),
    (
        change(1, f"{SECOND} tag 500 by 2 3", f"{SECOND} tag 500"),
        "names 0 reshards, expected the two to the first mesh and back",
    ),
    (
        change(0, FIRST, f"{FIRST} by 2 3"),
        "names 2 reshards, expected none on the first mesh",
    ),
    (
        change(1, f"{SECOND} tag 500 by 2 3", f"{SECOND} tag 500 by 4 3"),
        "reshard 4 takes float32.* on mesh 2, here it is .* on mesh 1",
    ),
    (
        change(1, f"{SECOND} tag 500 by 2 3", f"{SECOND} tag 500 by 2 99"),
        "reshard 99 of 6",
    ),
    (widen, r"adds float32\[4\] \[R\] to float32\[scalar\]"),
    (change(2, "zero 1: float32[][]", "zero 1: float32[5][x*z]"), "spec names axis 'z'"),
    (change(2, "all_reduce 1 = 1", "all_reduce 1 = 2"), "slot 2 holds nothing"),
    (change(0, "reshard 20 = 3: float32[8,16]", "reshard 20 = 3: float32[16,8]"), "holds .* as"),
    (change(0, "reshard 20 = 3: float32[8,16][y,R]", "reshard 20 = 3: float32[8,16][z,R]"), "'z'"),
    (change(0, "reshard 20 = 3: float32[8,16][y,R]", "reshard 20 = 3: float32[8,16][R,y]"), "inp"),
    (change(0, "send 4 to 1 tag 0 by 0", "send 4 to 1 tag 0 by 3"), "sent by reshard 3 and rec"),
    (change(0, "run 1.backward_weight", "run 2.backward_weight"), "stage 2 has no function"),
    (change(0, "run 1.backward_weight", "run 2.backward"), "stage 2 belongs to mesh 1"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), WRONG)
def test_wrong_programs_are_named(good, edit, message):
    fields, modules = copy.deepcopy(good)
    edit(fields)
    with pytest.raises(errors.PlanMismatchError, match=message):
        merge_step(handmade_sums.as_plan(fields, modules))


def test_members_of_a_sum_follow_each_other(good):
    """Else a worker could wait at the sum for one that waits for something later."""
    fields, modules = copy.deepcopy(good)
    *before, first, second, third = handmade.order_of(fields["programs"])
    assert sum(run.endswith("*1") for run in (first, second, third)) == 0  # What follows the sum.
    sums = before[-3:]
    assert sums == ["0*1", "1*1", "2*1"]
    merge_step(handmade_sums.as_plan(fields | {"order": [*before, first, second, third]}, modules))
    fields["order"] = [*before[:-1], first, sums[-1], second, third]
    with pytest.raises(errors.PlanMismatchError, match="meshes that the order has at other places"):
        merge_step(handmade_sums.as_plan(fields, modules))


PLACEMENTS = [
    Placement(((0, 1), (2, 3, 4, 5), (6,))),
    Placement(((0,), (1, 2), (3, 4), (5, 6))),
    Placement(((0, 1, 6), (2, 3), (4, 5))),
    Placement(((0, 1, 2, 3, 4, 5, 6),)),
]


def form(step):
    """The actions, with values numbered as they appear."""
    numbers = {}

    def renamed(field):
        if isinstance(field, tuple):
            return tuple(map(renamed, field))
        return field if field is None else numbers.setdefault(field, len(numbers))

    kinds = {"value", "values", "source", "inputs", "outputs", "last", "sums"}
    result = []
    for action in step.actions:
        fields = {field.name: getattr(action, field.name) for field in dataclasses.fields(action)}
        if isinstance(action, Run):
            fields["outputs of sums"] = fields.pop("sums")
        # `last` is sorted by the numbers of before.
        last = sorted(map(renamed, fields.pop("last", ())))
        named = {k: renamed(v) if k in kinds else v for k, v in fields.items()}
        values = {renamed(v): step.values[v] for v in action.makes}
        result.append((type(action), named, last, values))
    return result, [tuple(map(renamed, r)) for r in step.results]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_worker_does_the_same_whatever_it_reads(placement, strategy, monkeypatch):
    """Its share follows from the programs that it reads: those of others change nothing."""
    plan = handmade_sums.as_plan(*handmade_sums.plan_fields(3, strategy))
    shares = [worker_step(plan, placement, rank) for rank in range(placement.size)]
    monkeypatch.setattr(program_merge._Share, "read", {0, 1, 2})
    for rank, share in enumerate(shares):
        of_all = worker_step(plan, placement, rank)
        meshes = placement.meshes_of(plan, rank)
        actions, results = form(share)
        expected, all_results = form(of_all)
        assert actions == expected
        for own, other, result in zip(results, all_results, of_all.results, strict=True):
            assert own == other or of_all.values[result[0]].mesh not in meshes


def test_a_worker_reads_its_own_programs_only(good):
    fields, modules = copy.deepcopy(good)
    fields["programs"][1]["instructions"][1] = "jump"
    order = handmade.order_of(good[0]["programs"])
    text = json.dumps(fields | {"order": order})
    plan = Plan.from_json(text, modules, check_programs=False)
    placement = PLACEMENTS[0]
    for rank in (0, 2):
        assert worker_step(plan, placement, rank).actions
    with pytest.raises(
        errors.PlanFormatError, match=r"programs\[1\].instructions\[1\]: got 'jump'"
    ):
        worker_step(plan, placement, 1)


def steps(index, *lines):
    return lambda fields: fields["reshards"][index].update(steps=list(lines))


WRONG_RESHARDS = [
    (steps(2, "tile 0 on 2 []"), r"reshards\[2\]: brings 0 of 1 elements of \[\] to device 0"),
    (
        steps(2, "tile 0 on 2 []", "broadcast 1-2 = 0 to 0 1 chunks 1", "send 3 = 0 to 1"),
        "tiles 2 and 3 bring device 1 the same elements",
    ),
    (steps(2, "tile 0 on 6 []", "broadcast 1-2 = 0 to 0 1 chunks 1"), "6 is not in mesh 1"),
    (
        steps(2, "tile 0 on 2 []", "broadcast 1-3 = 0 to 0 1 6 chunks 1"),
        "6, which is in neither",
    ),
    (steps(0, "tile 0 on 1 [0:4,0:4]"), r"step 0 \(tile 0 .*the device holds \[4:8,0:8\] only"),
    (
        steps(0, "tile 0 on 0 [0:4,2:8]", "send 1 = 0 to 2"),
        r"tile 1 on device 2 is \[0:4,2:8\], which lies partly within .* \[0:4,0:4\]",
    ),
    (reshard_field(0, target="float32[8,8][z,R]"), r"reshards\[0\]: spec names axis 'z'"),
    (reshard_field(3, target_mesh=0), "mesh 0 is the source and the target"),
]


@pytest.mark.parametrize(("edit", "message"), WRONG_RESHARDS)
def test_wrong_transfers_are_named(good, edit, message):
    """Each device of the target must get its shard once, from what the source holds."""
    fields, modules = copy.deepcopy(good)
    edit(fields)
    with pytest.raises(errors.PlanMismatchError, match=message):
        merge_step(handmade_sums.as_plan(fields, modules))


def test_transfers_that_change_the_tensor_are_named(good):
    plan = handmade_sums.as_plan(*good)
    first = plan.reshards[0]
    other = dataclasses.replace(first.target, dtype="float16")
    changed = (dataclasses.replace(first, target=other), *plan.reshards[1:])
    with pytest.raises(errors.PlanMismatchError, match=r"reshards\[0\]: makes float16"):
        merge_step(dataclasses.replace(plan, reshards=changed))
