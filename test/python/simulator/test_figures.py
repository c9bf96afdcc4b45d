"""What a plan's first lines say is a function of the plan: checked on plans of all kinds by
arithmetic that shares nothing with it."""

from __future__ import annotations

import dataclasses
import json
import re
from math import prod

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.simulator import simulate
from alpa_mlir.simulator.figures import figures_of, percent_text, published_error
from alpa_runtime.backends import xla
from alpa_runtime.plan.plan import CompiledMemory
from alpa_runtime.plan.strategy import strategy_text
from alpa_runtime.plan.text import bytes_text
from test_equality import CLUSTER

ROWS, SEQ, HIDDEN, LAYERS = 16, 32, 64, 1


def gpt(**options):
    return zoo.make_gpt(
        zoo.GPTConfig(layers=LAYERS, hidden=HIDDEN, heads=4, seq=SEQ, vocab=128, **options)
    )


def pipeline(**options):
    options = {"submeshes": [(1, 4)] * 2, "num_micro_batches": 4, **options}
    return PipeshardParallel(**options)


def mesh(method, **options):
    return ShardParallel(mesh_shape=(2, 4), method=method, **options)


# Each with a strategy in words: what the method forces, or a pattern of what it leaves open.
PLANS = {
    "data parallel": (gpt, ShardParallel(method="data-parallel"), "data 8"),
    "ZeRO": (gpt, ShardParallel(method="zero-2"), r"data 8 \(ZeRO-[12]\)|data .* x data .*"),
    "FSDP": (gpt, ShardParallel(method="zero-3"), "FSDP 8"),
    "tensor": (gpt, mesh("megatron"), "data 2 x tensor 4"),
    "sequence": (gpt, mesh("megatron-sequence"), "data 2 x tensor 4, sequence parallel"),
    "micro-batches": (
        gpt,
        ShardParallel(method="data-parallel", num_micro_batches=2),
        "data 8, 2 micro-batches",
    ),
    "1F1B": (
        gpt,
        pipeline(method="data-parallel", schedule="1f1b"),
        "pipeline 2 x data 4, 4 micro-batches, 1F1B",
    ),
    "GPipe": (
        gpt,
        pipeline(method="zero-3", schedule="gpipe"),
        "pipeline 2 x FSDP 4, 4 micro-batches, GPipe",
    ),
    "interleaved": (
        gpt,
        pipeline(
            method="data-parallel",
            schedule="interleaved-1f1b",
            virtual_stages=2,
            layer_ranges=[(0, 1), (1, 2), (2, 3), (3, 4)],
            layers=4,
        ),
        "pipeline 2 x data 4, 4 micro-batches, interleaved x2",
    ),
    "remat": (
        lambda: gpt(remat=True),
        ShardParallel(method="data-parallel"),
        "data 8, remat of whole layers",
    ),
    "scan": (lambda: gpt(scan=True), ShardParallel(method="data-parallel"), "data 8"),
    "unequal stages": (
        gpt,
        PipeshardParallel(submeshes=[(1, 2), (1, 4)], num_micro_batches=2, method="data-parallel"),
        r"pipeline 2 x \(data 2 in stage 0, data 4 in stage 1\), 2 micro-batches, .*",
    ),
    "searched": (gpt, AutoParallel(num_micro_batches=(1, 2)), ".*"),
}


@pytest.fixture(scope="module", params=PLANS)
def planned(request):
    make, method, words = PLANS[request.param]
    model = make()
    arguments = model.init(ROWS)
    step = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method, cache=False)
    return request.param, model, arguments, step.plan(*arguments), words


def product_flops(jaxpr, skipped=False):
    """FLOPs of the dots of a program, and of those that it computes again."""
    found = again = 0
    for eqn in jaxpr.eqns:
        inside = skipped or "rematted_computation" in str(eqn.source_info.name_stack)
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            flops = 2 * prod(eqn.outvars[0].aval.shape) * prod(shape[i] for i in contracted)
            found += flops
            again += flops * inside
        times = eqn.params.get("length", 1)
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    of, repeated = product_flops(inner, inside)
                    found, again = found + times * of, again + times * repeated
    return found, again


def test_speed(planned):
    """Tokens by the batch, FLOPs by the dots of the program that JAX traced."""
    _, model, arguments, found, _ = planned
    plan = found.plan
    figures = figures_of(plan)
    seconds = plan.predicted["step_seconds"]
    assert figures.tokens == ROWS * SEQ
    assert figures.tokens_per_second == pytest.approx(ROWS * SEQ / seconds)
    dots, again = product_flops(jax.make_jaxpr(model.step)(*arguments).jaxpr)
    used = sum(len(mesh.devices) for mesh in plan.meshes)
    peak = 2e10 * used  # Of the cluster's devices in float32.
    # Norms, softmax and the update are a small part beside the dots.
    assert 1.0 <= figures.mfu / ((dots - again) / seconds / peak) < 1.25
    assert 1.0 <= figures.hfu / (dots / seconds / peak) < 1.25
    assert figures.mfu <= figures.hfu < 1


def test_memory_is_bounded(planned):
    """Foreseen and simulated bytes, and those of the arrays that the step holds on a device."""
    name, _, arguments, found, _ = planned
    plan = found.plan
    figures = figures_of(plan)
    simulated = simulate(plan).memory
    held = measured_bytes(found, arguments)
    for row in figures.memory:
        devices = plan.meshes[row.mesh].devices
        # The driver places a micro-batch's rows before those of the last one are let go.
        rows = ROWS // plan.num_micro_batches * SEQ * 2 * 4 / len(devices)
        measured = max(held.get(device, 0) for device in devices) - rows
        assert row.foreseen_bytes >= simulated[row.mesh].peak_bytes >= measured > 0, name
        assert row.capacity_bytes == 2 * 2**30
    assert figures.fullest.foreseen_bytes == max(row.foreseen_bytes for row in figures.memory)


def test_memory_is_as_compiled_where_that_is_known(planned):
    plan = planned[3].plan
    foreseen = figures_of(plan).memory
    (own,) = plan.cluster["device_types"]
    found = tuple(
        CompiledMemory(row.mesh, "xla", target, int(times * row.foreseen_bytes), "stage 0 forward")
        for row in foreseen
        for target, times in ((own, 1.5), ("h100", 3.0))
    )
    figures = figures_of(dataclasses.replace(plan, compiled_memory=found))
    for row, before in zip(figures.memory, foreseen, strict=True):
        assert row.foreseen_bytes == before.foreseen_bytes
        assert row.needed_bytes == row.compiled_bytes == int(1.5 * before.foreseen_bytes)
    (line,) = (line for line in figures.lines() if line.startswith("memory:"))
    texts = [
        bytes_text(x) for x in (figures.fullest.compiled_bytes, figures.fullest.foreseen_bytes)
    ]
    assert line.startswith(f"memory: {texts[0]} of 2 GiB, ")
    assert line.endswith(f", as compiled; about {texts[1]} were foreseen")
    other = tuple(row for row in found if row.target != own)
    assert figures_of(dataclasses.replace(plan, compiled_memory=other)).memory == foreseen


def test_kept_state_counts_twice(planned):
    name, _, arguments, found, _ = planned
    plan = found.plan
    keeps = dataclasses.replace(plan, call=dataclasses.replace(plan.call, donate_state=False))
    rows = zip(figures_of(plan).memory, figures_of(keeps).memory, strict=True)
    more = [
        (len(plan.meshes[b.mesh].devices), b.foreseen_bytes - a.foreseen_bytes) for a, b in rows
    ]
    state = sum(jnp.asarray(x).nbytes for x in jax.tree.leaves(arguments[0]))
    assert sum(devices * size for devices, size in more) >= state, name
    assert all(0 < size <= state for _, size in more), name
    if name == "data parallel":
        assert [size for _, size in more] == [state]


def measured_bytes(found, arguments):
    """The most bytes of arrays on each device, looked at whenever a program was started."""
    most: dict[int, int] = {}
    before = {id(array) for array in jax.live_arrays()}
    call = xla.Executable.call

    def watched(program, args):
        results = call(program, args)
        buffers: dict[tuple[int, int], int] = {}  # Parts of arrays are arrays too.
        for array in jax.live_arrays():
            if id(array) not in before:
                for shard in array.addressable_shards:
                    place = shard.device.id, shard.data.unsafe_buffer_pointer()
                    buffers[place] = shard.data.nbytes
        now: dict[int, int] = {}
        for (device, _), size in buffers.items():
            now[device] = now.get(device, 0) + size
        for device, size in now.items():
            most[device] = max(most.get(device, 0), size)
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xla.Executable, "call", watched)
        step = found.load(cache=False)
        jax.block_until_ready(step(*jax.device_get(arguments)))
    step.close()
    return most


def test_words(planned):
    *_, found, words = planned
    strategy = strategy_text(found.plan)
    assert re.fullmatch(words, strategy), strategy
    assert f"\nstrategy: {strategy}\n" in found.as_text()


def test_lines(planned):
    """Each number in the lines is the figure's, with as many digits as it shows."""
    plan = planned[3].plan
    figures = figures_of(plan, price=3.0)
    text = "\n".join(figures.lines())
    (mfu,) = re.findall(r"MFU ([\d.]+) %", text)
    assert float(mfu) == pytest.approx(100 * figures.mfu, abs=0.0501)
    (cost,) = re.findall(r"1B tokens for ([\d.,]+),", text)
    assert float(cost.replace(",", "")) == pytest.approx(
        3.0 * 8 * plan.predicted["step_seconds"] / 3600 / (ROWS * SEQ) * 1e9, rel=1e-3
    )
    ((bound, unit),) = re.findall(r"about ([\d.]+) (KiB|MiB) of 2 GiB", text)
    scale = {"KiB": 2**10, "MiB": 2**20}[unit]
    assert float(bound) == pytest.approx(figures.fullest.foreseen_bytes / scale, rel=5e-3)
    gaps = [stage.solver["gap"] for stage in plan.stages]
    assert figures.gap == max(gaps)
    if all(stage.solver["status"] == "optimal" for stage in plan.stages):
        assert "proved optimal for these costs" in text
    else:
        (shown,) = re.findall(r"within ([\d.]+) % of the optimum", text)
        assert max(gaps) <= float(shown) / 100 <= max(gaps) + 1e-3


@pytest.mark.parametrize("remat", ["none", "all"])
def test_examples_are_not_differentiated(remat):
    """The first product has one gradient, whether layers are computed again or not."""
    width = 2048
    shape = jax.ShapeDtypeStruct((width, width), jnp.float32)

    def step(weights, x):
        def loss(weights):
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return jnp.mean(h**2)

        value, grads = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - g, weights, grads), value

    method = ShardParallel(num_micro_batches=1, remat=remat)
    planned = alpa_mlir.parallelize(step, cluster="dgx-a100", method=method, cache=False)
    figures = figures_of(planned.plan([shape, shape], shape).plan)
    products = 7 if remat == "all" else 5
    assert figures.model_flops == pytest.approx(5 * 2 * width**3, rel=0.01)
    assert figures.hardware_flops == pytest.approx(products * 2 * width**3, rel=0.01)


@pytest.mark.parametrize(("moves", "count"), [(True, 2), (True, 1), (False, 2)])
def test_products_of_the_update_are_said(moves, count):
    """A second gradient at moved weights, which need all examples, is computed once."""
    shape = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)

    def step(weights, x):
        def loss(weights):
            return jnp.mean(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]) ** 2)

        gradients = jax.grad(loss)(weights)
        if moves:
            size = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients))
            gradients = jax.grad(loss)(
                [w + g / size for w, g in zip(weights, gradients, strict=True)]
            )
        return [w - g for w, g in zip(weights, gradients, strict=True)]

    method = ShardParallel(num_micro_batches=count)
    planned = alpa_mlir.parallelize(step, cluster="dgx-a100", method=method, cache=False)
    figures = figures_of(planned.plan([shape, shape], shape).plan)
    said = [line for line in figures.lines() if line.startswith("update: ")]
    if moves and count > 1:
        assert said == [
            f"update: {percent_text(figures.once_part)} of the products' time, once a step and not "
            "in micro-batches"
        ]
        assert 0.2 < figures.once_part < 0.9  # Half of the FLOPs.
    else:
        assert said == []
        assert figures.once_part == 0


def test_frozen_weights_are_not_differentiated():
    """Adapters beside frozen weights whose layers are computed again: forward, one product for the
    inputs' gradients, and what recomputation adds counts in HFU alone."""
    size, rows, layers = 128, 64, 8

    def step(state, batch):
        def loss(adapters):
            x = batch
            for weight, adapter in zip(state["frozen"], adapters, strict=True):
                x = jax.checkpoint(lambda x, w, a: jnp.tanh(x @ w + a))(x, weight, adapter)
            return jnp.mean(x**2)

        gradients = jax.grad(loss)(state["adapters"])
        adapters = [a - 0.1 * g for a, g in zip(state["adapters"], gradients, strict=True)]
        return {"frozen": state["frozen"], "adapters": adapters}

    state = {
        "frozen": [jnp.ones((size, size))] * layers,
        "adapters": [jnp.ones((1, size))] * layers,
    }
    method = ShardParallel(method="data-parallel")
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, cache=False).plan(
        state, jnp.ones((rows, size))
    )
    figures = figures_of(plan.plan)
    product = 2 * rows * size * size
    assert figures.model_flops == pytest.approx((2 * layers - 1) * product, rel=0.12)
    assert figures.hardware_flops > figures.model_flops + 0.9 * (layers - 1) * product


@pytest.mark.parametrize("scan", [jnp.cumsum, lambda x, axis: jnp.cumsum(x[:, ::-1], axis)])
def test_running_sums_go_through_a_sequence_once(scan):
    rows, tokens, width = 8, 1024, 64

    def step(w, x):
        def loss(w):
            return jnp.mean(scan(x @ w, axis=1) ** 2)

        return w - 0.1 * jax.grad(loss)(w)

    x, w = float_shapes((rows, tokens, width), (width, width))
    method = ShardParallel(method="data-parallel")
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, cache=False).plan(w, x)
    product = 2 * rows * tokens * width * width
    assert figures_of(plan.plan).model_flops == pytest.approx(2 * product, rel=0.15)


def test_prices_count_idle_devices_and_rows():
    plan = planned_mlp(ShardParallel(mesh_shape=(1, 4), method="data-parallel"))
    figures = figures_of(plan, price=2.0)
    assert (figures.num_devices, figures.idle_devices) == (4, 4)
    seconds = plan.predicted["step_seconds"]
    assert figures.unit_price == pytest.approx(2.0 * 8 * seconds / 3600 / 32 * 1e6)
    (line,) = (line for line in figures.lines() if line.startswith("price"))
    assert "1M rows for" in line
    assert line.endswith("at 2 for a device and hour of 8 devices, 4 idle")
    assert "rows/s" in figures.lines()[0]
    assert figures_of(plan, price=2.0, tokens=320).unit_price == pytest.approx(
        2.0 * 8 * seconds / 3600 / 320 * 1e9
    )


def planned_mlp(method):
    def step(w, batch):
        return w - 0.1 * jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(w)

    arguments = jnp.ones((64, 64)), jnp.ones((32, 64))
    return alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*arguments).plan


def float_shapes(*shapes):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def descended(loss, w, *batch):
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w, *batch))


def two_products(w, x):
    return jnp.mean((jax.nn.relu(x @ w[0]) @ w[1]) ** 2)


def accumulating(w, batch):
    def one(total, part):
        return jax.tree.map(jnp.add, total, jax.grad(two_products)(w, part)), None

    parts = batch.reshape(4, -1, batch.shape[-1]) if batch.ndim == 2 else batch
    total, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, w), parts)
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, total)


def grouped(w, batch):
    def loss(w):
        expert = jnp.argmax(batch @ w["router"], -1)
        x = batch[jnp.argsort(expert)]
        sizes = jnp.bincount(expert, length=8)
        hidden = jax.nn.gelu(jax.lax.ragged_dot(x, w["up"], sizes))
        return jnp.mean(jax.lax.ragged_dot(hidden, w["down"], sizes) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))


def ensemble(w, x):
    return descended(lambda w: jax.vmap(two_products, (0, None))(w, x).mean(), w)


def words_and_specs(step, state, batch):
    plan = alpa_mlir.parallelize(step, cluster="dgx-h100", cache=False).plan(state, batch).plan
    ops = [op for op in plan.explanation(0)["ops"] if op["phase"] == "forward"]
    products = [op for op in ops if op["op"] in ("stablehlo.dot_general", "alpa.grouped_dot")]
    return plan, strategy_text(plan), [op["specs"] for op in products]


@pytest.mark.parametrize("shape", [(32768, 2048), (4, 8192, 2048)], ids=["rows", "rounds"])
def test_rounds_and_their_rows_are_examples(shape):
    weights = float_shapes((2048, 8192), (8192, 2048))
    plan, words, specs = words_and_specs(accumulating, weights, *float_shapes(shape))
    assert any(re.match(r"\(\[\w+, S", spec) for spec in specs), specs
    assert "sequence" not in words
    sizes = re.findall(r"(?:data|FSDP) (\d)", words)
    assert prod(map(int, sizes)) == 8, words
    assert figures_of(plan).examples == 32768


def test_a_batch_of_rounds_keeps_its_form_on_disk(tmp_path):
    weights = float_shapes((64, 64), (64, 64))
    step = alpa_mlir.parallelize(accumulating, cluster=CLUSTER, cache=False)
    plan = step.plan(weights, *float_shapes((4, 8, 64))).plan
    plan.save(tmp_path / "plan")
    assert figures_of(alpa_mlir.Plan.load(tmp_path / "plan")).examples == 32
    rows = step.plan(weights, *float_shapes((32, 64))).plan
    assert figures_of(rows).examples == 32


def test_products_of_grouped_rows_count():
    (router,) = float_shapes((2048, 8))
    up, down = float_shapes((8, 2048, 4096), (8, 4096, 2048))
    state = {"router": router, "up": up, "down": down}
    plan, words, _ = words_and_specs(grouped, state, *float_shapes((16384, 2048)))
    ops = plan.explanation(0)["ops"]
    dots = [op for op in ops if op["op"] == "alpa.grouped_dot" and op["phase"] == "forward"]
    kinds = {
        "data": any(re.match(r"\(\[S", op["specs"]) for op in dots),
        "tensor": any(re.search(r"^\(\S+ \w+\], \[\w+, (S|R, S)", op["specs"]) for op in dots),
        "expert": any(re.search(r"^\(\S+ \w+\], \[S", op["specs"]) for op in dots),
    }
    assert any(kinds.values()), dots
    for kind, found in kinds.items():
        assert (kind in words or (kind == "data" and "FSDP" in words)) == found, (words, dots)
    assert "sequence" not in words


def test_members_of_an_ensemble_are_no_tensor_axis():
    weights = float_shapes((4, 2048, 8192), (4, 8192, 2048))
    _, words, specs = words_and_specs(ensemble, weights, *float_shapes((4096, 2048)))
    assert any("[S1," in spec for spec in specs), specs
    assert re.match(r"tensor 2 x expert 4(,|$)", words), words


def test_categories_are_no_tokens():
    def step(w, batch):
        def loss(w):
            rows = w["table"][batch].reshape(batch.shape[0], -1)
            return jnp.mean((rows @ w["top"]) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    arguments = (
        {"table": jnp.ones((100, 16)), "top": jnp.ones((4 * 16, 64))},
        jnp.zeros((64, 4), jnp.int32),
    )
    traced = alpa_mlir.parallelize(step, cluster=CLUSTER, cache=False).trace(*arguments)
    figures = figures_of(traced.plan().plan, price=2.0)
    assert (figures.tokens, figures.examples) == (None, 64)
    assert "rows/s" in figures.lines()[0]
    frontier = traced.frontier(over=("devices",), price=2.0)
    assert (frontier.tokens, frontier.examples) == (None, 64)


def test_what_a_plan_does_not_say_is_left_out():
    plan = dataclasses.replace(planned_mlp(ShardParallel()), explanations={}, predicted={})
    figures = figures_of(plan)
    assert (figures.mfu, figures.tokens_per_second, figures.unit_price) == (None, None, None)
    assert not any(line.startswith("predicted") for line in figures.lines())


def test_only_the_presets_devices_are_judged():
    cluster = alpa_mlir.Cluster.load("dgx-h100").with_hosts(0, 4)
    described = json.loads(cluster.text)
    found = published_error(described)
    assert found is not None
    assert found.least <= found.error <= found.most
    slower = {**described, "device_types": {"h100": {}}}
    assert published_error(slower) is None
    assert published_error({**described, "name": "mine"}) is None


def test_medians_are_not_said_as_bounds():
    plan = planned_mlp(ShardParallel())
    cluster = json.loads(alpa_mlir.Cluster.load("dgx-h100").text)
    figures = figures_of(dataclasses.replace(plan, cluster=cluster))
    (line,) = (line for line in figures.lines() if line.startswith("costs"))
    assert f"median error {percent_text(figures.published.error)} on" in line
    assert "within" not in line


def test_bounds_are_rounded_up():
    assert percent_text(0.00201, up=True) == "0.21 %"
    assert percent_text(0.002, up=True) == "0.20 %"
    assert percent_text(1e-7, up=True) == "0.01 %"
    assert percent_text(0.0, up=True) == "0.00 %"
    assert percent_text(0.5214) == "52.1 %"
