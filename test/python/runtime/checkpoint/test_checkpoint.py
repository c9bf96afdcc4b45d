"""Checkpoints: what is saved comes back, in any sharding."""

from __future__ import annotations

import shutil
import threading

import alpa_mlir
import handmade
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import steps
import zoo
from alpa_mlir import (
    ArgumentTypeError,
    CheckpointError,
    DamagedCheckpointError,
    PipeshardParallel,
    ShardParallel,
    latest_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from alpa_runtime.arrays import StackedArray
from alpa_runtime.checkpoint import folders, save_restore, shards, steps_in
from alpa_runtime.checkpoint.manifest import Manifest, chunk_shape, chunks_of, folder_names
from alpa_runtime.execution.host_shards import Filling
from flax.training.train_state import TrainState
from hypothesis import HealthCheck, given, settings
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from same_bits import bits, check_same

MESH = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))


def sharded(x, *spec, mesh=MESH):
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))


def make_state():
    params = {"a": {"k": sharded(jnp.arange(64.0).reshape(8, 8), "y", "x")}, "h/w": jnp.ones(1)}
    tx = optax.chain(optax.clip(1.0), optax.adam(1e-3))
    piece = [sharded(jnp.full((1, 4), i), None, ("x", "y")[i]) for i in range(2)]
    return {
        "train": TrainState.create(apply_fn=None, params=params, tx=tx),
        "containers": ([], (), None, {}),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), (2, 3)),
        "empty": jnp.zeros((0, 4)),
        "bfloat16": sharded(jnp.arange(8, dtype=jnp.bfloat16), "x"),
        "uint4": jnp.arange(6, dtype=jnp.uint4),
        "float8": jnp.ones(3, ml_dtypes.float8_e4m3),
        "complex": jnp.full((2,), 1 + 2j),
        "bool": np.array([True, False]),
        "numpy": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "numbers": (3, 2.5, True, 1j),
        "scalar": sharded(np.float32(7)),
        "stack": StackedArray(piece),
    }


def test_everything_comes_back(tmp_path):
    state = make_state()
    assert latest_checkpoint(tmp_path / "run") is None
    saving = save_checkpoint(tmp_path / "run", state, step=7)
    assert saving.wait() == tmp_path / "run" / "7"
    assert saving.done()
    assert latest_checkpoint(tmp_path / "run") == 7
    found = restore_checkpoint(tmp_path / "run", state)
    check_same(state, found)
    assert [type(x) for x in found["numbers"]] == [int, float, bool, complex]
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True):
        if isinstance(x, jax.Array):
            assert x.sharding == y.sharding
        elif isinstance(x, StackedArray):
            assert [p.sharding for p in x.pieces] == [p.sharding for p in y.pieces]
        else:
            assert type(y) is type(x)


def test_without_a_target_containers_are_those_that_were_saved(tmp_path):
    state = make_state()
    save_checkpoint(tmp_path, state, step=0).wait()
    with pytest.raises(CheckpointError, match=r"TrainState keeps more.*fix: .*\(folder, state\)"):
        restore_checkpoint(tmp_path)
    del state["train"]
    state["optax"] = optax.adam(1e-3).init({"w": jnp.ones(3)})
    save_checkpoint(tmp_path, state, step=1).wait()
    found = restore_checkpoint(tmp_path)
    check_same(state, found)
    arrays = [x for x in jax.tree.leaves(found) if not isinstance(x, bool | int | float | complex)]
    assert all(isinstance(x, np.ndarray) or x.dtype in (state["key"].dtype, state["keys"].dtype)
               for x in arrays)  # fmt: skip
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), jnp.asarray(x).dtype), state)
    shapes["numpy"] = state["numpy"]
    assert bits(restore_checkpoint(tmp_path, shapes)["key"]) == bits(state["key"])
    assert restore_checkpoint(tmp_path, shapes, step=1)["numbers"][0] == 3


def test_orbax_reads_it(tmp_path):
    import orbax.checkpoint as ocp

    state = make_state()
    for name in ("uint4", "float8", "numpy"):  # Types that orbax or JAX without x64 do not have.
        del state[name]
    state["numbers"] = state["numbers"][:3]
    save_checkpoint(tmp_path, state, step=3).wait()
    state["stack"] = sharded(np.asarray(state["stack"]), None, "y")
    with ocp.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(tmp_path / "3" / "default", state)
    check_same(state, found)
    assert found["stack"].sharding == state["stack"].sharding
    with ocp.CheckpointManager(tmp_path, item_handlers=ocp.StandardCheckpointHandler()) as manager:
        assert manager.latest_step() == 3
        check_same(state, manager.restore(3, args=ocp.args.StandardRestore(state)))


def random_mesh(draw):
    shape = draw(st.sampled_from([(1, 1), (1, 2), (2, 2), (2, 4), (4, 1), (8, 1), (1, 3), (3, 2)]))
    first = draw(st.integers(0, 8 - shape[0] * shape[1]))
    devices = jax.devices()[first : first + shape[0] * shape[1]]
    return Mesh(np.array(devices).reshape(shape), ("x", "y"))


@st.composite
def held(draw, shape):
    """An array of this shape in a random sharding, perhaps in pieces along a dimension."""
    values = np.arange(np.prod(shape)).reshape(shape).astype(np.float32)

    def place(x):
        mesh = random_mesh(draw)
        sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        spec, free = [], ["x", "y"]
        for size in x.shape:
            axes = [a for a in draw(st.permutations(free)) if draw(st.booleans())]
            while size % np.prod([sizes[a] for a in axes], dtype=int):
                axes.pop()
            free = [a for a in free if a not in axes]
            spec.append(tuple(axes) or None)
        return sharded(x, *spec, mesh=mesh)

    axis = draw(st.integers(0, len(shape) - 1))
    cuts = sorted(draw(st.sets(st.integers(1, shape[axis] - 1), max_size=2)))
    if cuts or axis:
        parts = np.split(np.moveaxis(values, axis, 0), cuts)
        return StackedArray([place(x) for x in parts], axis)
    return place(values)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_sharding_to_any_other(tmp_path, data):
    shape = data.draw(st.sampled_from([(6, 8), (12,), (4, 2, 6), (8, 3)]))
    source, target = data.draw(held(shape)), data.draw(held(shape))
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    save_checkpoint(folder, [source], step=1).wait()
    (found,) = restore_checkpoint(folder, [target])
    check_same([found], [source])
    assert isinstance(found, StackedArray) == isinstance(target, StackedArray)
    if isinstance(found, StackedArray):
        assert (found.axis, found.sizes) == (target.axis, target.sizes)


@settings(deadline=None)
@given(st.data())
def test_boxes_are_whole_chunks(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    parts = [data.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0])) for n in shape]
    limit = data.draw(st.integers(1, 500))
    boxes = [
        tuple((i * n // p, (i + 1) * n // p) for i, n, p in zip(place, shape, parts, strict=True))
        for place in np.ndindex(*parts)
    ]
    chunk = chunk_shape(shape, boxes, 4, limit)
    seen = [index for box in boxes for index in chunks_of(box, chunk)]
    assert len(seen) == len(set(seen))
    free = all(p == 1 for p in parts)
    assert np.prod(chunk) * 4 <= max(4, limit * (2 if free else 10**9))


def test_large_arrays_are_cut_into_chunks(tmp_path, monkeypatch):
    """Who wants a part reads the chunks of that part only."""
    from alpa_runtime.checkpoint import shards

    monkeypatch.setattr(shards, "chunk_shape", lambda *args: chunk_shape(*args, limit=256))
    w = jnp.arange(101.0 * 8).reshape(101, 8)
    save_checkpoint(tmp_path, {"w": w}, step=1).wait()
    chunks = sorted((tmp_path / "1" / "default" / "w" / "c").rglob("0"))
    assert len(chunks) > 10
    check_same({"w": w}, restore_checkpoint(tmp_path))


def test_steps_go_on_while_it_is_written(tmp_path, monkeypatch):
    """The state is copied: the next step may use it up at once."""
    release, writing = threading.Event(), save_restore.write_shards

    def slow(*args):
        assert release.wait(60)
        return writing(*args)

    monkeypatch.setattr(save_restore, "write_shards", slow)
    step = steps.two_stage_step(first=(2, 2), second=(1, 2))
    state, batch = handmade.arguments(2)
    state, _, _ = step(state, batch)
    kept = jax.tree.map(lambda x: np.array(x), state)
    saving = save_checkpoint(tmp_path, state, step=1)
    for _ in range(3):
        state, _, _ = step(state, batch)
    assert not saving.done()
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(TimeoutError, match="step 1"):
        saving.wait(timeout=0.01)
    release.set()
    saving.wait()
    check_same(kept, restore_checkpoint(tmp_path))


def test_restored_under_another_plan(tmp_path):
    """The loss curve goes on as if nothing had happened."""
    state, batch = handmade.arguments(2)
    first = steps.two_stage_step(2, first=(1, 2), second=(1, 2))
    losses = []
    for number in range(4):
        if number == 2:
            save_checkpoint(tmp_path, state, step=number).wait()
        state, loss, _ = first(state, batch)
        losses.append(float(loss))
    for meshes, count in (((1, 2), (1, 2)), 2), (((2, 2), (1, 4)), 2), (((1, 1), (1, 1)), 2):
        step = steps.two_stage_step(count, first=meshes[0], second=meshes[1])
        state = restore_checkpoint(tmp_path, step)
        for index, x in enumerate((state["w0"], state["w1"])):
            # The very sharding: the step takes it without a copy, and uses it up.
            assert x.sharding is step.loaded.sharding_of_input(index)
        given = state
        found = []
        for _ in range(2):
            state, loss, _ = step(state, batch)
            found.append(float(loss))
        assert given["w0"].is_deleted()
        np.testing.assert_allclose(found, losses[2:], rtol=1e-5)
    state = restore_checkpoint(tmp_path)
    for expected in losses[2:]:
        state, loss, _ = jax.jit(handmade.reference_step)(state, batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_states_of_nnx_are_nested_dictionaries(tmp_path):
    nnx = pytest.importorskip("flax.nnx")

    def objects(seed):
        model = nnx.Linear(8, 8, rngs=nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def train(model, optimizer, x):
        loss, g = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, g)
        return loss

    x = np.ones((16, 8), np.float32)
    saved, others = objects(0), objects(1)
    nnx.jit(train)(*saved, x)
    state = nnx.state(saved)
    save_checkpoint(tmp_path / "state", state, step=1).wait()
    save_checkpoint(tmp_path / "dictionaries", nnx.to_pure_dict(state), step=1).wait()
    method = ShardParallel(mesh_shape=(2, 4))
    step = alpa_mlir.compile(train, *others, x, cluster="cpu-test:2", method=method)
    for folder in ("state", "dictionaries"):
        found = restore_checkpoint(tmp_path / folder, nnx.state(others))
        assert isinstance(found, nnx.State)
        nnx.update(others, found)
        check_same(nnx.to_pure_dict(nnx.state(others)), nnx.to_pure_dict(state))
        placed = restore_checkpoint(tmp_path / folder, step)
        for each, of in zip(placed, saved, strict=True):
            check_same(each, nnx.to_pure_dict(nnx.state(of)))
    assert isinstance(restore_checkpoint(tmp_path / "state"), nnx.State)


@pytest.mark.slow
def test_stacks_of_layers_are_stored_whole(tmp_path):
    """What two stages hold in pieces is one array to a plan on one mesh, and the other way."""
    model = zoo.get("layer_stack")
    state, batch = model.init()

    def compiled(method):
        return alpa_mlir.compile(model.step, state, batch, cluster="cpu-test", method=method)

    two = compiled(PipeshardParallel(submeshes=[(1, 1), (1, 1)]))
    one = compiled(ShardParallel(mesh_shape=(1, 2)))
    first, _ = two(state, batch)
    bias = first["params"]["layers"]["bias"]
    assert isinstance(bias, StackedArray)
    save_checkpoint(tmp_path, first, step=1).wait()
    in_pieces, whole = restore_checkpoint(tmp_path, two), restore_checkpoint(tmp_path, one)
    check_same(first, in_pieces)
    check_same(first, whole)
    found = in_pieces["params"]["layers"]["bias"]
    assert [p.sharding for p in found.pieces] == [p.sharding for p in bias.pieces]
    assert isinstance(whole["params"]["layers"]["bias"], jax.Array)
    save_checkpoint(tmp_path, whole, step=2).wait()
    check_same(first, restore_checkpoint(tmp_path, two))
    losses = [step(given, batch)[1]["loss"] for step, given in ((two, in_pieces), (one, whole))]
    np.testing.assert_allclose(losses[0], two(first, batch)[1]["loss"])
    # On one mesh a sum over both devices adds what each of them rounded to bfloat16.
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-3)


def test_the_last_are_kept(tmp_path):
    for step in (1, 2, 10, 3):
        save_checkpoint(tmp_path, [step], step=step, keep=2).wait()
    assert steps_in(tmp_path) == [3, 10]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "3"]
    assert restore_checkpoint(tmp_path, step=3) == [3]
    with pytest.raises(
        CheckpointError, match="no checkpoint of step 2; fix: there are steps 3, 10"
    ):
        restore_checkpoint(tmp_path, step=2)
    with pytest.raises(CheckpointError, match="keep=0"):
        save_checkpoint(tmp_path, [1], step=11, keep=0)
    (tmp_path / "7").mkdir()  # Not of ours: neither read nor deleted.
    (tmp_path / "7" / "mine").write_text("")
    save_checkpoint(tmp_path, [1], step=12, keep=1).wait()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["12", "7"]


def test_numbers_take_the_type_of_what_they_meet(tmp_path):
    save_checkpoint(tmp_path, [3, 0.5, 1 << 40], step=1).wait()
    target = [np.zeros((), np.int8), np.zeros((), np.float32), 0]
    check_same(restore_checkpoint(tmp_path, target), [np.int8(3), np.float32(0.5), 1 << 40])
    target[2] = np.zeros((), np.int32)
    with pytest.raises(CheckpointError, match=r"\[2\]: 1099511627776 does not fit int32"):
        restore_checkpoint(tmp_path, target)
    save_checkpoint(tmp_path, [np.int32(3)], step=2).wait()
    assert restore_checkpoint(tmp_path, [0]) == [3]


def test_two_that_save_at_the_same_time(tmp_path, monkeypatch):
    """One may look for leftovers when the other has made its folder, and not locked it yet."""
    locking, seen = folders.fcntl.flock, []

    def lock(handle, how):
        if not seen:
            seen.append(handle)
            save_checkpoint(tmp_path, [1], step=1).wait()
        return locking(handle, how)

    monkeypatch.setattr(folders.fcntl, "flock", lock)
    save_checkpoint(tmp_path, [2], step=2).wait()
    assert seen
    assert restore_checkpoint(tmp_path, step=1) == [1]
    assert restore_checkpoint(tmp_path, step=2) == [2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"]


def test_folders_of_leaves():
    names = [["w"], ["a/b"], ["a"], ["W"], ["../w"], [".x"], ["_METADATA"], ["x" * 300], ["leaf_2"]]
    found = folder_names([[(text, False) for text in keys] for keys in names])
    assert found == ["w", "a/b", *(f"leaf_{i}" for i in range(2, 8)), "leaf_8"]


@pytest.mark.slow
def test_many_bytes(tmp_path, monkeypatch):
    """More than may be in flight at once."""
    monkeypatch.setattr(shards, "MAX_BYTES_AHEAD", 1 << 20)
    state = {str(i): np.random.default_rng(i).standard_normal((700, 600)) for i in range(40)}
    save_checkpoint(tmp_path, state, step=1).wait()
    check_same(state, restore_checkpoint(tmp_path, state))
    manifest = Manifest.load(tmp_path / "1")
    assert len(manifest.leaves) == 40


def test_steps_may_be_numbers_of_arrays(tmp_path):
    for step in (np.int64(3), jnp.int32(4), np.array(5)):
        save_checkpoint(tmp_path, [int(step)], step=step, keep=np.int32(2)).wait()
    assert steps_in(tmp_path) == [4, 5]
    assert restore_checkpoint(tmp_path, step=np.int64(4)) == [4]
    with pytest.raises(ArgumentTypeError, match="step='4' is a str; fix: give a whole"):
        restore_checkpoint(tmp_path, step="4")


def test_arrays_of_other_byte_orders(tmp_path):
    saved = {"big": np.arange(3, dtype=">f4"), "bool": np.bool_(True), "f": np.ones((2, 3)).T}
    save_checkpoint(tmp_path, saved, step=1).wait()
    found = restore_checkpoint(tmp_path)
    for name, value in saved.items():
        np.testing.assert_array_equal(found[name], value)
    assert found["big"].dtype == np.float32


def test_keys_go_to_plans_of_one_mesh(tmp_path):
    """Their data, of one dimension more, lie as the plan says."""

    def train(state, batch):
        key, used = jax.random.split(state["key"])

        def loss(w):
            return jnp.mean((batch @ w + jax.random.normal(used, (4,))) ** 2)

        value, gradient = jax.value_and_grad(loss)(state["w"])
        return {"w": state["w"] - gradient, "key": key}, value

    state = {"w": np.ones((4, 4), np.float32), "key": jax.random.key(3)}
    batch = np.ones((8, 4), np.float32)
    method = ShardParallel(mesh_shape=(2, 2))
    step = alpa_mlir.compile(train, state, batch, cluster="cpu-test", method=method)
    state, _ = step(state, batch)
    save_checkpoint(tmp_path, state, step=1).wait()
    expected = step(state, batch)
    found = step(restore_checkpoint(tmp_path, step), batch)
    assert bits(found[0]["key"]) == bits(expected[0]["key"])
    assert bits(found[1]) == bits(expected[1])


def test_parts_are_placed_as_they_are_read(tmp_path, monkeypatch):
    """Few are read ahead, whatever there is in all; a damaged one leaves what was there."""
    state = [np.full((4, 256), i, np.float32) for i in range(9)]
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    by_rows = NamedSharding(mesh, PartitionSpec("x"))
    held = [jax.device_put(x, by_rows) for x in state]
    save_checkpoint(tmp_path, held, step=1).wait()
    part = 2 * 256 * 4
    begun, placed, ahead = [], [], []

    def counted(begin, size, leaf):
        def now():
            begun.append(size)
            return begin()

        return work(now, size, leaf)

    def put(self, box, data):
        placed.append(data.nbytes)
        ahead.append(len(begun) - len(placed))
        return putting(self, box, data)

    work, putting = shards._Work, Filling.put
    monkeypatch.setattr(shards, "MAX_BYTES_AHEAD", 3 * part)
    monkeypatch.setattr(shards, "_Work", counted)
    monkeypatch.setattr(Filling, "put", put)
    check_same(restore_checkpoint(tmp_path, held), state)
    assert placed == [part] * 18
    assert max(ahead) == 2  # And the one that is being placed.
    path = tmp_path / "1" / "default" / "5" / "c" / "1" / "0"
    path.write_bytes(bytes(4) + path.read_bytes()[4:])
    placed.clear()
    with pytest.raises(DamagedCheckpointError, match=r"\[5\]: .*Digest mismatch"):
        restore_checkpoint(tmp_path, held)
    assert 10 <= len(placed) < 18
    check_same(held, state)


def test_what_was_restored_can_be_used_up(tmp_path):
    """Devices that hold the same part do not share memory in which one of them computes."""
    x = np.arange(1 << 16, dtype=np.float32)
    save_checkpoint(tmp_path, {"x": x}, step=1).wait()
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    like = {
        "x": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec()))
    }
    found = restore_checkpoint(tmp_path, like)["x"]
    for _ in range(3):
        found = jax.jit(lambda v: v + 1, donate_argnums=0)(found)
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, x + 3)
