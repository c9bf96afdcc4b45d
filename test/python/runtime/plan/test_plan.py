"""The plan as an artifact: its text, its schema, and reading it back."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re

import alpa_mlir
import handmade
import jax
import pytest
import zoo
from alpa_mlir import Cluster, PipeshardParallel, Plan, ShardParallel, errors
from alpa_mlir.trace.tracing import trace
from alpa_runtime.plan.program import INSTRUCTIONS, LineReader, numbers_text, pattern_of
from alpa_runtime.plan.reshard import STEPS
from alpa_runtime.plan.tensor import TENSOR_PATTERN, TensorSpec
from alpa_runtime.plan.text import bytes_text, pretty, seconds_text
from hypothesis import given
from hypothesis import strategies as st
from schema import SCHEMA, problems

CLUSTER = "cpu-test"


@pytest.fixture(scope="module")
def planned():
    model = zoo.make_gpt(zoo.GPTConfig(layers=1))
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=2)
    return alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method).plan(
        *jax.eval_shape(model.init)
    )


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
        lambda plan: plan["reshards"][0].pop("seconds"),
        lambda plan: plan["reshards"][0]["steps"].append("send 9"),
        lambda plan: plan["reshards"][0].update(source="f32[8]"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            -1,
            r"version 4, expected 5: made by an older alpa_mlir \(0\.0\.1\); fix: plan .* version$",
        ),
        (
            +1,
            r"version 6, expected 5: made by a newer .*; fix: .*, or run it with that one$",
        ),
    ],
)
def test_plans_of_other_versions_are_refused_by_their_version(tmp_path, change, message):
    """Whatever else has changed: what such a plan lacks is not looked for."""
    plan, _ = handmade.two_stages(1)
    assert json.loads(handmade.as_json(plan))["version"] == 5
    fields = {"format": "alpa_mlir.plan", "version": 5 + change, "compiler": "0.0.1", "new": [1]}
    (tmp_path / "plan.json").write_text(json.dumps(fields))
    for read in (Plan.load, alpa_mlir.load):
        with pytest.raises(errors.PlanFormatError, match=message):
            read(tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p: p["stages"][1].update(mesh=7), r"stages\[1\].mesh: mesh 7, but the plan has 2"),
        (lambda p: p["programs"][0].update(mesh=2), r"programs\[0\].mesh: mesh 2"),
        (lambda p: p["reshards"][1].update(target_mesh=2), r"reshards\[1\].target_mesh: mesh 2"),
        (lambda p: p["inputs"][0].update(carried_by=99), r"inputs\[0\].carried_by: output 99"),
        (lambda p: p["stages"][0].update(predicted={"forward_seconds": -1}), "of at least 0"),
        (lambda p: p.update(predicted={"step_seconds": float("nan")}), "of at least 0"),
        (lambda p: p.update(predicted={"step_seconds": 10**400}), "predicted.step_seconds: got 1"),
        (lambda p: p["meshes"].clear(), "meshes: none, expected at least one"),
        (
            lambda p: p["cluster"].update(hosts={"devices": 8, "count": 10**18}),
            r"cluster.hosts.count: got 1000000000000000000, expected an integer of at least 1 and",
        ),
        (
            lambda p: p["cluster"].update(hosts=[{"devices": 2, "device_type": "cpu"}]),
            r"meshes\[1\].devices: device 3, but the plan has 2",
        ),
        (lambda p: p["cluster"].update(hosts=None), r"cluster.hosts: got null, expected a value"),
        (
            lambda p: p["cluster"].update(device_types={"cpu": {"peak_flops": [1]}}),
            r"cluster.device_types.cpu.peak_flops: got \[1\], expected an object",
        ),
        (
            lambda p: p["inputs"][1].update(piece={"of": 0, "offset": 3, "size": 16}),
            r"inputs\[1\].piece: rows from 3 on, expected those behind the piece before",
        ),
        (lambda p: p["stages"][0].update(solver={"gap": "x"}), r"stages\[0\].solver.gap: got 'x'"),
        (lambda p: p["stages"][0].update(module="../x.mlir"), "expected the name of a file"),
        (lambda p: p["inputs"][0].update(shape=[2**40, 2**40]), "fewer than 2.*63 elements"),
        (lambda p: p.update(micro_batches={"exact": 1}), "micro_batches.exact: got 1"),
    ],
)
def test_what_refers_to_nothing_is_named(edit, message):
    plan, modules = handmade.two_stages(1)
    fields = json.loads(handmade.as_json(plan))
    edit(fields)
    with pytest.raises(errors.PlanFormatError, match=message):
        Plan.from_json(json.dumps(fields), modules)


def test_files_that_are_no_text(planned, tmp_path):
    folder = planned.save(tmp_path / "plan")
    for name in ("stage_0.mlir", "plan.json"):
        (folder / name).write_bytes(b"\xff\xfe\x00")
        with pytest.raises(errors.PlanFormatError, match=f"{name}: cannot read .* no text"):
            Plan.load(folder)


def test_a_pipe_in_place_of_a_file(planned, tmp_path):
    """Nobody writes to it: whoever waits for that waits for ever."""
    folder = planned.save(tmp_path / "plan")
    for name in ("stage_0.mlir", "plan.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(errors.PlanFormatError, match=f"{name}: cannot read .* no regular file"):
            Plan.load(folder)


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
    "send 10 to 1 tag 4 by 2",
    "recv 5 from 0 tag 7 by 12: bfloat16[][]",
    "reshard 9 = 8: float32[8,64][R,x]",
    "zero 7: float32[4][R]",
    "all_reduce 8 = 7 among 0 3 tag 9",
    "all_reduce 7 = 7 among 0 1 3 tag 9 by 4 5",
    "accumulate 3-4 = 3-4 + 7-8",
    "free 1 3-9",
    "output 8 = result 0",
    "output 8 = result 0 mb 2",
]


@pytest.mark.parametrize("line", LINES)
def test_lines(line):
    assert LineReader(INSTRUCTIONS).read(line).to_text() == line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected one of input, run"),
        ("send 1 to 2", "expected 'send SLOT to MESH tag TAG by RES"),
        ("all_reduce 1 = 2 among 0 1 tag 3 by 4", "expected 'all_reduce SLOT = SLOT among"),
        ("zero 1", "expected 'zero SLOT: TENSOR'"),
        ("reshard 1 = 2", "expected 'reshard SLOT = SLOT: TENSOR'"),
        ("free 9-3", "rising range"),
        ("free 0-99999999999", "rising range"),
        ("free 1 2 -3", "expected 'free SLOTS'"),
        ("accumulate 1 = 2 + 3 4", "adds 2 values to 1"),
        ("recv 1 from 0 tag 2 by 3: float32[8][R,R]", "2 entries for 1 dimensions"),
        ("input 0 = arg 1: float32", "expected 'input SLOT"),
    ],
)
def test_malformed_lines(line, message):
    with pytest.raises(ValueError, match=message):
        LineReader(INSTRUCTIONS).read(line)


@pytest.mark.parametrize(
    ("table", "lines", "classes"),
    [("programs", "instructions", INSTRUCTIONS), ("reshards", "steps", STEPS)],
)
def test_the_schema_knows_the_forms_of_lines(table, lines, classes):
    forms = "|".join(map(pattern_of, classes)).replace(TENSOR_PATTERN, ".+")
    node = SCHEMA["properties"][table]["items"]["properties"][lines]["items"]
    assert node["pattern"] == f"^(?:{forms})$"


@pytest.mark.parametrize("line", [*INSTRUCTIONS, *STEPS], ids=lambda line: line.__name__)
def test_forms_name_all_fields_in_their_order(line):
    named = re.findall(r"\{(\w+):", line.form)
    assert named == [field.name for field in dataclasses.fields(line)]


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
    st.lists(st.tuples(st.integers(0, 50_000), axes), max_size=4),
    st.sampled_from(["float32", "bool", "float8_e4m3fn"]),
)
def test_tensor_texts(dims, dtype):
    tensor = TensorSpec(tuple(n for n, _ in dims), dtype, tuple(a for _, a in dims))
    assert TensorSpec.parse(tensor.to_text()) == tensor


@given(st.lists(st.integers(0, 40)))
def test_slot_texts(slots):
    line = f"free{numbers_text(slots)}"
    assert LineReader(INSTRUCTIONS).read(line).slots == tuple(slots)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=30,
)


@given(json_values, st.integers(0, 60))
def test_pretty_json_is_the_same_json(value, width):
    assert json.loads(pretty(copy.deepcopy(value), width=width)) == value


def refused(plan, message, **given):
    with pytest.raises(errors.PlanMismatchError, match=message):
        plan.check(**given)


def test_plans_for_something_else_are_refused(planned):
    """The first difference is named."""
    plan, traced = planned.plan, planned.traced
    plan.check(traced=traced, cluster=Cluster.load(CLUSTER), compiler=plan.compiler)

    signature = traced.signature
    number = next(i for i, x in enumerate(signature.inputs) if len(x.shape) == 2)
    leaf = signature.inputs[number]
    name, shape = re.escape(leaf.name), leaf.shape

    def changed(**edit):
        items = list(signature.inputs)
        items[number] = dataclasses.replace(leaf, **{"carried_by": None, **edit})
        return with_signature(inputs=tuple(items))

    def with_signature(**edit):
        return dataclasses.replace(traced, signature=dataclasses.replace(signature, **edit))

    message = f"{name} is {shape[0]}x{shape[1]} in the plan, {shape[0]}x{shape[1] + 1} in the step"
    refused(plan, message, traced=changed(shape=(shape[0], shape[1] + 1)))
    refused(plan, f"{name} is float32 in the plan, int8 in the step", traced=changed(dtype="int8"))
    refused(plan, f"carried_by of {name} is {leaf.carried_by} in the plan, None", traced=changed())
    refused(plan, "the argument .* where the step has other", traced=changed(name="other"))
    fewer = signature.outputs[:-1]
    refused(plan, "only the plan has the result", traced=with_signature(outputs=fewer))
    refused(plan, "the plan is for step, the step is other", traced=with_signature(name="other"))
    text = traced.text.replace("stablehlo.tanh", "stablehlo.sine")
    assert text != traced.text
    refused(plan, "computes something else", traced=dataclasses.replace(traced, text=text))
    refused(plan, r"made by compiler 0\.\d+\.\d+, this is 99", compiler="99")


def test_plans_for_other_clusters_are_refused(planned):
    text = Cluster.load(CLUSTER).text

    def other(edit):
        fields = json.loads(text)
        edit(fields)
        return Cluster.from_dict(fields)

    cases = [
        (
            lambda c: c["hosts"][0].update(count=3),
            "has 3 hosts of 4 virtual, .* made for 2 hosts of",
        ),
        (lambda c: c["hosts"][0].update(nics=2), "with 2 network adapters, the plan"),
        (
            lambda c: c["device_types"]["virtual"].update(memory_bytes=2**30),
            "memory_bytes of virtual is 1 GiB in the cluster, 2 GiB where",
        ),
        (
            lambda c: c["links"]["inter_host"].update(bandwidth=7),
            "bandwidth of inter_host links is 7",
        ),
        (
            lambda c: c.update(
                racks={"hosts": 1}, links=c["links"] | {"inter_rack": c["links"]["inter_host"]}
            ),
            "has racks of 1 host, the plan was made for no racks",
        ),
        (
            lambda c: c["hosts"][0].update(links={"intra_host": {"bandwidth": 7, "latency": 0}}),
            "bandwidth of intra_host links is 7",
        ),
    ]
    for edit, message in cases:
        refused(planned.plan, message, cluster=other(edit))
    planned.plan.check(cluster=other(lambda c: c.update(name="the same under another name")))


def test_locations_do_not_make_another_step():
    """Where the code of a step stands does not count; what it computes does."""
    source = "def step(w, x):\n    return w - 0.1 * (x.sum(0) @ w), (x @ w).sum()\n"
    places = {}
    for name, text in {
        "a": source,
        "b": "\n\n" + source,
        "c": source.replace("0.1", "0.2"),
    }.items():
        scope: dict = {}
        exec(compile(text, f"/{name}.py", "exec"), scope)
        shapes = (jax.ShapeDtypeStruct((4, 4), "float32"), jax.ShapeDtypeStruct((8, 4), "float32"))
        places[name] = trace(scope["step"], *shapes).fingerprint
    assert places["a"] == places["b"] != places["c"]


def test_a_plan_made_before_is_taken_for_the_same_step(planned, tmp_path):
    planned.save(tmp_path)
    model = zoo.make_gpt(zoo.GPTConfig(layers=1))
    step = alpa_mlir.parallelize(model.step, cluster=CLUSTER)
    taken = step.trace(*jax.eval_shape(model.init)).with_plan(tmp_path)
    assert taken.plan == planned.plan
    assert (taken.plan.num_micro_batches, taken.traced.signature.batch_size) == (2, 8)
    deeper = zoo.make_gpt(zoo.GPTConfig(layers=2))
    with pytest.raises(errors.PlanMismatchError, match="h1"):
        alpa_mlir.parallelize(deeper.step).trace(*jax.eval_shape(deeper.init)).with_plan(tmp_path)
    with pytest.raises(errors.PlanMismatchError, match="the cluster has"):
        step.trace(*jax.eval_shape(model.init)).with_plan(tmp_path, "p3.16xlarge")


def test_differences_of_plans(planned):
    plan = planned.plan
    assert not plan.diff(plan)
    assert plan.diff(plan).as_text() == "the plans are equal"
    model = zoo.make_gpt(zoo.GPTConfig(layers=1))
    method = ShardParallel(mesh_shape=(2, 2), num_micro_batches=1)
    other = (
        alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method)
        .plan(*jax.eval_shape(model.init))
        .plan
    )
    diff = plan.diff(other)
    changes = {c.what: (c.before, c.after) for c in diff.decisions}
    assert changes["stages"] == ("2", "1")
    assert changes["micro-batches"] == ("2", "1")
    assert changes["mesh of stage 1"][1] is None
    assert changes["schedule"] == ("1f1b", None)  # The other has no pipeline.
    lies = [c.before for c in diff.shardings if "'qkv'" in c.what and c.before]
    assert any(re.search(r" of (data|tensor|fsdp) 2", text) for text in lies)
    assert any(c.what == "predicted step seconds" for c in diff.predictions)
    assert not any("search" in c.what for c in diff.predictions)
    assert "micro-batches" in diff.as_text()
    assert "more weights are split otherwise" in diff.as_text(most=1)
    back = {c.what: (c.after, c.before) for c in other.diff(plan).decisions}
    assert back == changes


@pytest.mark.parametrize(
    "text",
    [b"", b"[1]", b"\xff", b'{"search_seconds": NaN}', b'{"a": "1"}', b'{"stage_seconds": [-1]}'],
)
def test_damaged_seconds_of_planning_are_none(planned, tmp_path, text):
    folder = planned.save(tmp_path / "plan")
    assert Plan.load(folder).planning["search_seconds"] > 0
    (folder / "planning.json").write_bytes(text)
    assert Plan.load(folder).planning == {}


def test_saving_leaves_no_seconds_of_another_plan(planned, tmp_path):
    folder = planned.save(tmp_path / "plan")
    dataclasses.replace(Plan.load(folder), planning={}).save(folder)
    assert Plan.load(folder).planning == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(999), "999 B"),
        (bytes_text(1000), "1000 B"),
        (bytes_text(1023.9 * 2**20), "1024 MiB"),
        (bytes_text(1.5 * 2**30), "1.5 GiB"),
        (bytes_text(5000 * 2**40), "5000 TiB"),
        (seconds_text(0), "0 s"),
        (seconds_text(999.7e-6), "1000 us"),
        (seconds_text(1.254e-3), "1.25 ms"),
        (seconds_text(86400), "86400 s"),
    ],
)
def test_figures_have_no_powers_of_ten(text, expected):
    assert text == expected
