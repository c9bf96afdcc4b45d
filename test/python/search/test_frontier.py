"""Frontiers of seconds against memory and devices."""

from __future__ import annotations

import xml.etree.ElementTree
from dataclasses import replace

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir.errors import InfeasiblePlanError, MethodError
from alpa_mlir.report.frontier_picture import frontier_svg
from alpa_mlir.search.frontier import money_text, tokens_of
from alpa_mlir.simulator.figures import figures_of
from alpa_mlir.trace.tracing import Input
from alpa_runtime.plan.text import bytes_text

MIB = 1 << 20


def cluster(hosts=2, devices=2, memory=24 * MIB):
    return alpa_mlir.Cluster.from_dict(
        {
            "name": "small",
            "device_types": {
                "gpu": {
                    "memory_bytes": memory,
                    "memory_bandwidth": 9e11,
                    "peak_flops": {"float32": 1.5e13},
                }
            },
            "hosts": {"count": hosts, "devices": devices, "device_type": "gpu"},
            "links": {
                "intra_host": {"bandwidth": 1.5e11, "latency": 3e-6},
                "inter_host": {"bandwidth": 3e9, "latency": 2e-5},
            },
        }
    )


def step(w, ids):
    def loss(w):
        h = w["table"][ids]
        for each in w["layers"]:
            h = h + jnp.tanh(jnp.tanh(h @ each) @ each.T)
        return jnp.mean(h**2)

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value


def traced(method=None, **shape):
    state = {
        "table": jax.ShapeDtypeStruct((512, 256), jnp.float32),
        "layers": [jax.ShapeDtypeStruct((256, 512), jnp.float32)] * 2,
    }
    ids = jax.ShapeDtypeStruct((16, 64), jnp.int32)
    return alpa_mlir.parallelize(step, cluster=cluster(**shape), method=method, cache=False).trace(
        state, ids
    )


@pytest.fixture(scope="module")
def found():
    return traced().frontier(price=2.0, most_points=4)


def test_more_memory_takes_fewer_seconds(found):
    assert len(found.memory) > 2
    for less, more in zip(found.memory, found.memory[1:], strict=False):
        assert less.memory_bytes < more.memory_bytes
        assert less.step_seconds > more.step_seconds
    assert found.memory[0].memory_bytes < found.device_memory_bytes


def test_the_own_point_is_the_plan(found):
    plan = traced().plan().plan
    assert found.own is not None
    assert found.own.step_seconds == plan.predicted["step_seconds"]
    assert found.own.memory_bytes == pytest.approx(plan.peak_bytes / 0.9, rel=1e-6)
    assert found.devices[-1].step_seconds == found.own.step_seconds


def test_every_point_is_a_plan_for_its_memory(found):
    """Which also shows that no other one is much faster there."""
    for point in (found.memory[0], found.memory[len(found.memory) // 2], found.memory[-1]):
        plan = traced().plan(cluster().with_memory(point.memory_bytes)).plan
        assert plan.peak_bytes <= 0.9 * point.memory_bytes
        assert plan.predicted["step_seconds"] == pytest.approx(point.step_seconds, rel=0.05)


def test_more_devices_are_faster_or_marked(found):
    counts = [point.num_devices for point in found.devices]
    assert counts == sorted(set(counts)) == [1, 2, 4][-len(counts) :]
    assert {*counts, *(count for count, _ in found.unplanned)} == {1, 2, 4}
    kept = [point.step_seconds for point in found.devices if not point.is_dominated]
    assert kept == sorted(kept, reverse=True)
    for point in found.devices:
        fewer = [p.step_seconds for p in found.devices if p.num_devices < point.num_devices]
        assert point.is_dominated == (point.step_seconds >= min(fewer, default=float("inf")))


def test_costs_are_those_of_all_devices(found):
    assert (found.examples, found.tokens) == (16, 1024)
    assert found.tokens_of == "16 x 64 of ids"
    for point in (*found.memory, *found.devices):
        cost = 2.0 * point.num_devices * point.step_seconds / 3600
        assert point.step_cost == pytest.approx(cost)
        assert point.unit_cost == pytest.approx(cost / 1024 * 1e9)


def test_tables_and_pictures_hold_every_point(found):
    text = found.as_text()
    assert "1024 tokens (16 x 64 of ids)" in text
    assert "more buys nothing" in text
    assert "cost of 1B tokens" in text
    root = xml.etree.ElementTree.fromstring(frontier_svg(found))
    circles = [node for node in root.iter() if node.tag.endswith("circle")]
    assert len(circles) == len(found.memory) + 2 * len(found.devices)
    assert all(len(node) == 1 for node in circles)  # A title each.


def test_sweeps_are_the_same_every_time(found):
    assert traced().frontier(price=2.0, most_points=4) == found


def test_too_little_memory_is_no_end(found):
    """Of a cluster on which nothing fits the frontier says from where on something does."""
    little = traced(memory=MIB // 2).frontier(over="memory", most_points=1)
    assert little.own is None
    assert MIB // 2 <= little.too_little_bytes < little.memory[0].memory_bytes
    assert little.memory[0].memory_bytes <= 1.25 * little.too_little_bytes
    with pytest.raises(InfeasiblePlanError):
        traced().plan(cluster(memory=little.too_little_bytes))
    assert not little.devices
    with pytest.raises(InfeasiblePlanError):
        traced(memory=MIB // 2).frontier(over="devices")


def test_one_plan_for_all_memory_is_said(found):
    """There is no curve where the fastest plan needs little, or nothing less fits."""
    much = traced(memory=80_000 * MIB).frontier(over="memory", most_points=4)
    assert len(much.memory) == 1
    assert much.as_text().splitlines()[-1] == (
        f"one plan for all memory: down to {bytes_text(much.memory[0].memory_bytes)} a device none "
        "is more than 1% faster, and less than 19.5 GiB, a quarter of the devices', is not looked "
        "at"
    )
    assert "one plan for all memory" not in found.as_text()
    least = replace(found, memory=found.memory[:1], devices=(), too_little_bytes=2 * MIB)
    assert least.as_text().endswith("1% faster, and with 2 MiB none was found")


def test_what_cannot_be_asked_is_said():
    with pytest.raises(MethodError, match=r"price -1; fix: use a positive number"):
        traced().frontier(price=-1)
    with pytest.raises(MethodError, match=r"tokens True"):
        traced().frontier(tokens=True)
    with pytest.raises(MethodError, match=r"over 'time'; fix: use 'memory' or 'devices', or both"):
        traced().frontier(over="time")
    fixed = alpa_mlir.PipeshardParallel(submeshes=[(1, 2), (1, 2)])
    with pytest.raises(MethodError, match="numbers of devices with meshes that are given"):
        traced(fixed).frontier()
    assert traced(fixed).frontier(over="memory", most_points=1).memory


def accumulating(state, batch):
    """In four rounds, cut out of the batch."""

    def one(total, part):
        return total + jax.grad(lambda w: jnp.mean(jnp.tanh(part @ w) ** 2))(state), None

    parts = batch.reshape(4, -1, batch.shape[-1])
    return state - 0.1 * jax.lax.scan(one, jnp.zeros_like(state), parts)[0]


def test_rows_of_accumulating_steps_count_once():
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((256, 256), (64, 256))]
    step = alpa_mlir.parallelize(accumulating, cluster=cluster(), cache=False).trace(*arguments)
    assert step.traced.rounds == 4
    found = step.frontier(over=("devices",), price=2.0)
    assert found.examples == 64
    own = found.devices[-1]
    figures = figures_of(step.plan().plan, price=2.0)
    assert figures.examples == 64
    assert own.unit_cost == pytest.approx(figures.unit_price)


def test_tokens_are_counted_in_ids():
    ids = Input("ids", (8, 128), "int32", "batch")
    image = Input("image", (8, 32, 32, 3), "uint8", "batch")
    label = Input("label", (8,), "int32", "batch")
    assert tokens_of([image, label]) is None
    assert tokens_of([label, ids, image]) == (1024, "8 x 128 of ids")
    assert tokens_of([Input("w", (8, 128), "int32", "state")]) is None


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0, "0"), (0.0123456, "0.01235"), (1.0, "1.000"), (12.3456, "12.35"), (123456.7, "123457")],
)
def test_money(amount, text):
    assert money_text(amount) == text


def test_parts_of_clusters():
    parts = alpa_mlir.Cluster.load("dgx-h100:3").parts()
    assert [part.num_devices for part in parts] == [1, 2, 4, 8, 16, 24]
    racks = alpa_mlir.Cluster.load("gb200-nvl72:2").parts()
    assert [part.num_devices for part in racks] == [1, 2, 4, 8, 16, 32, 64, 72, 144]
    one = alpa_mlir.Cluster.load("dgx-h100").parts()[0]
    whole = alpa_mlir.Cluster.load("dgx-h100")
    assert one.host_copy_seconds_per_byte == whole.host_copy_seconds_per_byte


def test_at_most_so_many_devices():
    """As fast as on a cluster of so many, and never slower than with fewer."""

    def plan(most, hosts=2):
        method = alpa_mlir.AutoParallel(max_devices=most)
        return traced(method, hosts=hosts, devices=2).plan().plan

    before = float("inf")
    for most in (1, 2, 3, 4):
        found = plan(most)
        used = {device for mesh in found.meshes for device in mesh.devices}
        assert len(used) <= most
        seconds = found.predicted["step_seconds"]
        assert seconds <= 1.01 * before
        before = seconds
        if most < 4:
            assert found.idle_reason.startswith(f"at most {most} are wanted")
        if most == 2:
            alone = plan(None, hosts=1).predicted["step_seconds"]
            assert seconds == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_devices": 0}, "max_devices 0; fix: use a whole number of at least 1"),
        ({"max_devices": 2, "pipeline": "uniform"}, "max_devices with a pipeline that takes all"),
    ],
)
def test_what_most_devices_do_not_go_with(options, text):
    with pytest.raises(MethodError, match=text):
        alpa_mlir.AutoParallel(**options)
