"""What a plan says about its own costs adds up, and reads well."""

from __future__ import annotations

import alpa_mlir
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
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


def test_text():
    plan = plan_of(ShardParallel(mesh_shape=(2, 4)))
    text = alpa_mlir.explain(plan, most=3)
    assert text.startswith("stage 0\n")
    assert "all_reduce" in text or "reduce_scatter" in text
    assert "ops by cost, 3 of " in text
    assert "runner-up " in text
    chosen = alpa_mlir.explain(plan, op="qkv")
    assert "qkv" in chosen
    assert "wte" not in chosen


def test_idle_devices_are_named_with_the_reason():
    given = plan_of(ShardParallel(mesh_shape=(2, 2)))
    line = "4 of 8 devices are idle: the submeshes are given"
    assert alpa_mlir.explain(given).startswith(f"{line}\nstage 0\n")
    assert line in given.as_text()
    # Too little work to be worth so many messages.
    step, *arguments = mlp(1, 16)
    method = AutoParallel(num_micro_batches=1)
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*arguments).plan
    used = sum(len(mesh.devices) for mesh in plan.meshes)
    assert used < 8
    taken, whole = (plan.predicted[f"{name}step_seconds"] for name in ("", "all_devices_"))
    assert whole > taken
    text = f"{8 - used} of 8 devices are idle: a plan that uses them is slower, "
    assert text in plan.as_text()
    assert f"{whole / taken - 1:.1%} more" in plan.as_text()
    again = alpa_mlir.Plan.from_json(plan.to_json(), dict(plan.modules))
    assert again.idle_reason == plan.idle_reason
