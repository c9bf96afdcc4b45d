"""Simulated steps of meshes with several stages, split backwards and sums over meshes."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import handmade_sums
import pytest
from alpa_mlir import Cluster, errors
from alpa_mlir.simulator import simulate
from alpa_mlir.simulator.costs import function_seconds
from alpa_mlir.simulator.engine import plan_routes
from pipelines import with_order
from simulated import cluster

NET = cluster(intra=(1e30, 0.5))  # Half a second a hop.
SECONDS = {"forward_seconds": 1.0, "backward_seconds": 2.0, "update_seconds": 0.0}


def plan_with(micro_batches=1, **predicted):
    plan = handmade_sums.as_plan(*handmade_sums.plan_fields(micro_batches))
    stages = tuple(
        dataclasses.replace(stage, predicted=MappingProxyType({**SECONDS, **predicted}))
        for stage in plan.stages
    )
    return dataclasses.replace(plan, stages=stages, cluster={})


def spans(timeline, mesh):
    return [(timeline.name_of(s), s.start, s.end) for s in timeline.spans[mesh] if s.end > s.start]


def test_a_step_by_hand():
    """The sum waits for the last mesh's part, then goes back along chains of devices."""
    timeline = simulate(plan_with(), NET)
    assert spans(timeline, 0) == [
        ("forward 0 of stage 0", 0, 1),
        ("forward 0 of stage 1", 1, 2),
        ("wait", 2, 5),
        ("backward_input 0 of stage 1", 5, 6),
        ("backward 0 of stage 0", 6, 8),
        ("backward_weight 0 of stage 1", 8, 9),
    ]
    assert spans(timeline, 1) == [("wait", 0, 2.5), ("backward 0", 2.5, 4.5), ("wait", 4.5, 11)]
    assert spans(timeline, 2) == [("wait", 0, 9.5)]
    assert timeline.step_seconds == 11
    sums = [(t.source, t.target, t.start, t.end) for t in timeline.transfers if t.tag == 500]
    assert sums == [(2, 0, 0, 1), (1, 0, 4.5, 5.5), (0, 1, 9, 11), (0, 2, 9, 9.5)]
    text = timeline.as_text()
    assert "B backward, W its part for the weights" in text
    row = next(line for line in text.splitlines() if line.startswith("mesh   0 |F"))
    assert "W" in row


def test_memory_of_sums(tmp_path):
    timeline = simulate(plan_with(2), NET)
    for use in timeline.memory:
        assert use.bytes.min() >= 0
    last = timeline.memory[2]
    assert last.peak_bytes == 8  # The state and a sum; what came for the sum takes its place.
    assert last.at(timeline.step_seconds) == 4
    # Mesh 0 keeps the new weights (8x16 and 16x8, columns on two devices) and the sum.
    assert timeline.memory[0].at(timeline.step_seconds) == 4 * (8 * 8 + 16 * 4) + 4
    assert "backward_weight" in timeline.to_svg(tmp_path / "t.svg").read_text()
    assert timeline.to_chrome_trace(tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("predicted", "parts"),
    [
        ({}, (1.0, 1.0)),
        ({"backward_input_flops": 3.0, "backward_weight_flops": 1.0}, (1.5, 0.5)),
        ({"backward_input_seconds": 1.25, "backward_weight_seconds": 4.0}, (1.25, 4.0)),
    ],
)
def test_seconds_of_a_split_backward(predicted, parts):
    seconds = function_seconds(plan_with(**predicted))
    assert (seconds[1, "backward_input"], seconds[1, "backward_weight"]) == parts
    assert seconds[0, "backward"] == 2.0


def test_scratch_of_a_split_backward():
    """As much as the whole one has, if the plan does not say what each part has."""
    base = simulate(plan_with(), NET).memory[0]
    more = simulate(plan_with(backward_scratch_bytes=1e6), NET).memory[0]
    cut = simulate(
        plan_with(backward_scratch_bytes=1e6, backward_weight_scratch_bytes=5.0), NET
    ).memory[0]
    for time, added in ((5.5, 1e6), (7, 1e6), (8.5, 1e6)):
        assert more.at(time) == base.at(time) + added
    assert cut.at(8.5) == base.at(8.5) + 5


def test_sums_that_never_meet_are_named():
    plan = plan_with()
    second = plan.programs[1]
    lines = tuple(op for op in second.instructions if op.op != "all_reduce")
    lost = dataclasses.replace(second, instructions=lines)
    programs = (plan.programs[0], lost, plan.programs[2])
    with pytest.raises(errors.PlanMismatchError, match="instruction 9: slot 41 holds nothing"):
        simulate(with_order(dataclasses.replace(plan, programs=programs)), NET)


def test_transfers_on_another_cluster():
    """They take so many times as long as their steps do in the simulated network."""
    text = {"hosts": {"count": 1, "devices": 8, "device_type": "d"}, **described(0.5)}
    plan = dataclasses.replace(
        plan_with(),
        cluster=text,
        reshards=tuple(dataclasses.replace(r, seconds=3.0) for r in plan_with().reshards),
    )
    assert {t.alone_seconds for t in simulate(plan).transfers} == {3.0}
    slower = Cluster.from_dict({**text, **described(1.0)})
    assert {route.seconds for route in plan_routes(plan, slower)} == {6.0}


def described(latency):
    link = {"bandwidth": 1e30, "latency": latency}
    kind = {"memory_bytes": 10**9, "memory_bandwidth": 1e12, "peak_flops": {"float32": 1e12}}
    return {
        "name": "net",
        "device_types": {"d": kind},
        "links": {"intra_host": link, "inter_host": link},
    }
