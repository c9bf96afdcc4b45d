"""State that lives in workers: saved and read by them, made in place by them, fed to them."""

from __future__ import annotations

import itertools

import alpa_mlir
import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import steps
import zoo
from alpa_mlir import (
    CheckpointError,
    DamagedCheckpointError,
    DataLoader,
    PipeshardParallel,
    ShardParallel,
    latest_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from alpa_mlir.errors import AlpaError, TransportError, WorkerLostError
from alpa_runtime.arrays import DistributedArray, DistributedKeys, StackedArray
from alpa_runtime.checkpoint import shards, steps_in
from alpa_runtime.hosts.threads import ThreadWorkers
from alpa_runtime.worker_group import Placement
from alpa_runtime.workers.driver import DistributedPlan
from same_bits import check_same
from test_init import init


@pytest.fixture
def load():
    """Steps with a worker for each mesh, closed at the end."""
    made = []

    def make(plan, **options):
        placement = Placement(tuple(mesh.devices for mesh in plan.meshes))
        step = alpa_mlir.load(plan, workers=ThreadWorkers(placement), **options)
        made.append(step)
        return step

    yield make
    for step in made:
        step.close()


def losses_of(step, state, batch, count):
    losses = []
    for _ in range(count):
        state, loss, _ = step(state, batch)
        losses.append(float(loss))
    return losses


def test_saved_and_restored_in_workers(tmp_path, load):
    plan = steps.two_stage_plan(2, first=(2, 2), second=(1, 2))
    step = load(plan)
    state, batch = handmade.arguments(2)
    state, _, _ = step(state, batch)
    kept = jax.tree.map(np.array, state)
    saving = save_checkpoint(tmp_path, {"state": state, "step": 1, "host": np.arange(3)}, step=1)
    # The next step uses the arrays up.
    losses = losses_of(step, state, batch, 2)
    saving.wait()
    whole = restore_checkpoint(tmp_path)
    check_same(whole, {"state": kept, "step": 1, "host": np.arange(3)})
    save_checkpoint(tmp_path, kept, step=2).wait()

    for other in (
        load(plan),
        load(steps.two_stage_plan(2, first=(1, 1), second=(2, 2))),
        steps.two_stage_step(2),
    ):
        state = restore_checkpoint(tmp_path, other)
        if isinstance(other.loaded, DistributedPlan):
            assert all(isinstance(x, DistributedArray) for x in jax.tree.leaves(state))
            assert [x.workers for x in jax.tree.leaves(state)] == [(0,), (1,)]
        check_same(jax.tree.map(np.asarray, state), kept)
        np.testing.assert_allclose(losses_of(other, state, batch, 2), losses, rtol=1e-5)
        given = jax.tree.leaves(state)
        assert all(x.is_deleted() for x in given)


def test_each_worker_reads_and_writes_its_own(tmp_path, load, monkeypatch):
    plan = steps.two_stage_plan(2, first=(1, 2), second=(1, 2))
    step = load(plan)
    state, batch = handmade.arguments(2)
    state, _, _ = step(state, batch)
    written, read = [], []
    writing, reading = shards.write_shards, shards.read_boxes

    def write(folder, leaves, shards):
        written.append([(leaf.name, p.box) for (_, leaf), own in zip(leaves, shards, strict=True)
                        for p in own])  # fmt: skip
        return writing(folder, leaves, shards)

    def read_boxes(folder, wanted):
        wanted = list(wanted)
        read.append([(leaf.name, box) for leaf, box in wanted])
        return reading(folder, wanted)

    monkeypatch.setattr(shards, "write_shards", write)
    monkeypatch.setattr(shards, "read_boxes", read_boxes)
    save_checkpoint(tmp_path, state, step=1).wait()
    halves = [
        [("['w0']", ((0, 8), (0, 8))), ("['w0']", ((0, 8), (8, 16)))],
        [("['w1']", ((0, 8), (0, 4))), ("['w1']", ((8, 16), (0, 4)))],
    ]
    assert sorted(written) == halves
    check_same(jax.tree.map(np.asarray, restore_checkpoint(tmp_path, step)),
               jax.tree.map(np.asarray, state))  # fmt: skip
    assert sorted(read) == halves


def test_what_fails_in_workers(tmp_path, load, monkeypatch):
    step = load(steps.two_stage_plan())
    state, batch = handmade.arguments(2)
    state, _, _ = step(state, batch)
    save_checkpoint(tmp_path, state, step=1).wait()

    def full(*_):
        raise CheckpointError("No space left on device", where="['w0']")

    with monkeypatch.context() as patch:
        patch.setattr("alpa_runtime.checkpoint.shards.write_shards", full)
        saving = save_checkpoint(tmp_path, state, step=2)
        with pytest.raises(CheckpointError, match="No space left"):
            saving.wait()
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
    save_checkpoint(tmp_path, state, step=2).wait()
    chunk = tmp_path / "2" / "default" / "w1" / "c" / "0" / "0"
    data = chunk.read_bytes()
    chunk.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    held = [step.loaded.group.call(rank, "ping").result()["arrays"] for rank in (0, 1)]
    with pytest.raises(DamagedCheckpointError, match=r"\['w1'\]: .*Digest mismatch"):
        restore_checkpoint(tmp_path, step)
    # Of what the other worker could read, nothing is kept.
    for rank in (0, 1):
        step.loaded.ask(rank, "free", ()).result()  # Behind what was asked for before.
        assert step.loaded.group.call(rank, "ping").result()["arrays"] == held[rank]
    chunk.unlink()
    with pytest.raises(CheckpointError, match=r"\['w1'\]: the shard .* is missing"):
        restore_checkpoint(tmp_path, step)
    like = restore_checkpoint(tmp_path, state, step=1)
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(like))
    old = restore_checkpoint(tmp_path, step, step=1)  # The workers are well.
    check_same(jax.tree.map(np.asarray, old), like)
    after, _, _ = step(old, batch)
    with pytest.raises(CheckpointError, match=r"\['w0'\]: the array was donated"):
        save_checkpoint(tmp_path, old, step=3)
    step.loaded.group.kill(1)
    with pytest.raises(AlpaError):
        save_checkpoint(tmp_path, after, step=3).wait()
    assert latest_checkpoint(tmp_path) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"]


def test_the_worker_that_is_the_cause_is_named(tmp_path, load, monkeypatch):
    step = load(steps.two_stage_plan())
    state, batch = handmade.arguments(2)
    state, _, _ = step(state, batch)

    def gone(*_):
        raise TransportError("rank 1 is gone", where="worker 0", peer=1)

    def cause():
        raise WorkerLostError("died of SIGKILL", where="worker 1", rank=1)

    with monkeypatch.context() as patch:
        patch.setattr("alpa_runtime.checkpoint.shards.write_shards", gone)
        patch.setattr(step.loaded, "synchronize", cause)
        saving = save_checkpoint(tmp_path, state, step=2)
        with pytest.raises(CheckpointError, match="worker 1: died of SIGKILL") as caught:
            saving.wait()
        assert isinstance(caught.value.__cause__, WorkerLostError)
    assert list(tmp_path.iterdir()) == []


def test_state_is_made_in_workers(load):
    step = load(steps.two_stage_plan(2, first=(2, 2), second=(1, 2)))
    state = step.init(init, jax.random.key(3))
    assert all(isinstance(x, DistributedArray) for x in jax.tree.leaves(state))
    expected = jax.jit(init)(jax.random.key(3))
    check_same(jax.tree.map(np.asarray, state), jax.tree.map(np.asarray, expected))
    _, batch = handmade.arguments(2)
    new, loss, _ = step(state, batch)
    want, want_loss, _ = jax.jit(handmade.reference_step)(expected, batch)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
    np.testing.assert_allclose(new["w0"], want["w0"], rtol=1e-5, atol=1e-6)
    assert all(x.is_deleted() for x in jax.tree.leaves(state))


def test_keys_stay_in_workers(tmp_path, load):
    """Made, saved and restored where they are; plain JAX gets typed keys."""

    def train(state, batch):
        key, now = jax.random.split(state["key"])
        noise = jax.random.normal(now, state["w"].shape) * 0.01
        loss, g = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state["w"] + noise)
        return {"w": state["w"] - 0.1 * g, "key": key}, loss

    def create(key):
        return {"w": jax.random.normal(key, (8, 4)), "key": jax.random.fold_in(key, 1)}

    batch = np.ones((8, 8), np.float32)
    shapes = jax.eval_shape(create, jax.random.key(0))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=1)
    function = alpa_mlir.parallelize(train, cluster="cpu-test", method=method)
    step = load(function.plan(shapes, batch).plan)
    state = step.init(create, jax.random.key(0))
    assert isinstance(state["key"], DistributedKeys)
    state, _ = step(state, batch)
    expected, _ = jax.jit(train)(jax.jit(create)(jax.random.key(0)), batch)
    save_checkpoint(tmp_path, state, step=1).wait()
    losses = [float(step(state, batch)[1])]
    again = restore_checkpoint(tmp_path, step)
    assert isinstance(again["key"], DistributedKeys)
    losses.append(float(step(again, batch)[1]))
    for target in (shapes, state, None):
        found = restore_checkpoint(tmp_path, target)
        assert found["key"].dtype == expected["key"].dtype
        check_same(jax.random.key_data(found["key"]), jax.random.key_data(expected["key"]))
        np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-5)
    losses.append(float(jax.jit(train)(found, batch)[1]))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_batches_are_fed_to_workers(load):
    step = load(steps.two_stage_plan())
    rng = np.random.default_rng(0)
    batches = [jax.tree.map(lambda x: x + rng.standard_normal(), handmade.arguments(2)[1])
               for _ in range(4)]  # fmt: skip
    state, _ = handmade.arguments(2)
    expected, losses = state, []
    for batch in batches:
        expected, loss, _ = jax.jit(handmade.reference_step)(expected, batch)
        losses.append(float(loss))
    found = []
    with DataLoader(batches, step) as loader:
        for batch in loader:
            assert all(isinstance(x, DistributedArray) for x in jax.tree.leaves(batch))
            state, loss, _ = step(state, batch)
            found.append(float(loss))
    np.testing.assert_allclose(found, losses, rtol=1e-4)


def mlp(widths):
    def step(state, batch):
        def loss_of(params):
            h = batch["x"]
            for w in params:
                h = jnp.tanh(h @ w)
            return jnp.mean((h - batch["y"]) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, state["moments"], grads)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], moments)
        return {"params": params, "moments": moments, "count": state["count"] + 1}, loss

    def create(key):
        keys = jax.random.split(key, len(widths) - 1)
        params = [
            jax.random.normal(k, shape) * 0.3
            for k, shape in zip(keys, itertools.pairwise(widths), strict=True)
        ]
        zeros = [jnp.zeros_like(p) for p in params]
        return {"params": params, "moments": zeros, "count": jnp.int32(0)}

    return step, create


@pytest.mark.slow
def test_four_workers_to_two_to_one(tmp_path, load):
    """Saved by four, restored by two and by one, and into plain JAX: one loss curve."""
    widths = (32,) * 9
    train, create = mlp(widths)
    rng = np.random.default_rng(0)
    batch = {"x": rng.standard_normal((8, 32)), "y": rng.standard_normal((8, 32))}
    batch = jax.tree.map(np.float32, batch)
    shapes = jax.eval_shape(create, jax.random.key(0))

    def planned(count):
        method = PipeshardParallel(submeshes=[(1, 2)] * count, num_micro_batches=2)
        function = alpa_mlir.parallelize(train, cluster="cpu-test", method=method)
        return function.plan(shapes, batch).plan

    def run(step, state, count):
        losses = []
        for _ in range(count):
            state, loss = step(state, batch)
            losses.append(float(loss))
        return state, losses

    expected = run(jax.jit(train), create(jax.random.key(0)), 8)[1]
    folder = tmp_path / "run"
    four = load(planned(4))
    state, found = run(four, four.init(create, jax.random.key(0)), 2)
    save_checkpoint(folder, state, step=2).wait()
    two = load(planned(2))
    state, more = run(two, restore_checkpoint(folder, two), 2)
    found += more
    save_checkpoint(folder, state, step=4, keep=1).wait()
    one = load(planned(1))
    state, more = run(one, restore_checkpoint(folder, one), 2)
    found += more
    save_checkpoint(folder, state, step=6).wait()
    found += run(jax.jit(train), restore_checkpoint(folder), 2)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert [s.loaded.placement.size for s in (four, two, one)] == [4, 2, 1]
    assert steps_in(folder) == [4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_stacks_of_layers_in_workers(tmp_path, load, axis):
    """What workers hold in pieces is stored whole, and comes back in pieces."""
    model = zoo.stacked.make_layer_stack(axis=axis)
    example, batch = model.init()
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)])
    function = alpa_mlir.parallelize(model.step, cluster="cpu-test", method=method)
    step = load(function.plan(example, batch).plan)

    def create(key):
        return jax.tree.map(
            lambda x: (
                x + jax.random.normal(key, x.shape, x.dtype)
                if jnp.issubdtype(x.dtype, jnp.floating)
                else x
            ),
            jax.tree.map(jnp.asarray, example),
        )

    state = step.init(create, jax.random.key(0))
    bias = state["params"]["layers"]["bias"]
    assert isinstance(bias, StackedArray)
    assert {piece.workers for piece in bias.pieces} == {(0,), (1,)}
    first = jax.tree.map(np.asarray, state)
    check_same(first, jax.tree.map(np.asarray, jax.jit(create)(jax.random.key(0))))
    save_checkpoint(tmp_path, state, step=0).wait()
    losses = [float(step(state, batch)[1]["loss"])]
    check_same(restore_checkpoint(tmp_path, first), first)
    again = restore_checkpoint(tmp_path, step)
    check_same(jax.tree.map(np.asarray, again), first)
    assert isinstance(again["params"]["layers"]["bias"], StackedArray)
    losses.append(float(step(again, batch)[1]["loss"]))
    one = alpa_mlir.compile(
        model.step, example, batch, cluster="cpu-test", method=ShardParallel(mesh_shape=(1, 2))
    )
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    # Another plan rounds the model's bfloat16 elsewhere.
    other = float(one(restore_checkpoint(tmp_path, one), batch)[1]["loss"])
    np.testing.assert_allclose(other, losses[0], rtol=1e-2)
