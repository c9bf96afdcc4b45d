"""Laws that all simulated steps obey."""

from __future__ import annotations

import itertools

import pytest
from alpa_mlir.simulator import simulate
from alpa_mlir.simulator.engine import FairShares, LinkUse, Route
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import pipeline
from simulated import cluster

small = st.floats(0.0, 3.0)
plans = st.builds(
    pipeline,
    st.lists(st.tuples(small, small, small), min_size=1, max_size=5),
    st.integers(1, 6),
    st.sampled_from(["1f1b", "gpipe"]),
)
clusters = st.builds(
    cluster,
    hosts=st.just(5),
    devices=st.sampled_from([1, 2, 4]),
    intra=st.tuples(st.floats(1e5, 1e8), st.floats(0, 1)),
    inter=st.tuples(st.floats(1e5, 1e8), st.floats(0, 1)),
    nics=st.integers(1, 2),
)
TINY = 1e-9


@settings(max_examples=60, deadline=None)
@given(plans, clusters, st.booleans())
def test_laws_of_every_step(plan, described, share):
    timeline = simulate(plan, described, share_links=share)
    for mesh, line in enumerate(timeline.spans):
        for a, b in itertools.pairwise(line):
            assert a.end <= b.start + TINY, "a mesh does one thing at a time"
        use = timeline.meshes[mesh]
        total = use.busy_seconds + use.waiting_seconds + use.idle_seconds
        assert total == pytest.approx(timeline.step_seconds)
    runs = {
        (s.stage, s.what, s.micro_batch): s
        for line in timeline.spans
        for s in line
        if s.stage is not None
    }
    assert len(runs) == len(plan.stages) * (2 * plan.num_micro_batches + 1)
    ends = {(t.source, t.target, t.tag): t for t in timeline.transfers}
    stages, count = len(plan.stages), plan.num_micro_batches
    assert len(ends) == 2 * (stages - 1) * count
    for s in range(stages - 1):
        for m in range(count):
            down = ends[s, s + 1, s * count + m]
            back = ends[s + 1, s, (stages + s) * count + m]
            assert runs[s, "forward", m].end <= down.start + TINY
            assert down.end <= runs[s + 1, "forward", m].start + TINY
            assert runs[s + 1, "backward", m].end <= back.start + TINY
            assert back.end <= runs[s, "backward", m].start + TINY
    for t in timeline.transfers:
        assert t.end - t.start >= t.alone_seconds - TINY * max(1.0, t.end)
        if not share:
            assert t.end <= timeline.step_seconds
    for use in timeline.memory:
        assert use.bytes.min() >= 0
        assert use.peak_bytes >= use.bytes.max() > 0
    check_links(timeline, share)


def check_links(timeline, share):
    """Bytes over a link are those of its transfers, and never more than it can carry."""
    routes = timeline.work.routes
    for traffic in timeline.links:
        parts = [
            (t, u.bytes, routes[t.reshard].latency_seconds)
            for t in timeline.transfers
            for u in routes[t.reshard].links
            if u.link == traffic.link
        ]
        assert sum(size for _, size, _ in parts) == pytest.approx(traffic.bytes)
        if not share:
            continue
        for begin in {t.start + latency for t, _, latency in parts}:
            for end in {t.end for t, _, _ in parts}:
                inside = sum(
                    n for t, n, latency in parts if t.start + latency >= begin and t.end <= end
                )
                assert inside <= traffic.bandwidth * max(0.0, end - begin) * (1 + 1e-6) + 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.05, 1)), min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    ),
)
def test_fair_shares(uses):
    """No link carries more than it can, and what holds a transfer back is a full link."""
    routes = []
    for i, links in enumerate(uses):
        parts = tuple(LinkUse(n, 1.0, p) for n, p in dict(links).items())
        routes.append(Route((i, 9), 0.0, max(use.bytes for use in parts), parts))
    flowing = range(len(routes))
    rates = FairShares(routes).rates(flowing)
    load = dict.fromkeys("abcd", 0.0)
    for i, route in enumerate(routes):
        for use in route.links:
            load[use.link] += rates[i] * use.bytes / route.flow_seconds
    assert max(load.values()) <= 1 + 1e-9
    for i, route in enumerate(routes):
        full = any(load[use.link] > 1 - 1e-9 for use in route.links)
        assert rates[i] == pytest.approx(1.0) or full
    assert set(FairShares(routes, share_links=False).rates(flowing).values()) == {1.0}
