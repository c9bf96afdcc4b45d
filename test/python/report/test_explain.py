"""What a plan says about its own costs adds up, and reads well."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.compiler import sharding_methods
from alpa_mlir.report.method_comparison import Alternative, alternatives_text
from alpa_runtime.plan.strategy import strategy_of, strategy_text
from jax.ad_checkpoint import checkpoint_name
from simulated import mlp
from test_equality import CLUSTER


def plan_of(method):
    model = zoo.make_gpt(zoo.GPTConfig(layers=1))
    step = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method)
    return step.plan(*model.init()).plan


@pytest.mark.parametrize(
    "method",
    [
        ShardParallel(mesh_shape=(2, 4), num_micro_batches=2),
        PipeshardParallel(submeshes=[(1, 2), (1, 4)]),
    ],
)
def test_parts_add_up_to_the_objective(method):
    plan = plan_of(method)
    for number, stage in enumerate(plan.stages):
        found = plan.explanation(number)
        exposed = "exposed_communication_seconds"
        parts = ("compute_seconds", "communication_seconds", exposed, "held_bytes_seconds")
        whole = sum(found[part] for part in parts)
        assert whole == pytest.approx(found["objective_seconds"] + found["fixed_seconds"], rel=1e-9)
        assert found["objective_seconds"] == pytest.approx(stage.solver["objective_seconds"])
        by_collective = sum(row["seconds"] for row in found["communication"])
        assert by_collective == pytest.approx(found["communication_seconds"], abs=1e-15)
        for part in ("compute_seconds", "communication_seconds"):
            assert sum(row[part] for row in found["ops"]) == pytest.approx(found[part], abs=1e-15)
        assert len(found["decisions"]) == stage.solver["nodes"]


_BYTES = {"f32": 4, "i32": 4, "ui32": 4, "i1": 1}
_COLLECTIVES = "all_gather|all_reduce|reduce_scatter|all_to_all|collective_permute"


def bytes_of(types: str) -> int:
    shapes = re.findall(r"tensor<([^>]*)>", types)
    parts = [shape.split("x") for shape in shapes]
    return sum(math.prod(map(int, dims)) * _BYTES[dtype] for *dims, dtype in parts)


def moved_bytes(text: str, num_micro_batches: int) -> dict[str, int]:
    """Of each collective in a step's per-device program without loops, of a gather its results."""
    found: dict[str, int] = {}
    times, name = 1, ""
    for line in text.splitlines():
        if function := re.search(r"func\.func (?:\w+ )?@(\w+)", line):
            times = num_micro_batches if function[1] in ("forward", "backward") else 1
        if collective := re.search(rf"stablehlo\.({_COLLECTIVES})\b", line):
            name = collective[1]
        if name and (types := re.search(r" : \((tensor[^)]*)\) -> (.*)", line)):
            moved = bytes_of(types[2 if name == "all_gather" else 1])
            found[name] = found.get(name, 0) + times * moved
            name = ""
    return found


@pytest.mark.sample(8)
@pytest.mark.parametrize("num_micro_batches", [1, 4])
@pytest.mark.parametrize("name", [name for name in sharding_methods() if name != "manual"])
def test_what_is_communicated_is_what_the_program_does(name, num_micro_batches):
    model = zoo.make_gpt(zoo.GPTConfig(layers=2, hidden=128, heads=4, vocab=512, seq=64))
    method = ShardParallel(
        method=name,
        mesh_shape=(2, 4),
        num_micro_batches=num_micro_batches,
        export="collectives",
        layer_loops=False,
    )
    step = alpa_mlir.parallelize(model.step, cluster="dgx-a100", method=method, cache=False)
    plan = step.plan(*jax.eval_shape(functools.partial(model.init, 32))).plan
    done = moved_bytes(plan.modules[plan.stages[0].module], num_micro_batches)
    said: dict[str, int] = {}
    for row in plan.explanation(0)["communication"]:
        said[row["collective"]] = said.get(row["collective"], 0) + row["bytes"]
    # Passes make some sums scatter behind the choice of strategies; a sum is both of its halves.
    halves = {"all_reduce": 2}
    done_bytes, said_bytes = (
        sum(halves.get(kind, 1) * moved for kind, moved in kinds.items()) for kinds in (done, said)
    )
    assert 0.99 * done_bytes <= said_bytes <= 1.15 * done_bytes


def test_text():
    plan = plan_of(ShardParallel(mesh_shape=(2, 4)))
    text = alpa_mlir.explain(plan, most=3)
    assert text.startswith("strategy: ")
    assert "\nstage 0\n" in text
    assert "all-reduce" in text or "reduce-scatter" in text
    assert "ops by cost, 3 of " in text
    assert "runner-up " in text
    chosen = alpa_mlir.explain(plan, op="qkv")
    assert "qkv" in chosen
    assert "wte" not in chosen


def test_other_ways_that_are_faster_are_said():
    plan = plan_of(ShardParallel(mesh_shape=(2, 4)))

    def taking(part):
        seconds = plan.predicted["step_seconds"] * part
        return dataclasses.replace(plan, predicted={**plan.predicted, "step_seconds": seconds})

    ways = {"FSDP": 0.998, "grid": 0.9, "one mesh": 1.0, "stages": 1.1}
    found = [Alternative(name, taking(part)) for name, part in ways.items()]
    assert alternatives_text(found, plan).splitlines()[-2:] == [
        "- FSDP: 0.2% faster than this plan, within the 1 % that the search leaves",
        "- grid: 10.0% faster than this plan",
    ]


def test_parallelism_in_words():
    """Of what is fixed from outside: pinned weights, methods, one device a stage."""
    size, rows = 64, 32
    spec = jax.sharding.PartitionSpec

    def step(weights, batch):
        def loss(weights):
            x = batch
            for w in weights:
                x = jnp.tanh(x @ w)
            return jnp.mean(x**2)

        gradients = jax.grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    arguments = [jnp.ones((size, size))] * 4, jnp.ones((rows, size))

    def words(method):
        plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*arguments).plan
        line = strategy_text(plan)
        assert f"\nstrategy: {line}\n" in plan.as_text()
        return line

    assert words(ShardParallel(method="data-parallel")) == "data 8"
    assert words(ShardParallel(method="zero-3")) == "FSDP 8"
    one_each = PipeshardParallel(submeshes=[(1, 1)] * 4, num_micro_batches=4)
    assert words(one_each) == "pipeline 4, 4 micro-batches, 1F1B"
    pins = [spec(None, "y"), spec("y", None)] * 2, spec("x", None)
    pinned = ShardParallel(mesh_shape=(2, 4), method="manual", in_shardings=pins)
    assert words(pinned) == "data 2 x tensor 4"
    stages = PipeshardParallel(submeshes=[(1, 4)] * 2, method="data-parallel", num_micro_batches=2)
    assert words(stages) == "pipeline 2 x data 4, 2 micro-batches, 1F1B"
    few = arguments[0], jnp.ones((7, size))  # Rows that eight devices do not divide.
    plan = alpa_mlir.parallelize(
        step, cluster=CLUSTER, method=ShardParallel(method="data-parallel")
    ).plan(*few)
    assert strategy_text(plan.plan) == "replicated products 8"


def test_sequences_in_words():
    spec = jax.sharding.PartitionSpec

    def step(weights, batch):
        gradients = jax.grad(lambda w: jnp.mean((jnp.tanh(batch @ w[0]) @ w[1]) ** 2))(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    def words(pin):
        pins = [pin] * 2, spec("x", "y")
        method = ShardParallel(mesh_shape=(2, 4), method="manual", in_shardings=pins)
        arguments = [jnp.ones((64, 64))] * 2, jnp.ones((8, 256, 64))
        return strategy_text(
            alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*arguments).plan
        )

    assert words(spec()) == "data 2 x sequence 4"
    assert words(spec("y")) == "data 2 x sequence 4 with split weights"


def test_products_with_weights_of_another_stage_in_words():
    """The last layer's only weight is the embedding, which the first stage prepares."""

    def step(weights, batch):
        def loss(weights):
            e, w = (x.astype(jnp.bfloat16) for x in weights)
            x = jnp.tanh(e[batch] @ w)
            return jnp.mean(jax.nn.logsumexp((x @ e.T).astype(jnp.float32), axis=-1))

        gradients = jax.grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    arguments = (jnp.ones((64, 32)), jnp.ones((32, 32))), jnp.zeros(32, jnp.int32)
    method = PipeshardParallel(
        submeshes=[(1, 4)] * 2,
        layer_ranges=[(0, 1), (1, 2)],
        method="data-parallel",
        num_micro_batches=2,
    )
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*arguments).plan
    assert strategy_text(plan) == "pipeline 2 x data 4, 2 micro-batches, 1F1B"


def test_no_words_without_products():
    def step(weights, batch):
        return weights - 0.1 * jax.grad(lambda w: jnp.mean((w * batch) ** 2))(weights)

    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=ShardParallel()).plan(
        jnp.ones(64), jnp.ones((32, 64))
    )
    assert not strategy_text(plan.plan)
    assert "strategy" not in plan.plan.as_text()


def test_loops_in_words():
    """Products of weights that are all in loops, of which explanations say nothing."""

    def step(weights, batch):
        def loss(weights):
            last = jax.lax.fori_loop(0, batch.shape[0], lambda i, x: jnp.tanh(x @ weights), batch)
            return jnp.mean(last**2)

        return weights, loss(weights)

    size = 64
    arguments = jnp.ones((size, size)), jnp.ones((32, size))
    method = ShardParallel(method="data-parallel")
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*arguments).plan
    assert strategy_text(plan) == "loops on 8 devices (batch comes in split by 8, weights whole)"


def test_mixtures_in_words():
    plan = plan_of(ShardParallel(mesh_shape=(2, 4), method="data-parallel"))
    found = plan.explanation(0)
    for axis in found["axes"]:
        axis["data"] *= 0.4
    text = "mixed 8 (data in 40 % of products, replicated in 60 %)"
    assert strategy_of(plan, [found]).text == text
    found["axes"][0]["optimizer_bytes"] = found["optimizer_bytes"]
    split = "mixed 2 (data in 40 % of products, replicated in 60 %, split optimizer state)"
    assert strategy_of(plan, [found]).text == f"{split} x {text.replace('8', '4', 1)}"


def test_optimizer_state_in_words():
    line = strategy_text(plan_of(ShardParallel(mesh_shape=(1, 4), method="zero-2")))
    assert line == "data 4 (ZeRO-2)"


def test_experts_in_words():
    size, rows, experts = 32, 64, 4
    spec = jax.sharding.PartitionSpec

    def step(weights, batch):
        def loss(weights):
            return jnp.mean(
                jnp.einsum("ebd,edf->ebf", batch.reshape(experts, -1, size), weights) ** 2
            )

        return weights - 0.1 * jax.grad(loss)(weights)

    arguments = jnp.ones((experts, size, size)), jnp.ones((rows, size))
    pins = spec("y", None, None), spec()
    method = ShardParallel(mesh_shape=(1, 4), method="manual", in_shardings=pins)
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*arguments).plan
    assert strategy_text(plan) == "expert 4"


def test_experts_beside_data_in_words():
    """An axis that splits examples in most products, and experts in theirs."""
    plan = plan_of(ShardParallel(mesh_shape=(2, 4), method="data-parallel"))
    assert strategy_of(plan).text == "data 8"
    found = plan.explanation(0)
    found["axes"][1]["expert"] = 0.2 * found["product_seconds"]
    assert strategy_of(plan, [found]).text == "data 8, expert parallel 4"


def test_idle_devices_are_named_with_the_reason():
    given = plan_of(ShardParallel(mesh_shape=(2, 2)))
    line = "4 of 8 devices are idle: the submeshes are given"
    assert alpa_mlir.explain(given).startswith(f"{line}\nstrategy: ")
    assert line in given.as_text()
    # Too little work to be worth so many messages.
    step, *arguments = mlp(1, 16)
    method = AutoParallel(num_micro_batches=1)
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*arguments).plan
    used = sum(len(mesh.devices) for mesh in plan.meshes)
    assert used < 8
    taken, whole = (plan.predicted[f"{name}step_seconds"] for name in ("", "all_devices_"))
    assert whole > taken
    text = f"{8 - used} of 8 devices are idle: the best plan found that uses them is slower, "
    assert text in plan.as_text()
    assert f"{whole / taken - 1:.1%} more" in plan.as_text()
    again = alpa_mlir.Plan.from_json(plan.to_json(), dict(plan.modules))
    assert again.idle_reason == plan.idle_reason


def test_an_operation_outside_of_modules_is_named_once():
    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((8, 64), "float32")
    method = ShardParallel(mesh_shape=(2, 4))
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*shapes).plan
    text = alpa_mlir.explain(plan)
    assert " dot_general forward" in text
    assert "dot_general dot_general" not in text


def test_rounding_to_its_own_type_costs_nothing():
    """As JAX writes what a policy of `jax.checkpoint` keeps; XLA leaves it to the product."""
    policy = jax.checkpoint_policies.save_only_these_names("up")

    @functools.partial(jax.checkpoint, policy=policy)
    def layer(w, x):
        return jax.nn.silu(checkpoint_name(x @ w, "up")) @ w.T

    def step(w, x):
        grads = jax.grad(lambda w: jnp.sum(layer(w, x).astype(jnp.float32) ** 2))(w)
        return w - grads

    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((4096, 4096), (2**16, 4096))]
    method = ShardParallel(num_micro_batches=1)
    parallel = alpa_mlir.parallelize(step, cluster="dgx-h100", method=method, cache=False)
    plan = parallel.plan(*shapes).plan
    assert "stablehlo.reduce_precision" in plan.modules[plan.stages[0].module]
    (row,) = [x for x in plan.explanation(0)["ops"] if x["op"] == "stablehlo.reduce_precision"]
    assert row["memory_traffic_bytes"] == row["kernels"] == 0
