"""The plan as an artifact: its text, its schema, and reading it back."""

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from importlib import resources
from typing import NamedTuple

import alpa_mlir
import handmade
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from alpa_mlir import Cluster, PipeshardParallel, Plan, ShardParallel, errors, tree_json
from alpa_mlir.plan_json import pretty
from alpa_mlir.plan_program import InstructionReader, slots_text
from alpa_mlir.plan_tensor import TensorReader, TensorSpec
from alpa_mlir.trace import trace
from hypothesis import given
from hypothesis import strategies as st
from schema import problems

CLUSTER = "cpu-test"
SCHEMA = json.loads(resources.files(alpa_mlir).joinpath("plan.schema.json").read_text())


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
    ("edit", "message"),
    [
        (lambda p: p["stages"][1].update(mesh=7), r"stages\[1\].mesh: mesh 7, but the plan has 2"),
        (lambda p: p["programs"][0].update(mesh=2), r"programs\[0\].mesh: mesh 2"),
        (lambda p: p["reshards"][1].update(target_mesh=2), r"reshards\[1\].target_mesh: mesh 2"),
        (lambda p: p["inputs"][0].update(carried_by=99), r"inputs\[0\].carried_by: output 99"),
        (lambda p: p["stages"][0].update(predicted={"forward_seconds": -1}), "of at least 0"),
        (lambda p: p.update(predicted={"step_seconds": float("nan")}), "of at least 0"),
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
    assert InstructionReader(TensorReader()).read(line).to_text() == line


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
    refused(plan, "has 2 micro-.* traced for 4", traced=with_signature(num_micro_batches=4))
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
    assert taken.traced.signature.num_micro_batches == 2
    deeper = zoo.make_gpt(zoo.GPTConfig(layers=2))
    with pytest.raises(errors.PlanMismatchError, match="h1"):
        alpa_mlir.parallelize(deeper.step).trace(*jax.eval_shape(deeper.init)).with_plan(tmp_path)
    with pytest.raises(errors.PlanMismatchError, match="the cluster has"):
        step.trace(*jax.eval_shape(model.init)).with_plan(tmp_path, "p3.16xlarge")


def test_a_loaded_plan_is_called_like_the_function(tmp_path):
    """In a process that knows nothing of the model: no tracing, no compiler."""
    optimizer = optax.adam(1e-2)

    def train_step(state, batch):
        def loss(params):
            hidden = jnp.tanh(batch["x"] @ params["layers"][0])
            return jnp.mean((hidden @ params["layers"][1] - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = optimizer.update(grads, state["opt"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    params = {"layers": [jnp.ones((8, 16)) / 8, jnp.ones((16, 4)) / 16]}
    state = {"params": params, "opt": optimizer.init(params)}
    rng = np.random.default_rng(0)
    batch = {k: rng.normal(size=(16, n)).astype(np.float32) for k, n in (("x", 8), ("y", 4))}
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=2, layers=2)
    step = alpa_mlir.compile(train_step, state, batch, cluster=CLUSTER, method=method)
    step.plan.save(tmp_path / "plan")
    (tmp_path / "in.pkl").write_bytes(pickle.dumps(jax.tree.map(np.asarray, (state, batch))))
    code = f"""
import pickle, sys
from pathlib import Path
import optax  # its states are named tuples in this step's arguments
sys.modules["alpa_mlir._native"] = None  # importing it fails
import alpa_mlir, jax, numpy as np
alpa_mlir.use_virtual_devices(8)
folder = Path({str(tmp_path)!r})
step = alpa_mlir.load(folder / "plan")
result = step(*pickle.loads((folder / "in.pkl").read_bytes()))
(folder / "out.pkl").write_bytes(pickle.dumps(jax.tree.map(np.asarray, result)))
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
    result = pickle.loads((tmp_path / "out.pkl").read_bytes())
    expected = jax.jit(train_step)(state, batch)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def keyed_step(mode, state, batch):
    noise = jax.random.normal(state["key"], (4,))
    w = state["w"] - 0.1 * batch.mean(0) + (noise if mode == "train" else 0)
    return {"w": w, "key": jax.random.split(state["key"], 1)[0]}, w.sum()


def test_keys_and_static_arguments_of_a_loaded_plan(tmp_path):
    state = {"w": jnp.ones(4), "key": jax.random.key(3)}
    args = ("train", state, jnp.ones((8, 4)))
    step = alpa_mlir.compile(
        keyed_step, *args, cluster=CLUSTER, static_argnums=0, donate_state=False,
        method=ShardParallel(mesh_shape=(1, 2), num_micro_batches=1),
    )  # fmt: skip
    loaded = alpa_mlir.load(step.plan.save(tmp_path))
    (new, value), (expected, wanted) = loaded(*args), keyed_step(*args)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(new["w"], expected["w"], rtol=1e-6)
    assert new["key"].dtype == expected["key"].dtype
    np.testing.assert_array_equal(*map(jax.random.key_data, (new["key"], expected["key"])))
    assert not loaded(*args)[0]["w"].is_deleted()
    with pytest.raises(errors.ArgumentMismatchError, match="got 'test', the step was made for 'tr"):
        loaded("test", *args[1:])
    with pytest.raises(errors.ArgumentMismatchError, match="no leaf"):
        loaded("train", {"w": state["w"]}, args[2])
    assert loaded("train", batch=args[2], state=state)[1] == value
    for first, named, message in (
        (args, {"batch": 0}, "keyed_step: the argument 'batch' is given twice"),
        (args[:2], {"bach": 0}, "the argument 'bach' is unknown; fix: give a Python value, state,"),
        (args[:1], {"batch": 0}, "the argument 'batch' comes after one that is not given"),
    ):
        with pytest.raises(errors.ArgumentMismatchError, match=message):
            loaded(*first, **named)


def test_functions_are_called_with_names():
    def scaled(w, factor, x):
        return w + factor * x.sum(), x.sum()

    step = alpa_mlir.parallelize(scaled, cluster=CLUSTER, static_argnums=1)
    x = np.ones((8, 4), np.float32)
    expected = step(np.float32(1), 2, x)
    assert step(x=x, w=np.float32(1), factor=2) == expected
    assert step(np.float32(1), 2, x=x) == expected
    with pytest.raises(errors.ArgumentMismatchError, match="scaled: the argument 'y' is unknown"):
        step(np.float32(1), 2, y=x)


@jax.tree_util.register_pytree_node_class
class Opaque:
    """A container that keeps a function, as some training states do."""

    def __init__(self, value, apply):
        self.value, self.apply = value, apply

    def tree_flatten(self):
        return (self.value,), self.apply

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(children[0], aux)


def test_trees_that_a_plan_cannot_store_need_an_example(tmp_path):
    def step(state, batch):
        w = state.value - batch.mean(0)
        return Opaque(w, state.apply), w.sum()

    state, batch = Opaque(jnp.ones(4), jnp.sin), jnp.ones((8, 4))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=1)
    alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method).plan.save(tmp_path)
    with pytest.raises(errors.PlanMismatchError, match=r"Opaque keeps more .* arguments=\(..\)"):
        alpa_mlir.load(tmp_path)
    loaded = alpa_mlir.load(tmp_path, arguments=(Opaque(0, jnp.sin), 0))
    new, value = loaded(state, batch)
    assert isinstance(new, Opaque)
    assert new.apply is jnp.sin
    assert value == 0


class Pair(NamedTuple):
    a: object
    b: object


TREES = [
    1,
    None,
    {"b": [1, (2, None)], "a": {}},
    Pair(1, {"x": 2}),
    {3: 1, 1: (2,)},
    collections.OrderedDict(z=1, a=[2]),
    optax.adam(1e-3).init({"w": np.ones(3)}),
    ((), [], {}),
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_structures(tree):
    structure = jax.tree.structure(tree)
    value = json.loads(json.dumps(tree_json.encode(structure)))
    assert tree_json.decode(value) == structure
    assert problems(value, SCHEMA["$defs"]["tree"], SCHEMA) == []


def test_classes_that_are_not_imported_are_named():
    value = {"class": "no_such_module:State", "children": ["*"], "aux": None}
    with pytest.raises(tree_json.UnknownTreeError, match="no_such_module:State is not imported"):
        tree_json.decode(value)
    for wrong in (5, {"tuple": 3}, {"odd": []}, {"items": [[1]]}, "x", [{"dict": []}]):
        with pytest.raises(ValueError, match="got"):
            tree_json.decode(wrong)
    with pytest.raises(tree_json.UnknownTreeError, match="is no container"):
        tree_json.decode({"class": "builtins:int", "children": ["*"], "aux": None})


def test_a_plan_without_trees_says_so(tmp_path):
    plan = handmade.as_plan(*handmade.two_stages(1))
    with pytest.raises(errors.PlanMismatchError, match="does not say how its step is called"):
        alpa_mlir.load(plan.save(tmp_path))


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
    assert "schedule" not in changes
    assert any("'qkv'" in c.what and " of 1x2" in c.before for c in diff.shardings if c.before)
    assert any(c.what == "predicted step seconds" for c in diff.predictions)
    assert not any("search" in c.what for c in diff.predictions)
    assert "micro-batches" in diff.as_text()
    assert "more weights are split otherwise" in diff.as_text(most=1)
    back = {c.what: (c.after, c.before) for c in other.diff(plan).decisions}
    assert back == changes
