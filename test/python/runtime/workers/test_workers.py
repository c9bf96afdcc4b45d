"""Plans on several workers of this process give the numbers of plain `jax.jit`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import pickle

import alpa_mlir
import handmade
import jax
import numpy as np
import pytest
from alpa_mlir.errors import ArgumentMismatchError, DeletedArrayError, WorkerError
from alpa_runtime.arrays import DistributedArray
from alpa_runtime.backends.xla import named_sharding
from alpa_runtime.execution import transfers
from alpa_runtime.hosts.threads import ThreadWorkers
from alpa_runtime.worker_group import Held, Placement, StepRequest
from alpa_runtime.workers.driver import DistributedPlan
from handmade import flat
from test_runtime import MESHES


def placed(first, second, apart=True) -> Placement:
    a, b = first[0] * first[1], second[0] * second[1]
    parts = tuple(range(a)), tuple(range(a, a + b))
    return Placement(parts if apart else (parts[0] + parts[1],))


def driver(plan, placement, donate_state=True) -> DistributedPlan:
    found, group = ThreadWorkers(placement).start(plan, donate_state=donate_state)
    return DistributedPlan(plan, found, group, donate_state)


@pytest.fixture
def two():
    """A plan of two stages on two workers."""
    made = []

    def make(micro_batches=2, donate_state=True, **options):
        plan = handmade.as_plan(*handmade.two_stages(micro_batches, **options))
        step = driver(plan, placed((1, 2), (1, 2)), donate_state)
        made.append(step)
        return step

    yield make
    for step in made:
        step.close()


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("first", "second"), MESHES)
def test_equals_single_device(first, second, apart):
    plan = handmade.as_plan(*handmade.two_stages(3, "1f1b", first, second))
    step = driver(plan, placed(first, second, apart))
    handmade.check_steps(step, 3)
    step.close()


def test_arrays_stay_in_workers(two):
    step = two()
    state, batch = handmade.arguments(2)
    first = step(flat(state, batch))
    assert all(isinstance(x, DistributedArray) for x in first)
    w0, w1, loss, h = first
    assert (w0.workers, w1.workers, loss.workers) == ((0,), (1,), (1,))
    assert w0.sharding.as_text() == "[R, y] on a 1x2 mesh of devices 0 1"
    assert repr(w0) == f"DistributedArray(float32[8, 16] {w0.sharding.as_text()})"
    assert (h.shape, h.dtype, h.ndim, h.size, len(h)) == ((16, 16), np.float32, 2, 256, 16)
    assert jax.tree.leaves({"w": w0}) == [w0]
    assert float(loss) > 0
    assert f"{loss:.3f}" == f"{float(loss):.3f}"
    got = jax.device_get({"w": w0, "h": h})
    np.testing.assert_array_equal(got["w"], w0)
    assert isinstance(got["h"], np.ndarray)
    assert jax.block_until_ready(w1) is w1
    np.testing.assert_allclose(jax.numpy.sum(w0 * 2), 2 * got["w"].sum(), rtol=1e-5)
    w1.copy_to_host_async()
    assert str(w1).startswith("[[")
    assert repr(w1).endswith("float32[16, 4] [y, R] on a 1x2 mesh of devices 2 3)")
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(w0)[0] = 1


def test_arrays_read_like_those_of_jax(two, monkeypatch):
    step = two()
    state, batch = handmade.arguments(2)
    w0, _, loss, _ = step(flat(state, batch))
    fetched = []
    fetch = type(step).fetch
    monkeypatch.setattr(
        type(step), "fetch", lambda home, array: fetched.append(array) or fetch(home, array)
    )
    assert not hasattr(w0, "other")
    assert not getattr(w0, "weak_type", False)
    with pytest.raises(AttributeError, match="'DistributedArray' object has no attribute 'other'"):
        _ = w0.other
    assert not fetched
    host = np.asarray(w0)
    assert len(list(w0)) == len(host)
    assert float(loss) in loss[None]
    with pytest.raises(TypeError):
        iter(loss)
    np.testing.assert_array_equal(w0 == w0, np.ones(w0.shape, bool))
    np.testing.assert_array_equal(w0 != host + 1, np.ones(w0.shape, bool))
    np.testing.assert_array_equal(w0 == np.asarray(w0)[0], host == host[0])
    with pytest.raises(TypeError, match="unhashable"):
        hash(w0)
    np.testing.assert_allclose(jax.numpy.log(loss), np.log(np.asarray(loss)))
    np.testing.assert_allclose(jax.jit(lambda x: x.sum())(w0), host.sum(), rtol=1e-5)
    np.testing.assert_array_equal(jax.device_put(w0), host)
    np.testing.assert_array_equal(divmod(w0, 2)[1], host % 2)
    assert round(loss, 2) == round(float(loss), 2)


def test_copies_outlive_the_step_that_uses_the_state_up(two):
    step = two()
    state, batch = handmade.arguments(2)
    first = step(flat(state, batch))
    host = np.array(first[0])
    copies = [copy.deepcopy(first[0]), pickle.loads(pickle.dumps(first[0]))]
    copy.copy(first[0])
    gc.collect()
    second = step([*first[:2], batch["x"], batch["y"]])
    step.synchronize()
    for other in copies:
        np.testing.assert_array_equal(other, host)
    again = step([copies[0], second[1], batch["x"], batch["y"]])
    assert np.isfinite(again[2])


def test_state_is_used_up(two):
    step = two()
    state, batch = handmade.arguments(2)
    first = step(flat(state, batch))
    second = step([*first[:2], batch["x"], batch["y"]])
    assert [x.is_deleted() for x in first] == [True, True, False, False]
    match = r"state\['w0'\]: the array was donated to step 1; fix: use the state that the last step"
    with pytest.raises(DeletedArrayError, match=match):
        np.asarray(first[0])
    with pytest.raises(ArgumentMismatchError, match=match):
        step([*first[:2], batch["x"], batch["y"]])
    assert "donated to step 1" in repr(first[0])
    third = step([*second[:2], batch["x"], batch["y"]])  # An error before it does no harm.
    third[0].delete()
    with pytest.raises(DeletedArrayError, match=r"state\['w0'\]: the array was deleted"):
        third[0].block_until_ready()
    assert np.isfinite(third[2])


def test_state_is_kept_on_request(two):
    step = two(donate_state=False)
    state, batch = handmade.arguments(2)
    first = step(flat(state, batch))
    again = [step([*first[:2], batch["x"], batch["y"]]) for _ in range(2)]
    assert not first[0].is_deleted()
    np.testing.assert_array_equal(again[0][0], again[1][0])


def test_unused_arrays_are_dropped_in_workers(two):
    step = two()
    state, batch = handmade.arguments(2)
    args = flat(state, batch)
    counts = []
    for _ in range(4):
        w0, w1, *_ = step(args)
        args = [w0, w1, batch["x"], batch["y"]]
        step.synchronize()
        gc.collect()
        counts.append([step.group.ping(rank, 5)["arrays"] for rank in (0, 1)])
    assert counts[1:] == [counts[1]] * 3
    assert step.group.ping(1, 5)["step"] == 4


def test_small_results_come_with_later_steps(two):
    step = two(donate_state=False)
    state, batch = handmade.arguments(2)
    args = flat(state, batch)
    losses = [step(args)[2] for _ in range(3)]
    for _ in range(8):
        step(args)[2].block_until_ready()
    step.synchronize()
    assert losses[0]._host is not None
    assert len({float(x) for x in losses}) == 1
    assert not step._came


def test_a_step_that_fails_names_its_worker(two):
    step = two()
    state, batch = handmade.arguments(2)
    first = step(flat(state, batch))
    step.group.call(1, "free", [first[1].uid]).result()
    later = step([*first[:2], batch["x"], batch["y"]])  # Asked for, and the call returns.
    with pytest.raises(WorkerError, match=r"worker 1: failed in step 1: .*w1.*is not here; fix"):
        step.synchronize()
    with pytest.raises(WorkerError, match="worker 1: failed in step 1"):
        np.asarray(later[0])
    with pytest.raises(WorkerError, match="worker 1: failed in step 1"):
        step(flat(state, batch))


def test_steps_have_the_numbers_of_the_run(two):
    step = two()
    state, batch = handmade.arguments(2)
    step(flat(state, batch))
    step.count_steps_from(27)
    first = step(flat(state, batch))
    step.synchronize()
    assert step.group.call(1, "waits_for").result() == "done with all before step 28"
    again = step([*first[:2], batch["x"], batch["y"]])
    with pytest.raises(DeletedArrayError, match="was donated to step 28"):
        np.asarray(first[0])
    step.group.call(1, "free", [again[1].uid]).result()
    step([*again[:2], batch["x"], batch["y"]])
    with pytest.raises(WorkerError, match=r"worker 1: failed in step 29: .*is not here"):
        step.synchronize()


def test_a_worker_that_is_killed(two):
    step = two()
    state, batch = handmade.arguments(2)
    step(flat(state, batch))
    step.synchronize()
    step.group.kill(0)
    step(flat(state, batch))
    with pytest.raises(WorkerError, match=r"worker 0: failed in step 1: .*is gone"):
        step.synchronize()
    with pytest.raises(WorkerError, match="worker 0: is gone"):
        step.group.ping(0, 5)


def test_wrong_arguments_and_closed_workers(two):
    step = two()
    state, batch = handmade.arguments(2)
    args = flat(state, batch)
    with pytest.raises(ArgumentMismatchError, match=r"batch\['x'\]: shape \[8, 8\].*\[16, 8\]"):
        step([*args[:2], batch["x"][:8], batch["y"]])
    loss = step(args)[2]
    step.close()
    with pytest.raises(WorkerError, match="mlp_step: its workers were closed"):
        step(args)
    with pytest.raises(WorkerError, match="were closed"):
        loss.block_until_ready()


def test_batches_may_be_placed_ahead_and_overwritten(two):
    step = two(donate_state=False)
    state, batch = handmade.arguments(2)
    args = flat(state, batch)
    expected = float(step(args)[2])
    x, y = (step.put(i, args[i]) for i in (2, 3))
    np.testing.assert_array_equal(x, batch["x"])
    np.testing.assert_array_equal(y, batch["y"])
    assert float(step([*args[:2], x, y])[2]) == expected
    loss = step(args)[2]
    batch["x"][:] = 1e6
    assert float(loss) == expected


def train(w, x):
    loss, g = jax.value_and_grad(lambda w: jax.numpy.mean((x @ w["a"] @ w["b"]) ** 2))(w)
    return jax.tree.map(lambda p, q: p - 0.1 * q, w, g), loss


@pytest.mark.parametrize("submeshes", [[(1, 2)], [(1, 1), (1, 1)]])
def test_one_array_given_twice(submeshes):
    """On one mesh copies are used up; what goes to another mesh is sent."""
    w = {name: np.full((8, 8), 0.1, np.float32) for name in ("a", "b")}
    x = np.ones((8, 8), np.float32)
    method = alpa_mlir.PipeshardParallel(submeshes=submeshes, num_micro_batches=1)
    placement = Placement(((0, 1),) if len(submeshes) == 1 else ((0,), (1,)))
    step = alpa_mlir.compile(
        train, w, x, cluster="cpu-test", method=method, workers=ThreadWorkers(placement)
    )
    first, _ = step(w, x)
    expected = jax.jit(train)({"a": np.asarray(first["a"]), "b": np.asarray(first["a"])}, x)
    second, loss = step({"a": first["a"], "b": first["a"]}, x)
    np.testing.assert_allclose(loss, expected[1], rtol=1e-5)
    np.testing.assert_allclose(second["b"], expected[0]["b"], rtol=1e-5)
    assert first["a"].is_deleted()
    step(second, x)
    step.loaded.synchronize()
    step.close()


def test_user_api(tmp_path):
    w = {"a": np.full((8, 16), 0.1, np.float32), "b": np.full((16, 4), 0.1, np.float32)}
    x = np.ones((8, 8), np.float32)
    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=2)
    workers = ThreadWorkers(Placement(((0, 1), (2, 3))))
    function = alpa_mlir.parallelize(train, cluster="cpu-test", method=method, workers=workers)
    got, loss = function(w, x)
    assert isinstance(loss, DistributedArray)
    expected, expected_loss = jax.jit(train)(w, x)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(got["a"], expected["a"], rtol=1e-5)
    compiled = function.compile(w, x)
    assert "worker 1: devices 2 3" in compiled.as_text()
    start = compiled.init(lambda: jax.tree.map(lambda x: 0.1 * jax.numpy.ones_like(x), w))
    assert isinstance(start["b"], DistributedArray)
    assert start["b"].workers == (1,)
    np.testing.assert_array_equal(compiled(start, x)[1], loss)
    assert start["b"].is_deleted()
    compiled.plan.save(tmp_path)
    with contextlib.closing(alpa_mlir.load(tmp_path, workers=workers)) as step:
        np.testing.assert_array_equal(step(w, x)[1], loss)
    with pytest.raises(alpa_mlir.DevicesError, match="devices of this process and workers"):
        alpa_mlir.load(tmp_path, workers=workers, devices=jax.devices())
    compiled.close()


def test_a_send_that_fails_names_its_worker(two, monkeypatch):
    step = two()
    state, batch = handmade.arguments(2)
    step(flat(state, batch))
    step.synchronize()

    def send(transport, *_):
        if transport.rank == 1:
            raise ValueError("no way out")
        return real(transport, *_)

    real = transfers._send_pieces
    monkeypatch.setattr(transfers, "_send_pieces", send)
    step(flat(state, batch))
    with pytest.raises(WorkerError, match=r"worker 1: failed in step 1: .*ValueError: no way out"):
        step.synchronize()


def test_state_that_is_held_otherwise(two):
    """A result in another sharding than the argument's is held anew; elsewhere it is refused."""
    worker = two().group._threads[0].worker
    (place,) = worker._bound.state_places
    mesh, tensor, _ = worker._inputs.form(place)
    whole = dataclasses.replace(tensor, spec=((), ()))
    target = worker._bound.shardings[place.value]
    value = np.arange(tensor.shape[0] * tensor.shape[1], dtype=np.float32).reshape(tensor.shape)
    array = jax.device_put(value, named_sharding(target.mesh, whole))
    worker._store.keep({70: {(mesh, whole, None): array}, 71: {(mesh + 1, tensor, None): array}})
    found = worker._inputs.state(place, StepRequest(0, {0: Held(70)}, {}))
    assert found.sharding == target
    np.testing.assert_array_equal(found, value)
    for uid, said in ((71, r"array 71 is not on mesh 0 as .*"), (72, "array 72 is not here")):
        with pytest.raises(WorkerError, match=rf"worker 0: state\['w0'\]: {said}"):
            worker._inputs.state(place, StepRequest(0, {0: Held(uid)}, {}))
    with pytest.raises(WorkerError, match=r"worker 0: state\['w0'\]: has not been given"):
        worker._inputs.state(place, StepRequest(0, {}, {}))
