"""What a report holds is what the plan says; what the plan does not say is named."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from math import prod
from types import MappingProxyType
from xml.etree import ElementTree

import alpa_mlir
import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_mlir.errors import BackendError, PlanFormatError
from alpa_mlir.report import collect, write_plots, write_report
from alpa_mlir.report._data import collect_layers, read_operands
from alpa_mlir.simulator import simulate
from alpa_runtime.execution.loaded_plan import load as load_plan
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import Exactness
from alpa_runtime.plan.plan import Tried
from alpa_runtime.plan.strategy import AxisNames, strategy_of
from alpa_runtime.step_trace import Recording
from pipelines import pipeline
from simulated import cluster
from test_equality import CLUSTER


@pytest.fixture(scope="module")
def planned():
    model = zoo.make_gpt(zoo.GPTConfig(layers=3))
    method = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=4)
    step = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method, cache=False)
    return step.plan(*model.init())


@pytest.fixture(scope="module")
def data(planned):
    return collect(planned.plan)


def page_data(path):
    text = path.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found)


def test_the_header(planned, data):
    plan, timeline = planned.plan, simulate(planned.plan)
    header = data.header
    assert header.predicted_seconds == plan.predicted["step_seconds"]
    assert header.simulated_seconds == timeline.step_seconds
    assert (header.hosts, header.devices, header.used_devices) == (2, 8, 8)
    figures = data.figures
    assert (
        figures.needed_bytes
        == figures.foreseen_bytes
        >= max(use.peak_bytes for use in timeline.memory)
    )
    assert figures.capacity_bytes == 2 * 2**30
    assert figures.peak_tflops == 2e10 / 1e12
    flops = timeline.tflops_per_device * 1e12 * 8 * timeline.step_seconds
    assert figures.hardware_flops == pytest.approx(flops)
    statuses = {stage.solver["status"] for stage in plan.stages}
    assert header.solver == ("optimal" if statuses == {"optimal"} else "feasible")


def test_every_argument_is_listed_once_with_its_bytes(planned, data):
    plan, tensors = planned.plan, data.tensors
    table = zip(tensors.names, tensors.kinds, tensors.form, tensors.mesh, strict=True)
    rows = {name: (form, mesh) for name, kind, form, mesh in table if kind in ("weight", "state")}
    state = [info for info in plan.inputs if info.kind == "state"]
    assert rows.keys() == {info.name for info in state}
    for info in state:
        form, mesh = rows[info.name]
        shape, dtype, spec, whole, held = tensors.forms[form]
        assert (shape, dtype) == (info.shape, info.dtype)
        names = strategy_of(plan).axes[mesh]
        sizes = dict(zip(names.names, names.shape, strict=True))
        parts = prod(sizes[axis] for axes in spec for axis in axes)
        assert whole == prod(shape) * np.dtype(dtype).itemsize
        assert held == whole / parts
    for stage in plan.stages:
        for weight in stage.weights:
            names = strategy_of(plan).axes[stage.mesh]
            spec = tuple(map(names.dimension, weight.spec))
            assert tensors.forms[rows[weight.name][0]][2] == spec
    kinds = set(tensors.kinds)
    assert {"weight", "state", "batch", "activation", "gradient", "result"} <= kinds


def test_what_micro_batches_compute(planned, data):
    exactness = planned.plan.exactness
    assert data.micro_batches.exact
    assert data.micro_batches.sums == len(set(exactness.sums)) > 0
    assert data.micro_batches.estimates == ()
    other = Exactness(False, ("a.py:1", "a.py:1"), estimates=("a.py:2", "", "a.py:2"))
    found = collect(dataclasses.replace(planned.plan, exactness=other)).micro_batches
    assert (found.exact, found.sums) == (False, 1)
    assert found.estimates == ("a.py:2", "a line without a name")


def test_a_batch_that_a_plan_has_twice_is_no_weight():
    """Weights of examples that need the whole batch's labels."""

    def step(w, x, y):
        def loss(w):
            seen = jnp.bincount(y, length=4)
            return jnp.mean((x @ w).sum(-1) ** 2 / (1 + seen[y]))

        return w - 0.1 * jax.grad(loss)(w)

    args = np.ones((8, 4), np.float32), np.ones((8, 8), np.float32), np.zeros(8, np.int32)
    method = ShardParallel(num_micro_batches=4)
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*args).plan
    assert [info.whole_of for info in plan.added_inputs] == ["y"]
    data = collect(plan)
    kinds = dict(zip(data.tensors.names, data.tensors.kinds, strict=True))
    assert (kinds["w"], kinds["y"], kinds["y (whole)"]) == ("weight", "batch", "batch")
    assert (data.header.weights, data.header.state_bytes) == (32, 128)
    assert data.figures.rows == 8


def test_weights_are_counted_once_and_through_what_is_made_of_them():
    """In bfloat16, which is made once a step of float32; the first is also the last."""
    sizes = {"emb": (512, 256), "up": (256, 1024), "down": (1024, 256)}
    w = {name: np.ones(size, np.float32) for name, size in sizes.items()}

    def step(w, m, x):
        def loss(w):
            w = jax.tree.map(lambda v: v.astype(jnp.bfloat16), w)
            h = jnp.tanh(x.astype(jnp.bfloat16) @ w["emb"])
            h = jnp.tanh(h @ w["up"]) @ w["down"]
            return jnp.mean((h @ w["emb"].T).astype(jnp.float32) ** 2)

        m = jax.tree.map(lambda a, g: 0.9 * a + g, m, jax.grad(loss)(w))
        return jax.tree.map(lambda p, g: p - g, w, m), m

    for submeshes in ([(1, 4)], [(1, 2), (1, 2)]):
        method = PipeshardParallel(
            submeshes=submeshes, layers=2, num_micro_batches=4, prepare_weights="converted"
        )
        parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)
        plan = parallel.plan(w, w, np.ones((16, 512), np.float32)).plan
        assert all("prepare" in stage.functions for stage in plan.stages)
        found = collect(plan)
        assert found.header.weights == sum(map(prod, sizes.values()))
        rows = zip(found.tensors.names, found.tensors.kinds, strict=True)
        kinds = {name.split("[")[0]: kind for name, kind in rows}
        assert (kinds["w"], kinds["m"]) == ("weight", "state")
        assert kinds["stage 0 prepare: result 0"] == "prepared"


def test_each_op_is_in_its_layer(planned, data):
    """Those of the forward pass, with shapes and the names of weights."""
    layers = [layer for group in data.layers for layer in group.layers]
    found = sum(
        len(group.layers) * times * len(ops) for group in data.layers for times, ops in group.blocks
    )
    decisions = [
        (number, row)
        for number in range(len(planned.plan.stages))
        for row in planned.plan.explanation(number)["decisions"]
        if row["phase"] == "forward" and row["op"] != "argument"
    ]
    assert found == len(decisions)
    assert sorted(layers) == sorted({(number, row["layer"]) for number, row in decisions})
    every = [op for group in data.layers for _, ops in group.blocks for op in ops]
    dots = [op for op in every if op.op == "dot_general"]
    assert any("kernel" in op.operands[1].name for op in dots)
    assert all(t.shape is not None for op in dots for t in (*op.operands, *op.results))


def test_layers_that_are_alike_stand_once(planned):
    def op(layer, name, chosen="([S0, R], [R, S1]) -> [S0, S1]", seconds=1.0):
        return {
            "op": "stablehlo.dot_general",
            "where": f"layer_{layer}/dot",
            "phase": "forward",
            "layer": layer,
            "types": "(8x4xf32, 4x4xf32) -> 8x4xf32",
            "reads": ["", f"w[{layer}][{name!r}]"],
            "chosen": chosen,
            "choices": 4,
            "seconds": seconds,
        }

    other = "([S01, R], [R, R]) -> [S01, R]"
    first = [op(0, "q"), op(0, "k"), op(1, "q"), op(1, "k"), op(2, "q"), op(2, "k", other)]
    blocks = [op(5, "e", other), op(5, "q"), op(5, "k", other)]
    blocks += [op(5, "q", seconds=3.0), op(5, "k", other, seconds=5.0), op(5, "q")]
    second = [op(3, "q"), op(3, "k"), *blocks]
    explanations = [{"decisions": first}, {"decisions": second}]
    axes = [AxisNames.plain(mesh.axes, mesh.shape) for mesh in planned.plan.meshes]
    groups, missing = collect_layers(planned.plan, explanations, axes)
    assert missing == ()
    assert [group.layers for group in groups] == [((0, 0), (0, 1), (1, 3)), ((0, 2),), ((1, 5),)]
    assert [[times for times, _ in group.blocks] for group in groups] == [[1], [1], [1, 2, 1]]
    assert [op.seconds for op in groups[2].blocks[1][1]] == [2.0, 3.0]


def test_costs_are_those_of_the_explanations(planned, data):
    plan = planned.plan
    for number in range(len(plan.stages)):
        found = plan.explanation(number)
        spent = sum(row.seconds for row in data.collectives if row.stage == number)
        assert spent == pytest.approx(found["communication_seconds"])
    whole = sum(plan.explanation(n)["compute_seconds"] for n in range(len(plan.stages)))
    assert sum(row.compute_seconds for row in data.ops) == pytest.approx(whole)
    assert {row.link for row in data.collectives if row.axis} == {"host"}
    (forth, back) = data.crossings
    assert (forth.source, forth.target, back.source) == (0, 1, 1)
    assert forth.count >= plan.num_micro_batches


def test_certificates_are_the_solvers(planned, data):
    for row, stage in zip(data.certificates, planned.plan.stages, strict=True):
        assert row.status == stage.solver["status"]
        assert row.lower_bound_seconds <= row.objective_seconds
        assert row.objective_seconds == stage.solver["objective_seconds"]
        assert row.nodes == stage.solver["nodes"]
        assert 0 < row.seconds < planned.plan.planning["search_seconds"] * 2


def test_the_page_is_the_data(planned, data, tmp_path):
    path = write_report(planned.plan, tmp_path / "report.html")
    held = page_data(path)
    assert held["header"]["predicted_seconds"] == pytest.approx(data.header.predicted_seconds)
    assert held["tensors"]["names"] == list(data.tensors.names)
    assert [row["status"] for row in held["certificates"]] == [
        stage.solver["status"] for stage in planned.plan.stages
    ]
    text = path.read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:,)', text)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)


EVIL = '</script><img src=x onerror="window.hacked=1"><!--\u2028&amp;'


def test_names_cannot_leave_the_data(planned, tmp_path):
    plan = planned.plan
    first = dataclasses.replace(plan.inputs[0], name=EVIL)
    cluster = MappingProxyType({**plan.cluster, "name": EVIL})
    evil = dataclasses.replace(plan, name=EVIL, inputs=(first, *plan.inputs[1:]), cluster=cluster)
    path = write_report(evil, tmp_path / "report.html", compare={EVIL: plan})
    held = page_data(path)
    assert held["header"]["name"] == held["header"]["cluster"] == EVIL
    assert EVIL in held["tensors"]["names"]
    assert held["compared"][0]["name"] == EVIL
    assert "<img" not in path.read_text()
    assert path.read_text().count("</script>") == 2


def test_what_a_plan_does_not_say_is_named():
    """A pipeline written by hand has no explanations, no solver and no cluster."""
    plan = pipeline([(1, 2, 1)] * 2, 3)
    data = collect(plan)
    assert data.simulated is None
    assert "does not say its cluster" in data.missing["timeline"][0]
    assert "stage 0, 1" in data.missing["communication"][0]
    assert "stage 0, 1" in data.missing["certificates"][0]
    assert {"cluster", "sharding", "memory", "alternatives"} <= data.missing.keys()
    assert data.header.solver is None
    assert data.certificates == data.layers == data.memory == ()
    there = collect(plan, timeline=simulate(plan, cluster()))
    assert there.simulated.seconds == simulate(plan, cluster()).step_seconds
    assert "timeline" not in there.missing


def test_plans_of_older_compilers_have_no_layers(planned):
    """Their ops are drawn without sizes, and the report says so."""
    plan = planned.plan
    texts = {}
    for name, text in plan.explanations.items():
        found = json.loads(text)
        for row in (*found["ops"], *found["decisions"]):
            for field in ("layer", "types", "reads"):
                row.pop(field, None)
        texts[name] = json.dumps(found)
    old = dataclasses.replace(plan, explanations=texts)
    explanations = [old.explanation(n) for n in range(len(old.stages))]
    groups, missing = collect_layers(old, explanations, strategy_of(old).axes)
    assert [group.layers for group in groups] == [((0, None),), ((1, None),)]
    assert groups[0].blocks[0][1][0].results[0].shape is None
    assert "did not note layers" in missing[0]


def test_candidates_and_comparisons(planned):
    step = planned.plan.predicted["step_seconds"]
    tried = (
        Tried(8, "none", "1f1b", None, reason="does not fit"),
        Tried(2, "none", "gpipe", 2 * step, 2, 5.0),
        Tried(4, "none", planned.plan.schedule, step, 2, 6.0, True),
    )
    plan = dataclasses.replace(planned.plan, tried=tried)
    other = dataclasses.replace(plan, schedule="gpipe", num_micro_batches=4)
    data = collect(plan, compare=[plan, other])
    assert [row.num_micro_batches for row in data.candidates] == [4, 2, 8]
    assert [row.chosen for row in data.candidates] == [True, False, False]
    same, different = data.compared
    assert same.changes == ()
    assert ("schedule", plan.schedule, "gpipe") in different.changes


def test_specs_and_types_are_read():
    names = AxisNames.plain(("x", "y"), (2, 2))
    operands, results = read_operands(
        "([S0, R], [R, S01]) -> [S0, S1] unreduced 0",
        "(8x64xf32, 64x64xbf16) -> 8x64xui32",
        ["", "w"],
        names,
    )
    assert operands[1].name == "w"
    assert operands[1].spec == ((), ("x", "y"))
    assert operands[1].dtype == "bfloat16"
    assert (results[0].shape, results[0].dtype, results[0].unreduced) == ((8, 64), "uint32", ("x",))
    assert read_operands("[]", "f32", (), names)[1][0].shape == ()
    earlier = read_operands("[R] partial 1", None, (), names)[1][0]
    assert earlier.unreduced == ("y",)


def test_shardings_of_many_arrays_are_counted():
    names = AxisNames.plain(("x", "y"), (2, 2))
    assert (
        names.in_text("([S0, R], [R]) -> [S0] unreduced 1") == "([x, R], [R]) -> [x] summed over y"
    )
    carried = ["[]", "[S0, R]", "[R, R]", "[S0, R]", "[R] unreduced 1", "[R]", "[R, R]"]
    text = ", ".join(carried)
    assert names.in_text(f"({text}) -> {text}") == (
        "(7 arrays, of which [x, R] 2 times, [R] summed over y) -> "
        "7 arrays, of which [x, R] 2 times, [R] summed over y"
    )
    whole = ", ".join(["[R]"] * 7)
    assert names.in_text(f"({whole}) -> [R]") == "(7 arrays, all of them whole) -> [R]"


@pytest.mark.parametrize(
    ("table", "rows", "place"),
    [
        ("decisions", [{}], r"decisions\[0\]: field 'op' is missing"),
        ("ops", 1, "ops: got 1, expected a list"),
        (
            "communication",
            [{"collective": "send", "axis": "x"}],
            r"communication\[0\].axis: got 'x'",
        ),
        ("ops", [1], r"ops\[0\]: got 1, expected an object"),
    ],
)
def test_malformed_explanations_are_one_error(planned, table, rows, place):
    plan = planned.plan
    name = plan.stages[0].explanation
    text = json.dumps(json.loads(plan.explanations[name]) | {table: rows})
    damaged = {**plan.explanations, name: text}
    with pytest.raises(PlanFormatError, match=f"stage_0.explain.json: {place}"):
        collect(dataclasses.replace(plan, explanations=damaged))


def test_malformed_traces_are_one_error(planned, tmp_path):
    path = tmp_path / "trace.json"
    for events in ([1], [{"ph": "M"}], [{"ph": "M", "name": "process_name", "pid": 2, "args": 3}]):
        path.write_text(json.dumps({"traceEvents": events}))
        with pytest.raises(PlanFormatError):
            collect(planned.plan, record=path)


def test_a_record_without_steps_is_refused(planned, tmp_path):
    path = tmp_path / "trace.json"
    simulate(planned.plan).to_chrome_trace(path)
    with pytest.raises(PlanFormatError, match="no recorded steps"):
        collect(planned.plan, record=path)
    with pytest.raises(PlanFormatError, match="no trace"):
        collect(planned.plan, record=tmp_path / "nothing.json")


def test_pictures(planned, data, tmp_path):
    """Each in each format, with the numbers of the data; the same plan gives the same files."""
    files = write_plots(planned.plan, tmp_path / "a")
    names = ["cluster", "timeline", "memory", "communication"]
    assert [f.name for f in files] == [f"{n}.{form}" for n in names for form in ("svg", "png")]
    for path in files:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
    again = write_plots(planned.plan, tmp_path / "b", formats=["svg"])
    assert [f.read_bytes() for f in again] == [f.read_bytes() for f in files[::2]]
    with pytest.raises(PlanFormatError, match="unknown picture format 'exe'"):
        write_plots(planned.plan, tmp_path / "c", formats=["exe"])
    few = write_plots(pipeline([(1, 2, 1)] * 2, 3), tmp_path / "d", formats=["svg"])
    assert [f.name for f in few] == ["cluster.svg"]


def test_pictures_need_matplotlib(planned, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(BackendError, match=r"alpa-mlir\[plots\]"):
        write_plots(planned.plan, tmp_path)


def test_recorded_steps(tmp_path):
    """Runs of real steps by mesh, micro-batch and step, from memory and from the trace's file."""
    plan = handmade.as_plan(*handmade.two_stages(2))
    loaded = load_plan(plan)
    state, batch = handmade.arguments(2)
    with Recording(loaded, tmp_path / "trace.json") as recording:
        for _ in range(2):
            results = loaded(handmade.flat(state, batch))
            state = {"w0": results[0], "w1": results[1]}
    real = collect(plan, record=recording).real
    assert real.meshes == (0, 1)
    assert len(real.steps) == 2
    for row in real.spans:
        kinds = [real.kinds[kind] for kind in row[0]]
        assert kinds.count("forward") == kinds.count("backward") == 2 * 2
        assert kinds.count("update") == 2
        assert set(row[5]) == {0, 1}
    assert {(source, target) for source, target, *_ in real.transfers} == {(0, 1), (1, 0)}
    assert collect(plan, record=tmp_path / "trace.json").real == real
    held = page_data(write_report(plan, tmp_path / "plan.html", record=recording))
    assert held["header"]["real_seconds"] == pytest.approx([b - a for a, b in real.steps])


@pytest.mark.slow
def test_large_plans_are_small_files(tmp_path):
    """128 stages of 128 micro-batches; benchmark/report.py has OPT-175B."""
    plan = pipeline([(1, 2, 1)] * 128, 128)
    timeline = simulate(plan, cluster(hosts=16))
    assert write_report(plan, tmp_path / "plan.html", timeline=timeline).stat().st_size < 10e6


def test_plans_on_disk_give_the_same_report(planned, data, tmp_path):
    assert collect(Plan.load(planned.save(tmp_path / "plan"))) == data
