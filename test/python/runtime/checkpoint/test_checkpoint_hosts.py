"""Checkpoints of workers in processes, meshes over several of them, and of simulated hosts."""

from __future__ import annotations

import logging
import os
import signal

import alpa_mlir
import handmade
import jax
import numpy as np
import pytest
import steps
from alpa_mlir import (
    CheckpointError,
    DataLoader,
    latest_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from alpa_mlir.errors import AlpaError
from alpa_runtime.checkpoint import steps_in
from alpa_runtime.hosts.ray_hosts import RayWorkers
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.worker_group import Placement
from same_bits import check_same
from source_paths import PYTHONPATH
from test_hosts import SPANNING, TWO
from test_init import init

pytestmark = pytest.mark.slow


def on_host(state):
    return jax.tree.map(np.asarray, state)


def run(step, state, count):
    """The state and the losses of some steps."""
    _, batch = handmade.arguments(2)
    losses = []
    with DataLoader([batch] * count, step) as loader:
        for placed in loader:
            state, loss, _ = step(state, placed)
            losses.append(float(loss))
    return state, losses


def expected_losses(count):
    state, losses = jax.jit(init)(jax.random.key(3)), []
    _, batch = handmade.arguments(2)
    for _ in range(count):
        state, loss, _ = jax.jit(handmade.reference_step)(state, batch)
        losses.append(float(loss))
    return losses


def test_meshes_over_two_processes(tmp_path):
    """Each process makes, writes and reads its shards of meshes that both have devices of."""
    with ProcessWorkers(placement=SPANNING, platform="cpu") as hosts:
        step = alpa_mlir.load(steps.two_stage_plan(2), workers=hosts)
        state = step.init(init, jax.random.key(3))
        check_same(on_host(state), on_host(jax.jit(init)(jax.random.key(3))))
        state, losses = run(step, state, 2)
        kept = on_host(state)
        saving = save_checkpoint(tmp_path, state, step=2)
        _, more = run(step, state, 2)
        saving.wait()
        check_same(restore_checkpoint(tmp_path), kept)
        state, again = run(step, restore_checkpoint(tmp_path, step), 2)
        assert again == more
        np.testing.assert_allclose(losses + more, expected_losses(4), rtol=1e-5)

        chunk = tmp_path / "2" / "default" / "w0" / "c" / "0" / "1"
        data = chunk.read_bytes()
        chunk.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        with pytest.raises(CheckpointError, match=r"\['w0'\]: .*Digest mismatch"):
            restore_checkpoint(tmp_path, step)
        chunk.write_bytes(data)

        # A worker dies while it has not written yet: the old checkpoint stays.
        os.kill(step.loaded.group.pids[1], signal.SIGKILL)
        with pytest.raises(AlpaError):
            save_checkpoint(tmp_path, state, step=4, keep=1).wait()
        step.close()
    assert latest_checkpoint(tmp_path) == 2
    check_same(restore_checkpoint(tmp_path), kept)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2"]


# Ray's processes are forked from this one, and replaced by other programs at once.
@pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning")
def test_four_hosts_to_two_to_one(tmp_path, monkeypatch):
    """Saved by four hosts of a Ray cluster with unequal meshes, restored by two and by one."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    four = Placement(((0,), (1, 2, 3), (4,), (5,)))
    one = Placement(((0, 1, 2),))
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()

        def load(placement, **meshes):
            workers = RayWorkers(cluster.address, placement=placement, platform="cpu")
            return alpa_mlir.load(steps.two_stage_plan(2, **meshes), workers=workers)

        step = load(four, first=(2, 2), second=(1, 2))
        state, losses = run(step, step.init(init, jax.random.key(3)), 2)
        save_checkpoint(tmp_path, state, step=2).wait()
        step.close()
        step = load(TWO, first=(1, 2), second=(1, 2))
        state, more = run(step, restore_checkpoint(tmp_path, step), 2)
        losses += more
        save_checkpoint(tmp_path, state, step=4).wait()
        step.close()
        step = load(one, first=(1, 1), second=(1, 2))
        losses += run(step, restore_checkpoint(tmp_path, step), 2)[1]
        step.close()
    finally:
        ray.shutdown()
        cluster.shutdown()
    # And by this process, and without any plan.
    step = steps.two_stage_step(2, first=(4, 1), second=(2, 2))
    losses += run(step, run(step, restore_checkpoint(tmp_path, step), 2)[0], 1)[1]
    check_same(restore_checkpoint(tmp_path, step=4), on_host(state_of(tmp_path)))
    np.testing.assert_allclose(losses, expected_losses(7), rtol=1e-4)
    assert steps_in(tmp_path) == [2, 4]


def state_of(folder):
    """The last state as orbax reads it."""
    import orbax.checkpoint as ocp

    like = {"w0": jax.numpy.zeros((8, 16)), "w1": jax.numpy.zeros((16, 4))}
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder / "4" / "default", like)
