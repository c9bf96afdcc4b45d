"""The reference executor of transfers, on plans that know nothing of the planner."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
from math import prod

import numpy as np
import pytest
from alpa_mlir import errors
from alpa_runtime.execution.reshard_steps import execute, prove
from alpa_runtime.plan.reshard import Tile
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_by_hand import chains, sends, steps_of
from transfers.cases import Seeded, random_case


@pytest.mark.parametrize(
    "name",
    [
        "alpa_runtime.execution.reshard_steps",
        "alpa_mlir.simulator.transfer_network",
    ],
)
def test_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0


GATHERED = """
    tile 0 on 0 [0:2,0:4]
    tile 1 on 1 [2:4,0:4]
    broadcast 2-3 = 0 to 4 5 chunks 3
    send 4 = 1 to 5
    send 5 = 1 to 6
    all_gather 6-7 = 3 5
"""
SOURCE = {0: ((0, 2), (0, 4)), 1: ((2, 4), (0, 4))}
TARGET = {4: ((0, 2), (0, 4)), 5: ((0, 4), (0, 4)), 6: ((0, 4), (0, 4))}


def test_steps_make_the_target_shards():
    # Device 5 has its second half twice if what was gathered counts beside what was sent.
    steps = steps_of(
        GATHERED.replace("    send 4 = 1 to 5\n", "")
        .replace("5 = 1 to 6", "4 = 1 to 6")
        .replace("6-7 = 3 5", "5-6 = 3 4")
    )
    values = np.arange(16.0).reshape(4, 4)
    results = execute(steps, SOURCE, TARGET, values)
    np.testing.assert_array_equal(results[4], values[:2])
    for device in (5, 6):
        np.testing.assert_array_equal(results[device], values)
    prove(steps, SOURCE, TARGET)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", "float16"])
def test_bytes_are_copied_whatever_the_dtype(dtype):
    # Not-a-number, minus zero and the poison's own pattern are bytes like others.
    item = np.dtype(dtype).itemsize
    raw = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, 8 * item, np.uint8)
    raw[:item] = 0xA5 if dtype != "bool" else 1
    values = raw.view(dtype)
    steps = steps_of("tile 0 on 0 [0:8]\n broadcast 1-2 = 0 to 1 2 chunks 3")
    results = execute(steps, {0: ((0, 8),)}, {1: ((0, 8),), 2: ((0, 8),)}, values)
    for result in results.values():
        assert result.tobytes() == values.tobytes()


def test_scalars_move():
    steps = steps_of("tile 0 on 0 []\n send 1 = 0 to 1")
    prove(steps, {0: ()}, {1: ()})
    assert execute(steps, {0: ()}, {1: ()}, np.array(7))[1] == 7


WHOLE = {0: ((0, 4),)}


@pytest.mark.parametrize(
    ("text", "target", "error"),
    [
        ("tile 0 on 1 [0:4]", {1: ((0, 4),)}, "step 0 .*: device 1 is not in the source mesh"),
        ("tile 0 on 0 [0:5]", {0: ((0, 5),)}, r"step 0 .*: device 0 holds \[0:4\] only"),
        (
            "tile 0 on 0 [0:3]\n send 1 = 0 to 1",
            {1: ((0, 4),)},
            r"device 1: parts of \[0:4\] are missing",
        ),
        ("tile 0 on 0 [0:4]", {1: ((0, 4),)}, r"device 1: parts of \[0:4\] are missing"),
        (
            "tile 0 on 0 [0:4]\n tile 1 on 0 [1:2]\n send 2 = 0 to 1\n send 3 = 1 to 1",
            {1: ((0, 4),)},
            r"device 1: \[1:2\] is written twice",
        ),
        (
            "tile 0 on 0 [0:4]\n send 1 = 0 to 1",
            {1: ((0, 2),)},
            r"tile 1 on device 1 is \[0:4\], which lies partly within the device's shard \[0:2\]",
        ),
        ("send 0 = 1 to 1", {1: ((0, 4),)}, "tile 1 is not there yet"),
    ],
)
def test_a_plan_that_does_not_fill_the_target_is_refused(text, target, error):
    with pytest.raises(errors.PlanMismatchError, match=error):
        prove(steps_of(text), WHOLE, target)


def test_what_a_device_only_passes_on_does_not_count():
    steps = steps_of(
        "tile 0 on 0 [0:2]\n tile 1 on 0 [2:4]\n send 2 = 0 to 1\n send 3 = 1 to 1\nsend 4 = 3 to 2"
    )
    prove(steps, WHOLE, {1: ((0, 2),), 2: ((2, 4),)})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from([sends, chains]), st.data())
def test_plans_are_proven_and_damaged_ones_are_not(seed, planner, data):
    case = random_case(Seeded(seed))
    source, target = case.boxes(case.source), case.boxes(case.target)
    steps = planner(case)
    prove(steps, source, target)
    if len(set(source.values())) == 1:
        return  # Whoever sends what to whom, it is the whole tensor.
    # Another piece of the tensor than the right one is cut.
    cuts = [i for i, step in enumerate(steps) if isinstance(step, Tile)]
    at = data.draw(st.sampled_from(cuts))
    others = sorted({step.box for step in steps if isinstance(step, Tile)} - {steps[at].box})
    if others:
        wrong = dataclasses.replace(steps[at], box=data.draw(st.sampled_from(others)))
        with pytest.raises(errors.PlanMismatchError):
            prove([*steps[:at], wrong, *steps[at + 1 :]], source, target)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_a_small_proof_says_what_the_whole_tensor_does(seed):
    case = random_case(Seeded(seed), sizes=(1_000, 20_000))
    source, target = case.boxes(case.source), case.boxes(case.target)
    values = np.arange(prod(case.shape), dtype=np.int32).reshape(case.shape)
    for device, result in execute(chains(case), source, target, values).items():
        box = tuple(slice(*interval) for interval in target[device])
        np.testing.assert_array_equal(result, values[box])
