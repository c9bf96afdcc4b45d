"""The plan as an artifact: its text, its schema, and reading it back."""

from __future__ import annotations

import copy
import json
from importlib import resources

import alpa_mlir
import handmade
import pytest
import zoo
from alpa_mlir import PipeshardParallel, Plan, errors
from alpa_mlir.plan_json import pretty
from alpa_mlir.plan_program import InstructionReader, slots_text
from alpa_mlir.plan_tensor import TensorReader, TensorSpec
from hypothesis import given
from hypothesis import strategies as st
from schema import problems

CLUSTER = "cpu-test"
SCHEMA = json.loads(resources.files(alpa_mlir).joinpath("plan.schema.json").read_text())


@pytest.fixture(scope="module")
def planned():
    model = zoo.make_gpt(zoo.GPTConfig(layers=2))
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=2)
    return alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method).plan(*model.init())


def test_a_real_plan_follows_the_schema(planned, tmp_path):
    folder = planned.save(tmp_path / "plan")
    text = (folder / "plan.json").read_text()
    assert problems(json.loads(text), SCHEMA, SCHEMA) == []
    # People read it: no line but one with many slots is long.
    assert max(map(len, text.splitlines())) < 400


def test_handmade_plans_follow_the_schema():
    for schedule in ("1f1b", "gpipe"):
        plan, _ = handmade.two_stages(3, schedule)
        assert problems(json.loads(handmade.as_json(plan)), SCHEMA, SCHEMA) == []


@pytest.mark.parametrize(
    "edit",
    [
        lambda plan: plan.update(version=1),
        lambda plan: plan["inputs"][0].update(kind="weight"),
        lambda plan: plan["inputs"][0].update(carried_by=-1),
        lambda plan: plan["stages"][0].update(colour="red"),
        lambda plan: plan["stages"][0].pop("functions"),
        lambda plan: plan["stages"][0]["functions"]["forward"]["inputs"].append("f32[8]"),
        lambda plan: plan["programs"][0]["instructions"].append("send 1 to 2"),
        lambda plan: plan["meshes"][0].update(devices=[0.5, 1]),
    ],
)
def test_what_the_schema_refuses_the_reader_refuses(edit):
    plan, modules = handmade.two_stages(1)
    fields = json.loads(handmade.as_json(plan))
    edit(fields)
    assert problems(fields, SCHEMA, SCHEMA)
    if "colour" in fields["stages"][0]:
        return  # The reader passes over fields that it does not know.
    with pytest.raises(errors.PlanFormatError):
        Plan.from_json(json.dumps(fields), modules)


def test_a_plan_is_read_back_as_written(planned, tmp_path):
    again = Plan.load(planned.save(tmp_path / "plan"))
    assert again == planned.plan
    assert again.to_json() == planned.plan.to_json()
    assert again.explanation(0) == planned.plan.explanation(0)
    assert again.compiler
    (tmp_path / "plan" / "stage_0.explain.json").unlink()
    assert Plan.load(tmp_path / "plan").explanation(0) is None


def test_instructions_are_read_when_asked_for():
    """The exporter's plans are not read line by line while planning."""
    plan, modules = handmade.two_stages(1)
    plan["programs"][1]["instructions"][0]["op"] = "jump"
    text = handmade.as_json(plan)
    with pytest.raises(errors.PlanFormatError, match=r"programs\[1\].instructions\[0\]: got 'jump"):
        Plan.from_json(text, modules)
    lazy = Plan.from_json(text, modules, check_programs=False)
    assert lazy.programs[0].instructions[0].op == "input"
    with pytest.raises(errors.PlanFormatError, match="'jump 0'"):
        list(lazy.programs[1].instructions)


LINES = [
    "input 0 = arg 3: float32[64,64][R,x]",
    "input 9 = arg 9 mb 0: float32[4,64][x*y,R]",
    "run 0.forward mb 0: 0 9 -> 10-12",
    "run 1.update_0: 0-3 -> 4",
    "run 1.forward: ->",
    "send 10 to 1 tag 4",
    "recv 5 from 0 tag 7: bfloat16[][]",
    "accumulate 3-4 = 3-4 + 7-8",
    "free 1 3-9",
    "output 8 = result 0",
    "output 8 = result 0 mb 2",
]


@pytest.mark.parametrize("line", LINES)
def test_lines(line):
    assert InstructionReader(TensorReader()).read(line).to_text() == line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected one of input, run"),
        ("send 1 to 2", "expected 'send SLOT to MESH tag TAG'"),
        ("free 9-3", "rising range"),
        ("free 0-99999999999", "rising range"),
        ("free 1 2 -3", "expected 'free SLOTS'"),
        ("accumulate 1 = 2 + 3 4", "adds 2 values to 1"),
        ("recv 1 from 0 tag 2: float32[8][R,R]", "2 entries for 1 dimensions"),
        ("input 0 = arg 1: float32", "expected 'input SLOT"),
    ],
)
def test_malformed_lines(line, message):
    with pytest.raises(ValueError, match=message):
        InstructionReader(TensorReader()).read(line)


def test_an_instruction_that_is_no_text():
    plan, modules = handmade.two_stages(1)
    fields = json.loads(handmade.as_json(plan))
    for wrong in ({"op": "free"}, 7, None):
        fields["programs"][0]["instructions"][1] = wrong
        with pytest.raises(errors.PlanFormatError, match=r"instructions\[1\]: got .* a string"):
            Plan.from_json(json.dumps(fields), modules)


axes = st.permutations(["x", "y", "z"]).flatmap(
    lambda names: st.integers(0, 3).map(lambda n: tuple(names[:n]))
)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), axes), max_size=4),
    st.sampled_from(["float32", "bool", "float8_e4m3fn"]),
)
def test_tensor_texts(dims, dtype):
    tensor = TensorSpec(tuple(n for n, _ in dims), dtype, tuple(a for _, a in dims))
    assert TensorSpec.parse(tensor.to_text()) == tensor


@given(st.lists(st.integers(0, 40)))
def test_slot_texts(slots):
    line = f"free{slots_text(slots)}"
    assert InstructionReader(TensorReader()).read(line).slots == tuple(slots)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=30,
)


@given(json_values, st.integers(0, 60))
def test_pretty_json_is_the_same_json(value, width):
    assert json.loads(pretty(copy.deepcopy(value), width=width)) == value
