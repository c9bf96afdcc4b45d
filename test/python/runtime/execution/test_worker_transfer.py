"""Transfers between meshes whose devices several workers hold bring every device its shard."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from alpa_runtime.execution import transfers as wires_module
from alpa_runtime.execution.reshard_steps import CopyTile, Incoming, Outgoing, execute, reshard_part
from alpa_runtime.execution.transfers import PointToPoint, bind_shards, is_carried
from alpa_runtime.plan.reshard import ReshardInfo, held_boxes, read_step
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.transport.device import connect_devices
from alpa_runtime.transport.interface import connect_in_process
from device_ends import Ends, backend, cupy, eventually, is_quiet  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_plans import STRATEGIES, reshard
from test_runtime_transfer import SHAPES, SPECS, mesh_of

COPIES = 3


def run(info: ReshardInfo, meshes, owners, values, has=None) -> dict[int, list[np.ndarray]]:
    """The shards on the target's devices after each of some copies of `values`.

    Args:
        has: the device backends of each worker, if devices reach each other.
    """
    size = max(owners.values()) + 1
    ends = connect_in_process(size)
    held = held_boxes(info.source, meshes[info.source_mesh])
    itemsize = values[0].itemsize

    def worker(rank: int):
        own = {n: jax.devices()[n] for n, owner in owners.items() if owner == rank}
        part = reshard_part(info, owners, rank, itemsize)
        errors: list[BaseException] = []
        device = None if has is None else connect_devices(ends[rank], size, has[rank], backend)
        wires = PointToPoint(ends[rank], errors.append, device)
        send, finish, reads, targets = bind_shards(info, meshes, part, own, wires)
        wires.open(own)
        if has is not None and all(has) and is_carried(values[0].dtype):
            assert not wires._senders  # Nothing goes through the host.
        shards = [
            [
                jax.device_put(value[tuple(slice(*span) for span in held[n])], device)
                for n, device in own.items()
                if n in held
            ]
            for value in values
        ]
        tickets = [t for i, mine in enumerate(shards) for t in send(list(mine), i)]
        made = [finish(list(mine) if reads else None, i) for i, mine in enumerate(shards)]
        for ticket in tickets:
            ticket.wait()
        found = [dict(zip(targets, map(np.asarray, m), strict=True)) for m in made]
        return found, wires, device, errors

    with ThreadPoolExecutor(size) as pool:
        done = list(pool.map(worker, range(size)))
    assert not any(end.failed() for end in ends)
    # Nobody waits for what is handed on: its bytes are there before its sender knows that.
    eventually(lambda: all(device is None or is_quiet(device) for _, _, device, _ in done))
    for end in ends:
        end.close()
    for _, wires, _, errors in done:
        wires.close()
        assert not errors
    return {
        device: [made[i][device] for i in range(len(values))]
        for made, *_ in done
        for device in made[0]
    }


def check(info: ReshardInfo, meshes, owners, values, has=None):
    held = held_boxes(info.source, meshes[info.source_mesh])
    wanted = held_boxes(info.target, meshes[info.target_mesh])
    found = run(info, meshes, owners, values, has)
    assert set(found) == set(wanted)
    for i, value in enumerate(values):
        for device, expected in execute(info.steps, held, wanted, value).items():
            assert found[device][i].dtype == value.dtype
            assert found[device][i].tobytes() == expected.tobytes()


@pytest.fixture(autouse=True)
def small_messages(monkeypatch):
    """The smallest messages go from device to device, too."""
    monkeypatch.setattr(wires_module, "LEAST_DEVICE_BYTES", 1)


# What the workers of a transfer have: nothing, the same device backend, or only some of them.
DEVICE_BACKENDS = [None, [["nccl"]] * 4, [["nccl"], ["nccl"], [], ["nccl"]]]
IDS = ["host", "devices", "some devices"]


@pytest.mark.parametrize("has", DEVICE_BACKENDS, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_pair_of_shardings(has, data):
    draw = data.draw
    first, second = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(SHAPES))
    meshes = mesh_of(first, 0), mesh_of(second, 4)
    source = TensorSpec((8, 4), "float32", draw(st.sampled_from(SPECS)))
    target = TensorSpec((8, 4), "float32", draw(st.sampled_from(SPECS)))
    info = reshard(source, meshes[0], target, meshes[1], draw(st.sampled_from(STRATEGIES)))
    ranks = st.integers(0, draw(st.integers(0, 3)))
    owners = {d: draw(ranks) for mesh in meshes for d in mesh.devices}
    values = [np.random.default_rng(i).random((8, 4), np.float32) for i in range(COPIES)]
    check(info, meshes, owners, values, has)


@pytest.mark.parametrize("has", DEVICE_BACKENDS[:2], ids=IDS[:2])
@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "int8", "complex64", "int4"])
def test_types_scalars_and_nothing(dtype, has):
    meshes = mesh_of((1, 2), 0), mesh_of((2, 2), 4)
    owners = {0: 0, 1: 1, 4: 1, 5: 1, 6: 2, 7: 3}
    for shape in ((4,), (), (0, 4)):
        tensor = TensorSpec(shape, dtype, ((),) * len(shape))
        info = reshard(tensor, meshes[0], tensor, meshes[1], "broadcast")
        check(info, meshes, owners, [np.ones(shape, jax.numpy.dtype(dtype))], has)


@pytest.mark.parametrize("has", DEVICE_BACKENDS, ids=IDS)
def test_chains_are_handed_on_in_pieces(has):
    """Over three workers; a fourth is reached by a send of its own."""
    meshes = MeshInfo((1,), ("x",), (0,)), MeshInfo((4,), ("x",), (4, 5, 6, 7))
    tensor = TensorSpec((3, 300_001), "float32", ((), ()))
    lines = [
        "tile 0 on 0 [0:3,0:300001]",
        "broadcast 1-3 = 0 to 4 5 6 chunks 5",
        "send 4 = 2 to 7",
    ]
    info = ReshardInfo(0, tensor, 1, tensor, "", 0.0, tuple(map(read_step, lines)))
    owners = {0: 0, 4: 1, 5: 2, 6: 2, 7: 3}
    parts = [reshard_part(info, owners, rank, 4) for rank in range(4)]
    assert parts[0].first == (Outgoing(0, 1, 0, 5, (0, 4)),)
    assert parts[0].then == ()
    assert parts[1].then == (
        Incoming(0, 0, 0, 5, (0, 4), (Outgoing(0, 2, 1, 5, (4, 5)),)),
        CopyTile(1, 0),
    )
    assert parts[2].then == (
        Incoming(0, 1, 1, 5, (4, 5), (Outgoing(0, 3, 2, 1, (5, 7)),)),
        CopyTile(2, 0),
        CopyTile(3, 2),
    )
    assert parts[3].then == (Incoming(0, 2, 2, 1, (5, 7)), CopyTile(4, 0))
    values = np.random.default_rng(0).random((3, 300_001), np.float32)
    check(info, meshes, owners, [values, values + 1], has)


@pytest.mark.parametrize(("count", "by_device"), [(1 << 14, True), ((1 << 14) - 1, False)])
def test_small_messages_go_through_the_host(count, by_device, monkeypatch):
    monkeypatch.setattr(wires_module, "LEAST_DEVICE_BYTES", 1 << 16)
    two = Ends(["nccl"], ["nccl"])
    wires = PointToPoint(two.host[0], two.errors[0].append, two.device[0])
    wires.sender(0, Outgoing(0, 1, 0, 1, (0, 1)), (count,), np.dtype("float32"))
    assert bool(two.device[0]._peers[1].outlets) == by_device
    assert bool(wires._senders) != by_device
    wires.close()
    two.close()


def test_a_worker_gets_data_once():
    """Each of its devices wants the whole; parts cross once, whatever gathers them."""
    meshes = mesh_of((1, 2), 0), mesh_of((2, 2), 4)
    source, target = TensorSpec((8,), "float32", (("y",),)), TensorSpec((8,), "float32", ((),))
    owners = {0: 0, 1: 0, 4: 1, 5: 1, 6: 2, 7: 2}
    info = reshard(source, meshes[0], target, meshes[1], "all_gather")
    messages = [
        op
        for rank in range(3)
        for op in reshard_part(info, owners, rank, 4).then
        if isinstance(op, Incoming)
    ]
    # Eight quarters of halves arrive; each worker of the target sends the other its four.
    assert len(messages) == 16
    for has in DEVICE_BACKENDS:
        check(info, meshes, owners, [np.arange(8, dtype=np.float32)], has)


@pytest.mark.parametrize("has", DEVICE_BACKENDS[:2], ids=IDS[:2])
def test_received_memory_is_not_used_again_while_an_array_lives(has):
    meshes = mesh_of((1, 1), 0), mesh_of((1, 1), 4)
    tensor = TensorSpec((1 << 16,), "float32", ((),))
    info = reshard(tensor, meshes[0], tensor, meshes[1], "send")
    values = [np.full(tensor.shape, i, np.float32) for i in range(8)]
    found = run(info, meshes, {0: 0, 4: 1}, values, has)
    for i, array in enumerate(found[4]):
        assert (array == i).all()
