"""State and activations in the memory of the devices' hosts, in all kinds of plans.

Results equal those of `jax.jit`.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import InfeasiblePlanError, MethodError
from alpa_runtime.backends.gpus import HOST_LIMIT
from alpa_runtime.backends.xla import Executable
from alpa_runtime.checkpoint import restore_checkpoint, save_checkpoint
from alpa_runtime.execution import compilation
from alpa_runtime.execution.program_merge import merge_step
from alpa_runtime.hosts.threads import ThreadWorkers
from alpa_runtime.worker_group import Placement
from jax.ad_checkpoint import checkpoint_name
from test_equality import CLUSTER

WIDTH, HIDDEN, BATCH, LAYERS = 256, 512, 16, 4
TYPES = CLUSTER["device_types"]
HOST = {"bytes": "1GiB", "bandwidth": 1e9, "latency": 1e-5}


def with_host(**memory):
    hosts = CLUSTER["hosts"]
    groups = hosts if isinstance(hosts, list) else [hosts]
    return CLUSTER | {"hosts": [group | {"host_memory": HOST | memory} for group in groups]}


STAGES = {"submeshes": [(1, 4), (1, 4)], "layers": 4, "layer_ranges": [(0, 2), (2, 4)]}
METHODS = {
    "auto": ShardParallel(num_micro_batches=4),
    "one micro-batch": ShardParallel(),
    "collectives": ShardParallel(num_micro_batches=2, export="collectives"),
    "data-parallel": ShardParallel(num_micro_batches=2, method="data-parallel"),
    "megatron-zero-1": ShardParallel(
        num_micro_batches=2, method="megatron-zero-1", mesh_shape=(4, 2)
    ),
    "zero-2": ShardParallel(num_micro_batches=4, method="zero-2"),
    "zero-3": ShardParallel(num_micro_batches=4, method="zero-3"),
    "stages": PipeshardParallel(num_micro_batches=4, **STAGES),
    "stages, rematerialized": PipeshardParallel(num_micro_batches=2, remat="all", **STAGES),
    "zb-h1": PipeshardParallel(num_micro_batches=4, schedule="zb-h1", **STAGES),
    "gpipe": PipeshardParallel(num_micro_batches=4, schedule="gpipe", **STAGES),
}


def step_of(style, clips=False):
    def layer(x, weights):
        up, down = weights
        return x + 0.1 * jax.nn.gelu(x @ up) @ down

    def forward(params, x):
        if style == "scan":
            return jax.lax.scan(lambda x, weights: (layer(x, weights), None), x, params)[0]
        for weights in zip(*params, strict=True):
            x = layer(x, weights)
        return x

    def step(state, batch):
        params, first, second, count = state

        def loss(params):
            return jnp.mean((forward(params, batch["x"]) - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        if clips:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.01 / norm), grads)
        count += 1
        # As optax has it: all first moments, then all second ones.
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, grads)
        scale = 0.01 / (1 - 0.9**count)

        def move(w, m, v):
            return w - scale * m / (jnp.sqrt(v) + 1e-3)

        return (jax.tree.map(move, params, first, second), first, second, count), value

    return step


def arguments(style):
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def stack(*shape):
        rows = jax.random.normal(next(keys), (LAYERS, *shape)) / shape[0] ** 0.5
        return rows if style == "scan" else list(rows)

    params = (stack(WIDTH, HIDDEN), stack(HIDDEN, WIDTH))
    moments = [jax.tree.map(lambda w, k=k: 0.1 * k * jnp.abs(w), params) for k in (1, 2)]
    x, y = (jax.random.normal(next(keys), (BATCH, WIDTH)) for _ in range(2))
    return (params, *moments, jnp.float32(3)), {"x": x, "y": y}


def assert_equal(found, expected, before):
    for got, wanted, was in zip(*map(jax.tree.leaves, (found, expected, before)), strict=True):
        moved = np.abs(np.asarray(wanted) - np.asarray(was)).max()
        assert np.abs(np.asarray(got) - np.asarray(wanted)).max() <= 2e-5 * moved


def parallel_of(step, method, cluster=None):
    cluster = with_host() if cluster is None else cluster
    return alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)


def copies_of(plan):
    """Copies to devices and to hosts."""
    text = "".join(plan.modules.values())
    found = re.findall(r'_xla_buffer_placement = "(\w+)"', text)
    return found.count("device"), found.count("pinned_host")


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("style", "name"),
    [
        pytest.param(style, name, marks=() if (i + j) % 2 == 0 else pytest.mark.slow)
        for i, style in enumerate(["list", "scan"])
        for j, name in enumerate(METHODS)
    ],
)
def test_steps_equal_those_of_one_device(style, name):
    step, (state, batch) = step_of(style), arguments(style)
    planned = parallel_of(step, replace(METHODS[name], offload="optimizer")).plan(state, batch)
    assert copies_of(planned.plan) == (4 * LAYERS, 4 * LAYERS)
    bytes_of_moments = 2 * 2 * LAYERS * WIDTH * HIDDEN * 4
    devices = len(planned.plan.meshes[0].devices)
    held = [stage.predicted["host_bytes"] for stage in planned.plan.stages]
    assert sum(held) * devices >= bytes_of_moments
    assert all(stage.predicted["host_seconds"] > 0 for stage in planned.plan.stages)
    expected, seen = state, state
    run = planned.load()
    for _ in range(2):
        before = expected
        expected, loss = jax.jit(step)(expected, batch)
        seen, value = run(seen, batch)
        assert_equal(seen, expected, before)
        assert abs(value - loss) <= 1e-5 * abs(loss)


def test_norms_of_all_gradients_take_two_updates():
    """Moments are then read in the second one alone."""
    step, (state, batch) = step_of("list", clips=True), arguments("list")
    method = replace(METHODS["stages"], offload="optimizer")
    planned = parallel_of(step, method).plan(state, batch)
    assert all("update_1" in stage.functions for stage in planned.plan.stages)
    assert copies_of(planned.plan) == (4 * LAYERS, 4 * LAYERS)
    expected, _ = jax.jit(step)(state, batch)
    found, _ = planned.load()(state, batch)
    assert_equal(found, expected, state)


def test_copies_come_layer_by_layer():
    """Half a layer's moments wait for those of the one before the previous one."""
    step, (state, batch) = step_of("list"), arguments("list")
    plan = parallel_of(step, ShardParallel(offload="optimizer")).plan(state, batch).plan
    (text,) = plan.modules.values()
    update = text[text.index("@update_0") :]
    assert update.count("stablehlo.optimization_barrier") == 2 * LAYERS - 2
    (stage,) = plan.stages
    piece = 2 * WIDTH * HIDDEN * 4 / 8
    # Two pieces, and the results of one.
    assert stage.predicted["update_scratch_bytes"] < 3.5 * piece
    assert stage.predicted["host_bytes"] == 2 * LAYERS * piece
    assert plan.explanation(0)["host_seconds"] == stage.predicted["host_seconds"]


def test_memory_kinds():
    """Moments lie on the host between steps, and are moved there from wherever they come."""
    step, (state, batch) = step_of("list"), arguments("list")
    run = parallel_of(step, ShardParallel(offload="optimizer")).plan(state, batch).load()
    (params, *moments, count), _ = run(state, batch)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(moments)}
    assert kinds == {"pinned_host"}
    assert {x.sharding.memory_kind for x in jax.tree.leaves((params, count))} == {"device"}
    assert_equal(jax.device_get(moments[0]), jax.jit(step)(state, batch)[0][1], state[1])


@pytest.mark.parametrize("offload", ["optimizer", "activations"])
def test_iree(offload):
    """It tells no memories apart."""
    pytest.importorskip("iree.compiler")
    step, (state, batch) = step_of("list"), tall_arguments("list")
    method = ShardParallel(offload=offload, num_micro_batches=2)
    planned = parallel_of(step, method, room_for(20))
    run = planned.plan(state, batch).load(backend="iree")
    first, _ = run(state, batch)
    found, _ = run(first, batch)
    before, _ = jax.jit(step)(state, batch)
    assert_equal(found, jax.jit(step)(before, batch)[0], before)


@pytest.mark.parametrize("name", ["stages", "zero-3"])
def test_state_in_workers_and_checkpoints(tmp_path, name):
    step, (state, batch) = step_of("scan"), tall_arguments("scan")
    planned = parallel_of(step, replace(METHODS[name], offload="all")).plan(state, batch)
    first, _ = jax.jit(step)(state, batch)
    second, loss = jax.jit(step)(first, batch)
    devices = [tuple(mesh.devices) for mesh in planned.plan.meshes]
    hosts = ThreadWorkers(Placement(tuple(devices)))
    with contextlib.closing(planned.load(workers=hosts)) as there:
        held, _ = there(state, batch)
        save_checkpoint(tmp_path, held, step=1).wait()
    here = planned.load()
    held, value = here(restore_checkpoint(tmp_path, here), batch)
    assert_equal(held, second, first)
    np.testing.assert_allclose(value, loss, rtol=1e-5)


def test_state_on_hosts_that_is_read_is_kept(monkeypatch):
    """NumPy's arrays of it are views, which a GPU does not let a program write over."""
    step, (state, batch) = step_of("list"), arguments("list")
    method = ShardParallel(num_micro_batches=2, offload="optimizer")
    planned = parallel_of(step, method).plan(state, batch)
    read, refusals, make = [], [], Executable.__init__

    def refuse(execute, args):
        if any(x is y for x in args for y in read):
            refusals.append(args)
            raise RuntimeError("Donation requested for buffer with external reference")
        return execute(args)

    def watched(self, *args, **options):
        make(self, *args, **options)
        self._execute = partial(refuse, self._execute)

    monkeypatch.setattr(Executable, "__init__", watched)
    with contextlib.closing(planned.load()) as run:
        first, _ = run(state, batch)
        expected, _ = run(jax.tree.map(jnp.copy, first), batch)
        assert not refusals
        read += [x for x in jax.tree.leaves(first) if x.sharding.memory_kind == "pinned_host"]
        views = jax.device_get(read)
        found, _ = run(first, batch)
    assert refusals
    for got, wanted in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for view, x in zip(views, read, strict=True):
        np.testing.assert_array_equal(view, x)


def test_more_host_memory_than_gpus_may_use(monkeypatch):
    step, (state, batch) = step_of("list"), arguments("list")
    planned = parallel_of(step, ShardParallel(offload="optimizer")).plan(state, batch)
    gpu = SimpleNamespace(
        platform="gpu",
        device_kind="a GPU",
        process_index=0,
        client=SimpleNamespace(process_index=lambda: 0),
        memory_stats=lambda: None,
    )
    monkeypatch.setattr(compilation, "mesh_devices", lambda mesh: [gpu] * 8)
    plan = planned.plan
    (stage,) = plan.stages

    def check(host_bytes):
        changed = replace(stage, predicted={**stage.predicted, "host_bytes": host_bytes})
        step = merge_step(plan)
        compilation.check_memory(replace(plan, stages=(changed,)), step, {}, {0: None}, True)

    monkeypatch.delenv(HOST_LIMIT, raising=False)
    check(2.0**33)
    with pytest.raises(InfeasiblePlanError, match=rf"72 GiB .* 64 GiB .*set {HOST_LIMIT}=90"):
        check(9 * 2.0**30)
    monkeypatch.setenv(HOST_LIMIT, "90")
    check(9 * 2.0**30)


# Weights, gradients and a part of the moments, which are as large as both.
SMALL = 3.6 * WIDTH * HIDDEN * 4 * 2 * LAYERS


def small(**host):
    types = {
        name: kind | {"memory_bytes": int(SMALL)} for name, kind in CLUSTER["device_types"].items()
    }
    hosts = {"count": 1, "devices": 1, "device_type": next(iter(types))}
    return CLUSTER | {
        "device_types": types,
        "hosts": hosts | ({"host_memory": HOST | host} if host else {}),
    }


@pytest.mark.parametrize("method", [AutoParallel(num_micro_batches=[1, 2, 4]), ShardParallel()])
def test_what_does_not_fit_goes_to_the_host(method):
    step, (state, batch) = step_of("list"), arguments("list")
    plan = parallel_of(step, method, small(latency=0)).plan(state, batch).plan
    assert sum(stage.predicted["host_bytes"] for stage in plan.stages) > 0
    assert "on host" in plan.as_text()
    assert "copies between devices" in alpa_mlir.explain(plan)
    for cluster in (small(), small(bytes=1 << 20)):  # Nothing said of hosts, and too little.
        with pytest.raises(InfeasiblePlanError):
            parallel_of(step, method, cluster).plan(state, batch)
    forced = replace(method, offload="optimizer")
    with pytest.raises(InfeasiblePlanError, match=r"in its host.s memory, of which .* too little"):
        parallel_of(step, forced, small(bytes=1 << 20)).plan(state, batch)


def test_what_fits_stays():
    step, (state, batch) = step_of("list"), arguments("list")
    plan = parallel_of(step, AutoParallel(num_micro_batches=2)).plan(state, batch).plan
    assert not any("host_bytes" in stage.predicted for stage in plan.stages)


def test_what_cannot_be_asked_for():
    step, (state, batch) = step_of("list"), arguments("list")
    method = ShardParallel(offload="optimizer")
    for offload in ("optimizer", "activations"):
        with pytest.raises(MethodError, match="does not say what memory its hosts have"):
            parallel_of(step, ShardParallel(offload=offload), CLUSTER).plan(state, batch)
    with pytest.raises(MethodError, match="gradients read no value of 256 KiB") as error:
        parallel_of(step, ShardParallel(offload="activations")).plan(state, batch)
    assert error.value.fix == 'use offload="auto"'
    parallel_of(step, ShardParallel(offload="auto")).plan(state, batch)
    with pytest.raises(MethodError, match="no state of 256 KiB"):
        parallel_of(lambda w, x: (w - jnp.mean(x), 0.0), method).plan(jnp.ones(4), jnp.ones(8))
    with pytest.raises(MethodError, match="offload 'host'"):
        ShardParallel(offload="host")


def offloading(*names):
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )


def by_hand(x, w):
    """Its gradient has what it is of on the host, and nothing else."""

    @jax.custom_vjp
    def twice(x, w):
        return jnp.tanh(x @ w) @ w.T

    def forward(x, w):
        kept = jax.device_put((x, jnp.tanh(x @ w)), jax.memory.Space.Host)
        return twice(x, w), (*kept, w)

    def backward(kept, g):
        x, y = jax.device_put(kept[:2], jax.memory.Space.Device)
        w = kept[2]
        inner = (g @ w) * (1 - y**2)
        return inner @ w.T, x.T @ inner + g.T @ y

    twice.defvjp(forward, backward)
    return twice(x, w)


def named(x, w):
    x = checkpoint_name(x, "in")
    return jnp.tanh(checkpoint_name(x @ w, "wide")) @ w.T


# What of a layer goes to the host, and how often.
PLACED = {
    "names": (jax.checkpoint(named, policy=offloading("wide", "in")), 2),
    "products": (
        jax.checkpoint(
            named,
            policy=jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
        ),
        1,
    ),
    "by hand": (by_hand, 2),
}
GPU_TYPES = {name: kind | {"compute_capability": 9.0} for name, kind in TYPES.items()}
# Lowered for CUDA, where JAX writes placements, as this process has fewer devices; run on CPUs.
GPUS = CLUSTER | {
    "device_types": GPU_TYPES,
    "hosts": CLUSTER["hosts"] | {"count": 16, "host_memory": HOST},
}
ONE_STAGE = {"submeshes": [(1, 4)], "layers": 4, "layer_ranges": [(0, 4)]}
PLACING = {
    "one stage": PipeshardParallel(num_micro_batches=4, **ONE_STAGE),
    "one micro-batch": PipeshardParallel(**ONE_STAGE),
    "collectives": PipeshardParallel(num_micro_batches=2, export="collectives", **ONE_STAGE),
    "zero-3": PipeshardParallel(num_micro_batches=2, method="zero-3", **ONE_STAGE),
    "stages": PipeshardParallel(num_micro_batches=4, **STAGES),
    "stages, rematerialized": PipeshardParallel(num_micro_batches=2, remat="all", **STAGES),
    "gpipe": PipeshardParallel(num_micro_batches=4, schedule="gpipe", **STAGES),
    "zb-h1": PipeshardParallel(num_micro_batches=4, schedule="zb-h1", **STAGES),
}


def placing_step(block, style):
    def forward(weights, x):
        if style == "scan":
            return jax.lax.scan(lambda x, w: (x + 0.1 * block(x, w), None), x, weights)[0]
        for w in weights:
            x = x + 0.1 * block(x, w)
        return x

    def step(weights, x):
        value, grads = jax.value_and_grad(lambda w: jnp.mean(forward(w, x) ** 2))(weights)
        return jax.tree.map(lambda w, g: w - 100 * g, weights, grads), value

    return step


def placing_arguments(style):
    weights = jax.random.normal(jax.random.key(0), (LAYERS, 64, 128)) / 8
    x = jax.random.normal(jax.random.key(1), (16, 64))
    return weights if style == "scan" else list(weights), x


def check_one_step(planned, step, weights, x):
    found, expected = planned.load()(weights, x), jax.jit(step)(weights, x)
    assert_equal(found[0], expected[0], weights)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("style", "placed", "name"),
    [("list", "names", name) for name in PLACING]
    + [("scan", "names", name) for name in ("one stage", "stages", "collectives")]
    + [("list", placed, "stages") for placed in ("products", "by hand")],
)
def test_placements_of_the_program(style, placed, name):
    block, times = PLACED[placed]
    step, (weights, x) = placing_step(block, style), placing_arguments(style)
    plan = (planned := parallel_of(step, PLACING[name], GPUS).plan(weights, x)).plan
    assert copies_of(plan)[1] == times * LAYERS
    assert copies_of(plan)[0] >= times * LAYERS  # Both parts of a backward phase may read them.
    bytes_of_layer = 16 * 64 * 4 + 16 * 128 * 4
    held = 0
    for stage in plan.stages:
        seen = stage.predicted
        part = seen["micro_batches_in_flight"] / plan.num_micro_batches
        held += seen["host_bytes"] * len(plan.meshes[stage.mesh].devices) / part
        assert seen["host_seconds"] > 0
    if placed == "names":
        assert held >= LAYERS * bytes_of_layer  # More where devices hold the same.
    # Split like any other value, in micro-batches without a barrier.
    assert not plan.exactness.barriers
    check_one_step(planned, step, weights, x)


def test_copies_of_activations_come_layer_by_layer():
    step, (weights, x) = placing_step(PLACED["names"][0], "list"), placing_arguments("list")
    plan = parallel_of(step, PLACING["one stage"], GPUS).plan(weights, x).plan
    (stage,) = plan.stages
    text = next(iter(plan.modules.values()))
    backward = text[text.index("@backward") : text.index("@update")]
    waiting = re.findall(r"optimization_barrier.*", backward)
    # Between layers, and that of each jax.checkpoint.
    assert len(waiting) == LAYERS - 1 + LAYERS
    copies = stage.predicted["host_seconds"] + stage.predicted["hidden_host_seconds"]
    link = stage.predicted["host_bytes"] / 1e9 + 2 * LAYERS * 1e-5
    assert copies == pytest.approx(2 * 4 * link)  # Both ways, for each micro-batch.


@pytest.mark.parametrize(
    ("options", "hosts", "why"),
    [
        ({"offload": "none"}, {"host_memory": HOST}, 'the method says offload="none"'),
        ({}, {}, "does not say what memory its hosts have"),
    ],
)
def test_placements_that_stay_on_devices(options, hosts, why):
    step, (weights, x) = placing_step(PLACED["names"][0], "list"), placing_arguments("list")
    cluster = GPUS | {"hosts": CLUSTER["hosts"] | {"count": 16} | hosts}
    method = replace(PLACING["stages"], **options)
    with pytest.warns(UserWarning, match=f"places in host memory stay on the devices.*{why}"):
        planned = parallel_of(step, method, cluster).plan(weights, x)
    assert copies_of(planned.plan) == (0, 0)
    check_one_step(planned, step, weights, x)


def test_placements_within_a_phase_stay_on_devices():
    """Of what goes there and back at once nothing is gained."""

    def step(w, x):
        y = jax.device_put(jax.device_put(x @ w, jax.memory.Space.Host), jax.memory.Space.Device)
        return w - jnp.mean(y), jnp.mean(y)

    w, x = jax.random.normal(jax.random.key(0), (64, 64)), jnp.ones((16, 64))
    with pytest.warns(UserWarning, match="from the forward to the backward phase"):
        planned = parallel_of(step, PipeshardParallel(submeshes=[(1, 4)]), GPUS).plan(w, x)
    assert copies_of(planned.plan) == (0, 0)
    check_one_step(planned, step, w, x)


# What gradients read of a layer is large enough for the host.
TALL = 1024


def tall_arguments(style):
    state, batch = arguments(style)
    rows = TALL // BATCH
    return state, jax.tree.map(lambda x: jnp.tile(x, (rows, 1)), batch)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("style", "name", "remat", "offload"),
    [
        ("list", "auto", "none", "activations"),
        ("list", "one micro-batch", "auto", "activations"),
        ("list", "collectives", "all", "all"),
        ("list", "zero-3", "auto", "activations"),
        ("list", "stages", "none", "all"),
        ("list", "stages", "auto", "activations"),
        ("list", "gpipe", "auto", "activations"),
        ("list", "zb-h1", "none", "activations"),
        ("scan", "data-parallel", "none", "all"),
        ("scan", "stages", "auto", "activations"),
    ],
)
def test_offloaded_activations(style, name, remat, offload):
    step, (state, batch) = step_of(style), tall_arguments(style)
    method = replace(METHODS[name], remat=remat, offload=offload)
    planned = parallel_of(step, method).plan(state, batch)
    there, back = 0, 0
    for stage in planned.plan.stages:
        there += sum(tensor.on_host for tensor in stage.functions["forward"].outputs)
        backward = [f for key, f in stage.functions.items() if key.startswith("backward")]
        back += sum(tensor.on_host for f in backward for tensor in f.inputs)
        if name == "gpipe":  # All micro-batches are in flight.
            assert stage.predicted["micro_batches_in_flight"] == planned.plan.num_micro_batches
    # Of all layers but the last one.
    assert back >= there >= LAYERS - 1
    moments = 4 * LAYERS if offload == "all" else 0
    assert copies_of(planned.plan) == (back + moments, there + moments)
    expected, loss = jax.jit(step)(state, batch)
    seen, value = planned.load()(state, batch)
    assert_equal(seen, expected, state)
    assert abs(value - loss) <= 1e-5 * abs(loss)


def room_for(activations):
    """Of a device that has all state and that part of the bytes of each layer's activations."""
    state = 4 * WIDTH * HIDDEN * 4 * 2 * LAYERS
    layer = TALL * (WIDTH + 2 * HIDDEN) * 4
    types = {
        name: kind | {"memory_bytes": int((state + activations * layer) / 0.9)}
        for name, kind in TYPES.items()
    }
    hosts = {"count": 1, "devices": 1, "device_type": next(iter(types))}
    return CLUSTER | {"device_types": types, "hosts": hosts | {"host_memory": HOST}}


def test_the_search_offloads_activations_where_copies_are_faster():
    step, (state, batch) = step_of("list"), tall_arguments("list")
    cluster = room_for(5)
    auto = AutoParallel(num_micro_batches=1)

    def predicted(method, cluster=cluster):
        plan = parallel_of(step, method, cluster).plan(state, batch).plan
        return plan, plan.predicted["step_seconds"], plan.stages[0].predicted

    plan, seconds, offloaded = predicted(auto)
    others = [predicted(replace(auto, offload=offload)) for offload in ("none", "optimizer")]
    assert others[0][2]["rematerialized_layers"] > 0
    assert seconds < min(other[1] for other in others)
    assert offloaded["hidden_host_seconds"] > 0
    assert "on host" in plan.as_text()
    assert "copies more are hidden" in alpa_mlir.explain(plan)
    # Neither over a slow link, nor where all fits.
    slow = cluster | {"hosts": cluster["hosts"] | {"host_memory": HOST | {"bandwidth": 1e6}}}
    for other in (slow, room_for(8)):
        assert "host_bytes" not in predicted(auto, other)[2]


def test_activations_go_to_the_host_where_nothing_else_fits():
    step, (state, batch) = step_of("list"), tall_arguments("list")
    plan = parallel_of(step, AutoParallel(num_micro_batches=1), room_for(2)).plan(state, batch).plan
    assert any(tensor.on_host for tensor in plan.stages[0].functions["forward"].outputs)
    little = room_for(2)
    little["hosts"] |= {"host_memory": HOST | {"bytes": 1 << 20}}
    with pytest.raises(InfeasiblePlanError):
        parallel_of(step, AutoParallel(num_micro_batches=1), little).plan(state, batch)
    method = ShardParallel(offload="activations")
    with pytest.raises(InfeasiblePlanError, match=r"in its host.s memory, of which .* too little"):
        parallel_of(step, method, little).plan(state, batch)


def test_copies_instead_of_computing_again_are_said():
    step, (state, batch) = step_of("list"), tall_arguments("list")
    slow = room_for(2)
    slow["hosts"] |= {"host_memory": HOST | {"bandwidth": 1e8}}
    with pytest.warns(UserWarning, match=r"waits \d+% of its time; with remat=\"auto\""):
        parallel_of(step, ShardParallel(), slow).plan(state, batch)
    parallel_of(step, ShardParallel(), room_for(8)).plan(state, batch)
    parallel_of(step, ShardParallel(remat="auto"), slow).plan(state, batch)
