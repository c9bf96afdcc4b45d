"""The simulated network of transfers, beside formulas and small steps of time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from alpa_mlir.simulator.transfer_network import Network
from alpa_runtime.plan.reshard import (
    AllGather,
    Broadcast,
    SendTile,
    Tile,
    box_elements,
    place_tiles,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_by_hand import FAR, NEAR, network, steps_of
from transfers.cases import make_cluster


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


def check_against_small_steps(net, steps):
    assert net.simulate(steps, 1).seconds == pytest.approx(
        small_steps(net, steps, 1, 200), rel=0.015
    )


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
    check_against_small_steps(net, steps)


def rack_network():
    """Racks of two hosts of two devices; the racks' adapters are shared by a host each."""
    link = {"bandwidth": 10.0, "latency": 0.3}
    links = {"intra_host": link, "inter_host": {"bandwidth": 8.0, "latency": 0.5}}
    cluster = make_cluster([{"count": 4, "devices": 2, "nics": 2, "links": links}])
    cluster["racks"] = {"hosts": 2, "nics": 2}
    cluster["links"] = {**links, "inter_rack": {"bandwidth": 6.0, "latency": 1.5}}
    return Network(cluster)


def test_messages_between_racks_take_the_links_of_hosts_and_racks():
    net = rack_network()
    assert [place.rack for place in net.places] == [0] * 4 + [1] * 4
    assert seconds("tile 0 on 0 [0:60]\n send 1 = 0 to 2", net) == pytest.approx(60 / 4 + 0.5)
    far = "tile 0 on 0 [0:60]\n send 1 = 0 to 4"
    assert seconds(far, net) == pytest.approx(60 / 3 + 1.5)
    # From the other device of the host: the same adapter of the rack.
    same = f"{far}\n tile 2 on 1 [0:60]\n send 3 = 2 to 6"
    assert seconds(same, net) == pytest.approx(120 / 3 + 1.5)
    other = f"{far}\n tile 2 on 2 [0:60]\n send 3 = 2 to 6"
    assert seconds(other, net) == pytest.approx(60 / 3 + 1.5)


def test_racks_agree_with_small_steps_of_time():
    net = rack_network()
    steps = steps_of(
        """
        tile 0 on 0 [0:120]
        tile 1 on 1 [120:200]
        broadcast 2-4 = 0 to 3 4 6 chunks 4
        broadcast 5-6 = 1 to 5 7 chunks 3
        send 7 = 1 to 2
        send 8 = 7 to 6
        """
    )
    check_against_small_steps(net, steps)
