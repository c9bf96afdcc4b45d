"""The reference executor, the simulated network and the bounds of transfers between meshes.

None of them knows the planner; here they are tried on plans made by hand and by two simple planners
of the test's own.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import sys
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from alpa_mlir import errors
from alpa_mlir.plan_reshard import (
    AllGather,
    Broadcast,
    SendTile,
    Tile,
    box_elements,
    intersect,
    place_tiles,
    read_step,
)
from alpa_mlir.reshard import Network, execute, least_seconds, least_slow_bytes, prove
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmark"))
from reshard_cases import Case, Seeded, make_cluster, random_case

NEAR = {"bandwidth": 100.0, "latency": 0.5}
FAR = {"bandwidth": 10.0, "latency": 2.0}


def network(*hosts, near=NEAR, far=FAR):
    """Hosts of (devices, adapters)."""
    links = {"intra_host": near, "inter_host": far}
    return Network(
        make_cluster([{"count": 1, "devices": d, "nics": n, "links": links} for d, n in hosts])
    )


def steps_of(text):
    return [read_step(line.strip()) for line in text.strip().splitlines()]


class Maker:
    """Makes plans step by step."""

    def __init__(self):
        self.steps, self.count, self.cuts = [], 0, {}

    def cut(self, device, box):
        if (device, box) not in self.cuts:
            self.cuts[device, box] = self.count
            self.steps.append(Tile(self.count, device, box))
            self.count += 1
        return self.cuts[device, box]

    def send(self, tile, device):
        self.steps.append(SendTile(self.count, tile, device))
        self.count += 1
        return self.count - 1

    def broadcast(self, tile, devices, chunks):
        tiles = tuple(range(self.count, self.count + len(devices)))
        self.steps.append(Broadcast(tiles, tile, tuple(devices), chunks))
        self.count += len(tiles)


def pieces_of(source, target):
    """(box, its holders, devices that want it) for each piece that some device lacks or keeps."""
    for held in sorted(set(source.values())):
        holders = [device for device, box in source.items() if box == held]
        for wanted in sorted(set(target.values())):
            box = intersect(held, wanted)
            if box is not None:
                yield box, holders, [device for device, b in target.items() if b == wanted]


def sends(case):
    """Every device gets what it wants straight from a holder, one on its host if there is any."""
    source, target = case.boxes(case.source), case.boxes(case.target)
    host = [place.host for place in Network(case.cluster).places]
    maker = Maker()
    for box, holders, wanting in pieces_of(source, target):
        for device in wanting:
            holder = min(holders, key=lambda h: (h != device, host[h] != host[device], h))
            tile = maker.cut(holder, box)
            if holder != device:
                maker.send(tile, device)
    return maker.steps


def chains(case, chunks=4):
    """A chain from holders on each host to all that lack the piece there; one for other hosts."""
    source, target = case.boxes(case.source), case.boxes(case.target)
    host = [place.host for place in Network(case.cluster).places]
    maker = Maker()
    for box, holders, wanting in pieces_of(source, target):
        ways = {}
        for device in wanting:
            if device in holders:
                maker.cut(device, box)
                continue
            near = [h for h in holders if host[h] == host[device]]
            ways.setdefault(near[0] if near else holders[0], []).append(device)
        for holder, devices in ways.items():
            order = sorted(devices, key=lambda d: (host[d] != host[holder], host[d], d))
            maker.broadcast(maker.cut(holder, box), order, chunks)
    return maker.steps


@pytest.mark.parametrize("name", ["executor", "network", "bounds"])
def test_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(f"alpa_mlir.reshard.{name}"))
    assert failed == 0
    assert tried > 0


# --- The executor ---------------------------------------------------------------------------------

GATHERED = """
    tile 0 on 0 [0:2,0:4]
    tile 1 on 1 [2:4,0:4]
    broadcast 2-3 = 0 to 4 5 chunks 3
    send 4 = 1 to 5
    send 5 = 1 to 6
    all_gather 6-7 = 3 5
"""
SOURCE = {0: ((0, 2), (0, 4)), 1: ((2, 4), (0, 4))}
TARGET = {4: ((0, 2), (0, 4)), 5: ((0, 4), (0, 4)), 6: ((0, 4), (0, 4))}


def test_steps_make_the_target_shards():
    # Device 5 has its second half twice if what was gathered counts beside what was sent.
    steps = steps_of(
        GATHERED.replace("    send 4 = 1 to 5\n", "")
        .replace("5 = 1 to 6", "4 = 1 to 6")
        .replace("6-7 = 3 5", "5-6 = 3 4")
    )
    values = np.arange(16.0).reshape(4, 4)
    results = execute(steps, SOURCE, TARGET, values)
    np.testing.assert_array_equal(results[4], values[:2])
    for device in (5, 6):
        np.testing.assert_array_equal(results[device], values)
    prove(steps, SOURCE, TARGET)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", "float16"])
def test_bytes_are_copied_whatever_the_dtype(dtype):
    # Not-a-number, minus zero and the poison's own pattern are bytes like others.
    item = np.dtype(dtype).itemsize
    raw = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, 8 * item, np.uint8)
    raw[:item] = 0xA5 if dtype != "bool" else 1
    values = raw.view(dtype)
    steps = steps_of("tile 0 on 0 [0:8]\n broadcast 1-2 = 0 to 1 2 chunks 3")
    results = execute(steps, {0: ((0, 8),)}, {1: ((0, 8),), 2: ((0, 8),)}, values)
    for result in results.values():
        assert result.tobytes() == values.tobytes()


def test_scalars_move():
    steps = steps_of("tile 0 on 0 []\n send 1 = 0 to 1")
    prove(steps, {0: ()}, {1: ()})
    assert execute(steps, {0: ()}, {1: ()}, np.array(7))[1] == 7


WHOLE = {0: ((0, 4),)}


@pytest.mark.parametrize(
    ("text", "target", "error"),
    [
        ("tile 0 on 1 [0:4]", {1: ((0, 4),)}, "step 0 .*: device 1 is not in the source mesh"),
        ("tile 0 on 0 [0:5]", {0: ((0, 5),)}, r"step 0 .*: device 0 holds \[0:4\] only"),
        (
            "tile 0 on 0 [0:3]\n send 1 = 0 to 1",
            {1: ((0, 4),)},
            r"device 1: parts of \[0:4\] are missing",
        ),
        ("tile 0 on 0 [0:4]", {1: ((0, 4),)}, r"device 1: parts of \[0:4\] are missing"),
        (
            "tile 0 on 0 [0:4]\n tile 1 on 0 [1:2]\n send 2 = 0 to 1\n send 3 = 1 to 1",
            {1: ((0, 4),)},
            r"device 1: \[1:2\] is written twice",
        ),
        (
            "tile 0 on 0 [0:4]\n send 1 = 0 to 1",
            {1: ((0, 2),)},
            r"tile 1 on device 1 is \[0:4\], which lies partly within the device's shard \[0:2\]",
        ),
        ("send 0 = 1 to 1", {1: ((0, 4),)}, "tile 1 is not there yet"),
    ],
)
def test_a_plan_that_does_not_fill_the_target_is_refused(text, target, error):
    with pytest.raises(errors.PlanMismatchError, match=error):
        prove(steps_of(text), WHOLE, target)


def test_what_a_device_only_passes_on_does_not_count():
    steps = steps_of(
        "tile 0 on 0 [0:2]\n tile 1 on 0 [2:4]\n send 2 = 0 to 1\n send 3 = 1 to 1\nsend 4 = 3 to 2"
    )
    prove(steps, WHOLE, {1: ((0, 2),), 2: ((2, 4),)})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from([sends, chains]), st.data())
def test_plans_are_proven_and_damaged_ones_are_not(seed, planner, data):
    case = random_case(Seeded(seed))
    source, target = case.boxes(case.source), case.boxes(case.target)
    steps = planner(case)
    prove(steps, source, target)
    if len(set(source.values())) == 1:
        return  # Whoever sends what to whom, it is the whole tensor.
    # Another piece of the tensor than the right one is cut.
    cuts = [i for i, step in enumerate(steps) if isinstance(step, Tile)]
    at = data.draw(st.sampled_from(cuts))
    others = sorted({step.box for step in steps if isinstance(step, Tile)} - {steps[at].box})
    if others:
        wrong = dataclasses.replace(steps[at], box=data.draw(st.sampled_from(others)))
        with pytest.raises(errors.PlanMismatchError):
            prove([*steps[:at], wrong, *steps[at + 1 :]], source, target)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_a_small_proof_says_what_the_whole_tensor_does(seed):
    case = random_case(Seeded(seed), sizes=(1_000, 20_000))
    source, target = case.boxes(case.source), case.boxes(case.target)
    values = np.arange(prod(case.shape), dtype=np.int32).reshape(case.shape)
    for device, result in execute(chains(case), source, target, values).items():
        box = tuple(slice(*interval) for interval in target[device])
        np.testing.assert_array_equal(result, values[box])


# --- The network ----------------------------------------------------------------------------------


def seconds(text, net, item_bytes=1):
    return net.simulate(steps_of(text), item_bytes).seconds


def test_a_message_takes_its_latency_and_its_bytes():
    net = network((2, 1), (1, 1))
    assert seconds("tile 0 on 0 [0:50]\n send 1 = 0 to 1", net, 4) == pytest.approx(0.5 + 2)
    assert seconds("tile 0 on 0 [0:50]\n send 1 = 0 to 2", net) == pytest.approx(2 + 5)
    assert seconds("tile 0 on 0 [0:50]", net) == 0
    assert seconds("tile 0 on 0 []\n send 1 = 0 to 1", net) == pytest.approx(0.51)


def test_the_slower_end_counts():
    slow = {"bandwidth": 5.0, "latency": 3.0}
    links = [{"intra_host": NEAR, "inter_host": far} for far in (FAR, slow)]
    net = Network(
        make_cluster([{"count": 1, "devices": 1, "nics": 1, "links": at} for at in links])
    )
    for a, b in ((0, 1), (1, 0)):
        assert seconds(f"tile 0 on {a} [0:50]\n send 1 = 0 to {b}", net) == pytest.approx(13)


def test_devices_share_the_adapters_of_their_host():
    # Devices 0 and 1 share adapter 0 of two; device 2 has adapter 1.
    net = network((3, 2), (3, 3), far={"bandwidth": 12.0, "latency": 0.0})
    one = "tile 0 on 0 [0:60]\n send 1 = 0 to 3"
    assert seconds(one, net) == pytest.approx(60 / 4)  # The receiver has a third of its host.
    assert seconds(f"{one}\n tile 2 on 2 [0:60]\n send 3 = 2 to 5", net) == pytest.approx(15)
    both = f"{one}\n tile 2 on 1 [0:60]\n send 3 = 2 to 5"
    assert seconds(both, net) == pytest.approx(60 / 3)


def test_links_carry_both_directions_at_full_speed():
    net = network((1, 1), (1, 1))
    there = "tile 0 on 0 [0:50]\n send 1 = 0 to 1"
    assert seconds(f"{there}\n tile 2 on 1 [0:50]\n send 3 = 2 to 0", net) == pytest.approx(7)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(1, 40), st.integers(1, 500))
def test_a_chain_by_itself_takes_what_pipelines_take(near, chunks, size):
    # Each hop is within a host or between two.
    hosts = [0]
    for same in near:
        hosts.append(hosts[-1] + (not same))
    counts = [hosts.count(host) for host in range(hosts[-1] + 1)]
    net = network(*((count, 1) for count in counts))
    links = [NEAR if a == b else FAR for a, b in pairwise(hosts)]
    tiles, devices = f"1-{len(near)}", " ".join(str(i + 1) for i in range(len(near)))
    text = f"tile 0 on 0 [0:{size}]\n broadcast {tiles} = 0 to {devices} chunks {chunks}"
    chunk = [size / chunks / link["bandwidth"] for link in links]
    expected = sum(chunk) + (chunks - 1) * max(chunk) + sum(link["latency"] for link in links)
    assert seconds(text, net) == pytest.approx(expected)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_gather_by_itself_takes_what_rings_take(count):
    net = network((count, 1))
    cuts = [f"tile {i} on {i} [{i * 100}:{i * 100 + 100}]" for i in range(count)]
    gather = f"all_gather {count}-{2 * count - 1} = 0-{count - 1}"
    assert seconds("\n".join([*cuts, gather]), net) == pytest.approx((count - 1) * 1.5)


def test_a_step_waits_for_what_it_reads():
    net = network((3, 1), near={"bandwidth": 10.0, "latency": 0.0})
    times = net.simulate(
        steps_of("tile 0 on 0 [0:10]\n send 1 = 0 to 1\n send 2 = 1 to 2\n send 3 = 0 to 2"), 1
    )
    # Both of the first second flow out of device 0, which halves them.
    assert times.step_seconds == pytest.approx((0, 2, 3, 2))
    assert times.link_bytes["device 0 out"] == 20
    assert times.slow_bytes == 0


def small_steps(net, steps, item_bytes, count):
    """Seconds by brute force: in `count` small steps of time for the longest message."""
    placed = place_tiles(steps)
    messages = []  # [route, bytes left, messages that it waits for, when it arrived]
    made = {}
    for step in steps:
        match step:
            case Tile():
                made[step.tile] = []
            case SendTile() | Broadcast():
                tiles = step.tiles if isinstance(step, Broadcast) else (step.tile,)
                chunks = step.chunks if isinstance(step, Broadcast) else 1
                size = box_elements(placed[step.source].box) * item_bytes / chunks
                last = [made[step.source]] * chunks
                here = placed[step.source].device
                for tile in tiles:
                    own, before = [], []
                    for chunk in range(chunks):
                        route = net.route(here, placed[tile].device)
                        own.append(len(messages))
                        messages.append([route, size, [*last[chunk]], list(before), None])
                        before = [own[-1]]
                    last = [[number] for number in own]
                    here = placed[tile].device
                made.update(dict.fromkeys(tiles, own))
            case AllGather():
                raise NotImplementedError
    if not messages:
        return 0.0
    dt = max(m[1] / min(net.bandwidths[link] for link in m[0].links) for m in messages) / count
    now = 0.0
    while any(m[4] is None for m in messages):
        flowing = [
            m
            for m in messages
            if m[4] is None
            and all((messages[i][4] or now + 1) <= now for i in m[2])
            and all(messages[i][4] is not None for i in m[3])
        ]
        shares = brute_shares([m[0].links for m in flowing], net.bandwidths)
        now += dt
        for m, share in zip(flowing, shares, strict=True):
            m[1] -= share * dt
            if m[1] <= 1e-9:
                m[4] = now + m[0].latency_seconds
    return max(m[4] for m in messages)


def brute_shares(routes, bandwidths):
    """Raise all flows together in little steps, and stop those on links that are full."""
    level, step = [0.0] * len(routes), min(bandwidths) / 500
    growing = set(range(len(routes)))
    while growing:
        for i in sorted(growing):
            level[i] += step
        load = {}
        for links, rate in zip(routes, level, strict=True):
            for link in links:
                load[link] = load.get(link, 0.0) + rate
        growing = {
            i for i in growing if all(load[k] + step <= bandwidths[k] * 1.001 for k in routes[i])
        }
    return level


def test_shared_chains_agree_with_small_steps_of_time():
    link = {"bandwidth": 10.0, "latency": 0.3}
    net = network((3, 2), (3, 1), near=link, far={"bandwidth": 8.0, "latency": 0.5})
    steps = steps_of(
        """
        tile 0 on 0 [0:120]
        tile 1 on 1 [120:200]
        broadcast 2-4 = 0 to 3 4 5 chunks 4
        broadcast 5-6 = 1 to 4 5 chunks 3
        send 7 = 1 to 2
        send 8 = 7 to 3
        """
    )
    assert net.simulate(steps, 1).seconds == pytest.approx(
        small_steps(net, steps, 1, 200), rel=0.015
    )


# --- The bounds -----------------------------------------------------------------------------------


def brute_slow_bytes(case):
    """Element by element, on a tensor that has one element for each part."""
    host = [place.host for place in Network(case.cluster).places]
    source, target = case.boxes(case.source), case.boxes(case.target)

    def on_host(boxes, number):
        mask = np.zeros(case.shape, bool)
        for device, box in boxes.items():
            if host[device] == number:
                mask[tuple(slice(*interval) for interval in box)] = True
        return mask

    lacking = [on_host(target, n) & ~on_host(source, n) for n in range(max(host) + 1)]
    return int(np.sum(lacking)) * case.item_bytes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_no_plan_goes_below_the_bounds(seed):
    case = random_case(Seeded(seed), sizes=(100, 100_000))
    net = Network(case.cluster)
    boxes = case.boxes(case.source), case.boxes(case.target)
    slow = least_slow_bytes(net, *boxes, case.item_bytes)
    assert slow == brute_slow_bytes(case)
    least = least_seconds(net, *boxes, case.item_bytes)
    for planner in (sends, chains):
        times = net.simulate(planner(case), case.item_bytes)
        assert times.slow_bytes >= slow * (1 - 1e-9)
        assert times.seconds >= least * (1 - 1e-6)
    # Each host is on one chain for each piece, which enters it once.
    assert times.slow_bytes == pytest.approx(slow)


def bound(net, source, target):
    return least_seconds(net, source, target, 1)


def test_the_bound_of_simple_transfers():
    net = network((4, 1), (4, 2))
    whole = ((0, 1000),)
    # One byte a second of ten, once, and one latency.
    assert bound(net, {0: whole}, {4: whole}) == pytest.approx(1000 / 5 + 2)
    # Two adapters take it in for two devices, which share it within their host.
    assert bound(net, {0: whole}, {4: whole, 7: whole}) == pytest.approx(1000 / 10 + 2)
    assert bound(net, {0: whole}, {4: whole, 5: whole}) == pytest.approx(1000 / 5 + 2)
    # Within a host: out of the holder, into the devices; two holders share the work.
    assert bound(net, {0: whole}, {1: whole, 2: whole}) == pytest.approx(10.5)
    halves = {1: ((0, 500),), 2: ((500, 1000),)}
    assert bound(net, {0: whole}, halves) == pytest.approx(10.5)
    assert bound(net, {0: whole, 3: whole}, halves) == pytest.approx(5.5)
    # What is there already does not move.
    assert bound(net, {0: whole}, {0: whole}) == 0
    assert bound(net, {0: whole}, {0: ((0, 10),), 1: whole}) == pytest.approx(10.5)


def test_the_bound_of_plans_with_the_least_slow_bytes():
    # Device 2 has a neighbour with the whole; from the other host it can have a half as well.
    net = network((1, 1), (2, 1), near={"bandwidth": 10.0, "latency": 0.0})
    whole = ((0, 1000),)
    holders = {0: whole, 1: whole}
    assert bound(net, holders, {2: whole}) == pytest.approx(100)
    any_plan = least_seconds(net, holders, {2: whole}, 1, least_slow=False)
    assert any_plan == pytest.approx((1000 + 2 * 10) / 20)


def test_the_bound_counts_what_a_host_passes_on():
    # Each of three hosts wants the whole: one that has it can hand it on to the next.
    whole = ((0, 1000),)
    net = network((1, 1), (1, 1), (1, 1))
    assert bound(net, {0: whole}, {1: whole, 2: whole}) == pytest.approx(102)
    # Two devices cannot feed each other: it has to come from outside, over one adapter.
    far = {"bandwidth": 10.0, "latency": 0.0}
    near = {"bandwidth": 1000.0, "latency": 0.0}
    pair = network((1, 1), (2, 2), near=near, far=far)
    assert bound(pair, {0: whole}, {1: whole, 2: whole}) == pytest.approx(100)


def test_cases_are_of_all_kinds():
    cases: list[Case] = [random_case(Seeded(seed)) for seed in range(200)]
    networks = [Network(case.cluster) for case in cases]
    assert {len(case.cluster["hosts"]) for case in cases} >= {1, 2, 3}
    assert {len(side.shape) for case in cases for side in (case.source, case.target)} == {1, 2, 3}
    assert {len(case.shape) for case in cases} == {1, 2, 3, 4}
    slow = [
        least_slow_bytes(net, case.boxes(case.source), case.boxes(case.target), case.item_bytes)
        for case, net in zip(cases, networks, strict=True)
    ]
    assert 100 < sum(count > 0 for count in slow) < 190
    overlapping = [set(case.source.devices) & set(case.target.devices) for case in cases]
    assert 3 < sum(map(bool, overlapping)) < 60
