"""Plans as configuration files of MaxText and Levanter."""

from __future__ import annotations

import re

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
import zoo
from alpa_mlir import DataParallel, PipeshardParallel, Zero2Parallel, Zero3Parallel, cli
from alpa_mlir.errors import ExportError
from alpa_mlir.export import export_plan

HOSTS = "dgx-a100:2"
KEEPS = "does nothing but keep pieces of weights"


def step(w, x):
    def loss(w):
        h = x
        for a, b in zip(w["up"], w["down"], strict=True):
            h = h + jnp.tanh(h @ a) @ b
        return jnp.mean(h**2)

    value, g = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, g), value


def planned(method, cluster="dgx-a100", layers=4, rows=64):
    a = jax.ShapeDtypeStruct
    w = {
        "up": [a((512, 2048), np.float32)] * layers,
        "down": [a((2048, 512), np.float32)] * layers,
    }
    arguments = w, a((rows, 512), np.float32)
    return alpa_mlir.parallelize(step, cluster=cluster, method=method).plan(*arguments).plan


def sizes(plan):
    """The axes of MaxText's mesh that have several devices, and all fields."""
    text = export_plan(plan, "maxtext").text
    fields = yaml.safe_load(text)
    axes = {k: v for k, v in fields.items() if k.endswith("_parallelism") and v > 1}
    return axes, fields


def test_fsdp_over_hosts():
    plan = planned(Zero3Parallel(mesh_shape=(1, 16), num_micro_batches=2), HOSTS)
    axes, fields = sizes(plan)
    assert axes == {"ici_fsdp_parallelism": 8, "dcn_fsdp_parallelism": 2}
    assert fields["base_config"] == "base.yml"
    assert fields["gradient_accumulation_steps"] == 2
    assert fields["per_device_batch_size"] == 64 / 2 / 16
    assert "shard_optimizer_over_data" not in fields
    assert "# Strategy: FSDP 16, 2 micro-batches." in export_plan(plan, "maxtext").text


def test_data_parallelism_and_split_optimizers():
    assert sizes(planned(DataParallel()))[0] == {"ici_data_parallelism": 8}
    model = zoo.get("gpt")
    method = Zero2Parallel(mesh_shape=(1, 8))
    found = alpa_mlir.parallelize(model.step, cluster="dgx-a100", method=method)
    axes, fields = sizes(found.plan(*model.init()).plan)
    assert axes == {"ici_data_parallelism": 8}
    assert fields["shard_optimizer_over_data"] is True


def test_pipelines():
    method = PipeshardParallel(submeshes=[(1, 8), (1, 8)], num_micro_batches=4)
    plan = planned(method, HOSTS)
    axes, fields = sizes(plan)
    assert axes.pop("dcn_pipeline_parallelism") == 2
    assert np.prod([*axes.values()]) == 8
    assert fields["num_pipeline_microbatches"] == 4
    assert fields["per_device_batch_size"] == 64 / 16
    assert "gradient_accumulation_steps" not in fields
    notes = export_plan(plan, "maxtext").notes
    assert any("schedule is 1f1b" in note for note in notes)
    assert any("num_layers_per_pipeline_stage" in note for note in notes)


def test_decoder_layers_of_a_scan():
    model = zoo.get("gpt_scan")
    method = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=4)
    found = alpa_mlir.parallelize(model.step, cluster="dgx-a100", method=method)
    axes, fields = sizes(found.plan(*model.init()).plan)
    assert axes["ici_pipeline_parallelism"] == 2
    assert fields["num_layers_per_pipeline_stage"] == 1


@pytest.mark.parametrize(
    ("submeshes", "count", "message"),
    [
        ([(1, 4), (1, 2), (1, 2)], 3, r"stage 1 is .*those of MaxText are alike"),
        ([(1, 4), (1, 4)], 1, r"1 micro-batches for 2 stages.*a multiple of 2 micro-batches"),
    ],
)
def test_what_maxtext_has_not_is_refused(submeshes, count, message):
    method = PipeshardParallel(submeshes=submeshes, num_micro_batches=count)
    plan = planned(method, rows=48)
    with pytest.raises(ExportError, match=message):
        export_plan(plan, "maxtext")


def test_its_own_reader_takes_it(tmp_path):
    config = pytest.importorskip("maxtext.configs.pyconfig")
    utils = pytest.importorskip("maxtext.utils.maxtext_utils")
    path = tmp_path / "plan.yml"
    plan = planned(Zero3Parallel(mesh_shape=(1, 8), num_micro_batches=2))
    path.write_text(export_plan(plan, "maxtext").text)
    settings = {
        "run_name": "test",
        "hardware": "cpu",
        "enable_checkpointing": False,
        "skip_jax_distributed_system": True,
        "log_config": False,
    }
    read = config.initialize(["train", str(path), *(f"{k}={v}" for k, v in settings.items())])
    mesh = utils.create_device_mesh(read)
    assert mesh.shape[read.mesh_axes.index("fsdp")] == mesh.size == 8
    assert read.global_batch_size_to_load == 64
    assert read.gradient_accumulation_steps == 2


@pytest.mark.parametrize(
    ("method", "rows", "does"),
    [
        (DataParallel(mesh_shape=(1, 8)), 7, "axis y of stage 0 splits nothing"),
        (Zero3Parallel(mesh_shape=(1, 8)), 7, f"axis y of stage 0 {KEEPS}"),
        (Zero3Parallel(mesh_shape=(2, 4), num_micro_batches=2), 8, f"axis x of stage 0 {KEEPS}"),
    ],
    ids=["data", "FSDP", "FSDP of one axis"],
)
@pytest.mark.parametrize(("to", "trainer"), [("maxtext", "MaxText"), ("levanter", "Levanter")])
def test_axes_whose_devices_compute_the_same_are_refused(method, rows, does, to, trainer):
    plan = planned(method, rows=rows)
    message = (
        f"{does}, its devices compute the same, which no axis of {trainer}'s mesh does; fix: plan "
        "with micro-batches whose rows 8 devices can share (they have "
        f"{rows // plan.num_micro_batches}), or with another mesh_shape, or export it to jax or "
    )
    with pytest.raises(ExportError, match=re.escape(message)):
        export_plan(plan, to)


def levanter_fields(plan):
    return yaml.safe_load(export_plan(plan, "levanter").text)["trainer"]


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        (Zero3Parallel(mesh_shape=(1, 16), num_micro_batches=2), {"per_device_parallelism": 2}),
        (
            DataParallel(mesh_shape=(1, 16)),
            {
                "replica_ici_axis_size": 8,
                "replica_dcn_axis_size": 2,
                "per_device_parallelism": 4,
                "fsdp_axis": None,
            },
        ),
    ],
    ids=["FSDP", "data"],
)
def test_levanter(method, fields):
    default = {"replica_ici_axis_size": 1, "replica_dcn_axis_size": 1, "model_axis_size": 1}
    assert levanter_fields(planned(method, HOSTS)) == default | {"train_batch_size": 64} | fields


def test_what_levanter_has_not_is_refused():
    pipeline = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=2)
    with pytest.raises(ExportError, match=r"2 pipeline stages, Levanter has none.* maxtext"):
        export_plan(planned(pipeline), "levanter")


def test_levanters_own_reader_takes_it():
    draccus = pytest.importorskip("draccus")
    trainer = pytest.importorskip("levanter.trainer")
    fields = levanter_fields(planned(Zero3Parallel(mesh_shape=(1, 8), num_micro_batches=2)))
    config = draccus.decode(trainer.TrainerConfig, fields)
    assert dict(config.device_mesh.shape) == {"replica": 1, "data": 8, "model": 1}
    assert config.microbatch_size == 32
    assert config.TrainBatch.size == 64


def test_jaxpp_is_refused_by_name(capsys):
    with pytest.raises(ExportError, match=r"jaxpp is not written: .*no package index.*use mpmd"):
        export_plan("any", "jaxpp")
    with pytest.raises(SystemExit):
        cli.main(["export", "any", "--to", "jaxpp"])
    assert "argument --to: jaxpp is not written" in capsys.readouterr().err
