"""Bounds of transfers: no plan goes below them."""

from __future__ import annotations

import numpy as np
import pytest
from alpa_mlir.simulator.transfer_network import Network, least_seconds, least_slow_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_by_hand import chains, network, sends
from transfers.cases import Case, Seeded, random_case


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
