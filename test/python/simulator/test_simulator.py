"""Simulated steps worked out by hand, what they are shown as, and wrong plans."""

from __future__ import annotations

import dataclasses
import json
from xml.etree import ElementTree

import pipelines
import pytest
from alpa_mlir import errors
from alpa_mlir.simulator import simulate
from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import RecvOp, SendOp
from pipelines import ACTIVATION, WEIGHT, pipeline, with_order
from reshard_plans import reshard
from simulated import cluster

ACTIVATION_BYTES, WEIGHT_BYTES = 1e6, 2e6


FAST = cluster(intra=(1e30, 0.0))


def spans(timeline, mesh):
    return [
        (s.what[0], s.micro_batch, round(s.start, 6), round(s.end, 6)) for s in timeline.spans[mesh]
    ]


def test_1f1b_by_hand():
    """Two stages, forward 1 s, backward 2 s, update 1 s, no time on the links."""
    timeline = simulate(pipeline([(1, 2, 1)] * 2, 3), FAST)
    first = [
        ("f", 0, 0, 1),
        ("f", 1, 1, 2),
        ("w", None, 2, 4),
        ("b", 0, 4, 6),
        ("f", 2, 6, 7),
        ("b", 1, 7, 9),
        ("w", None, 9, 10),
        ("b", 2, 10, 12),
        ("u", None, 12, 13),
    ]
    second = [
        ("w", None, 0, 1),
        ("f", 0, 1, 2),
        ("b", 0, 2, 4),
        ("f", 1, 4, 5),
        ("b", 1, 5, 7),
        ("f", 2, 7, 8),
        ("b", 2, 8, 10),
        ("u", None, 10, 11),
    ]
    assert spans(timeline, 0) == first
    assert spans(timeline, 1) == second
    assert timeline.step_seconds == pytest.approx(13)
    assert [m.busy_seconds for m in timeline.meshes] == pytest.approx([10, 10])
    assert [m.waiting_seconds for m in timeline.meshes] == pytest.approx([3, 1])
    assert [m.idle_seconds for m in timeline.meshes] == pytest.approx([0, 2])
    assert timeline.bubble_fraction == pytest.approx(6 / 26)
    # 3 micro-batches of 3 GFLOP on two stages.
    assert timeline.tflops_per_device == pytest.approx(3 * 2 * 3e9 / 13 / 2 / 1e12)


def test_gpipe_by_hand():
    """(B + S - 1) forwards, then as many backwards, then the update."""
    timeline = simulate(pipeline([(1, 2, 1)] * 3, 4, "gpipe"), FAST)
    assert timeline.step_seconds == pytest.approx(6 * 1 + 6 * 2 + 1)


def test_transfer_seconds_by_hand():
    """One micro-batch: forward, send, forward, backward, send back, backward, update."""
    slow = cluster(intra=(1e6, 0.25))  # 1.25 s for an activation
    timeline = simulate(pipeline([(1, 2, 1)] * 2, 1), slow)
    assert timeline.step_seconds == pytest.approx(1 + 1.25 + 1 + 2 + 1.25 + 2 + 1)
    assert [(t.source, t.target, t.bytes) for t in timeline.transfers] == [
        (0, 1, ACTIVATION_BYTES),
        (1, 0, ACTIVATION_BYTES),
    ]
    for transfer in timeline.transfers:
        assert transfer.alone_seconds == pytest.approx(1.25)
        assert transfer.end - transfer.start == pytest.approx(1.25)


def test_transfers_of_two_meshes_share_a_host_link():
    """Stages 0 and 1 on the first host send at once to stages 2 and 3 on the second."""
    net = cluster(hosts=2, devices=2, intra=(1e12, 0.0), inter=(1e6, 0.5))
    plan = crossing_plan()
    together, apart = simulate(plan, net), simulate(plan, net, share_links=False)
    assert [t.end - t.start for t in together.transfers] == pytest.approx([2.5, 2.5])
    assert [t.end - t.start for t in apart.transfers] == pytest.approx([1.5, 1.5])
    assert together.links[0].utilization == pytest.approx(2e6 / (1e6 * together.step_seconds))
    # With an adapter for each device they do not meet; each has half of the host's bandwidth.
    two = cluster(hosts=2, devices=2, intra=(1e12, 0.0), inter=(2e6, 0.5), nics=2)
    assert [t.end - t.start for t in simulate(plan, two).transfers] == pytest.approx([1.5, 1.5])
    assert "adapter 1" in simulate(plan, two).as_text()


def test_transfers_of_one_pair_follow_each_other():
    """Activations leave every second and take 2.5 s each, of which 0.5 s are latency."""
    timeline = simulate(pipeline([(1, 9, 1), (0, 9, 1)], 3, "gpipe"), cluster(intra=(5e5, 0.5)))
    down = [t for t in timeline.transfers if t.source == 0]
    assert [t.start for t in down] == pytest.approx([1, 2, 3])
    assert [t.end for t in down] == pytest.approx([3.5, 5.5, 7.5])


def transfer(meshes, pair, source=ACTIVATION, target=ACTIVATION):
    return reshard(source, meshes[pair[0]], target, meshes[pair[1]], "broadcast", pair)


def crossing_plan() -> Plan:
    """Meshes 0 and 1 each make one activation and send it to meshes 2 and 3."""
    base = pipeline([(1, 1, 1)] * 4, 1)
    programs = []
    for mesh, program in enumerate(base.programs):
        weight, batch, forward = (
            program.instructions[0],
            base.programs[0].instructions[1],
            next(op for op in program.instructions if getattr(op, "function", "") == "forward"),
        )
        if mesh < 2:
            run = dataclasses.replace(forward, inputs=(0, 1), outputs=(2,))
            ops = (weight, batch, run, SendOp(2, mesh + 2, mesh, mesh))
        else:
            run = dataclasses.replace(forward, inputs=(0, 1), outputs=(2,))
            ops = (weight, RecvOp(1, mesh - 2, mesh - 2, mesh - 2, ACTIVATION), run)
        programs.append(dataclasses.replace(program, instructions=ops))
    pairs = [(0, 2), (1, 3)]
    ways = tuple(transfer(base.meshes, pair) for pair in pairs)
    inputs = tuple(dataclasses.replace(info, carried_by=None) for info in base.inputs)
    tables = {"inputs": inputs, "outputs": (), "reshards": ways}
    return with_order(dataclasses.replace(base, programs=tuple(programs), **tables))


def test_a_mesh_of_several_devices_has_their_links_side_by_side(monkeypatch):
    """Two devices send their halves to four, and get them back: as fast as two links."""
    split = dataclasses.replace(ACTIVATION, spec=(("x",),))
    monkeypatch.setattr(pipelines, "ACTIVATION", split)
    plan = pipeline([(1, 2, 1)] * 2, 1, devices=[[0, 1], [2, 3, 4, 5]])
    quarters = transfer(plan.meshes, (0, 1), split, split)
    halves = transfer(plan.meshes, (1, 0), split, split)
    plan = dataclasses.replace(plan, reshards=(quarters, halves))
    timeline = simulate(plan, cluster(intra=(1e6, 0.0)))
    assert [t.end - t.start for t in timeline.transfers] == pytest.approx([0.5, 0.5])
    assert {t.link: t.bytes for t in timeline.links} == {
        **{f"device {d} out": 5e5 for d in (0, 1)},
        **{f"device {d} in": 5e5 for d in (0, 1)},
        **{f"device {d} out": 2.5e5 for d in (2, 3, 4, 5)},
        **{f"device {d} in": 2.5e5 for d in (2, 3, 4, 5)},
    }


def test_replicas_are_handed_on_in_a_chain():
    """Every receiver takes all bytes in, in chunks: the last one three chunks after the first."""
    plan = pipeline([(1, 2, 1)] * 2, 1, devices=[[0], [1, 2, 3, 4]])
    down = simulate(plan, cluster(intra=(1e6, 0.1))).transfers[0]
    assert down.end - down.start == pytest.approx(1 + 3 * 0.25 + 4 * 0.1)


def test_update_functions_share_the_seconds_by_bytes():
    plan = pipeline([(1, 1, 4)], 1)
    stage = plan.stages[0]
    update = stage.functions["update_0"]
    more = dataclasses.replace(update, inputs=(WEIGHT,), outputs=())
    functions = {**stage.functions, "update_1": more}
    program = plan.programs[0]
    run = next(op for op in program.instructions if getattr(op, "function", "") == "update_0")
    extra = dataclasses.replace(run, function="update_1", inputs=run.inputs[:1], outputs=())
    position = program.instructions.index(run)
    ops = (*program.instructions[:position], extra, *program.instructions[position:])
    plan = dataclasses.replace(
        plan,
        stages=(dataclasses.replace(stage, functions=functions),),
        programs=(dataclasses.replace(program, instructions=ops),),
    )
    durations = {s.what: s.end - s.start for s in simulate(with_order(plan), FAST).spans[0]}
    assert durations["update_0"] == pytest.approx(3)  # three weights of four
    assert durations["update_1"] == pytest.approx(1)


def test_memory_by_hand():
    """One stage: weight and batch, a result, the sum to which gradients add, the new weight."""
    timeline = simulate(pipeline([(1, 2, 1)], 2, "gpipe"), FAST)
    use = timeline.memory[0]
    weight, batch = WEIGHT_BYTES, ACTIVATION_BYTES
    assert use.at(0.5) == weight + batch + batch  # with the first forward's result
    assert use.at(1.5) == weight + 2 * batch + batch
    assert use.at(3) == weight + 2 * batch + weight  # the first gradient
    assert use.at(5) == weight + batch + weight  # the second one is added to it
    assert use.at(6.5) == 2 * weight  # the new weight takes the old one's place
    assert use.peak_bytes == 2 * weight + 2 * batch
    assert use.capacity_bytes == 10**9
    assert use.predicted_bytes is None


def test_a_buffer_lives_until_its_transfer_has_ended():
    """The activation is freed at once, but is being sent for a second more."""
    timeline = simulate(pipeline([(1, 2, 1)] * 2, 1), cluster(intra=(1e6, 0.0)))
    use = timeline.memory[0]
    assert use.at(1.5) == WEIGHT_BYTES + 2 * ACTIVATION_BYTES
    assert use.at(2.5) == WEIGHT_BYTES + ACTIVATION_BYTES


def test_what_the_search_foresaw_is_explained():
    plan = pipeline([(1, 2, 1)] * 2, 3)
    foreseen = {"step_seconds": 9.0, "update_seconds": 1.0, "transfer_seconds": 0.0}
    plan = dataclasses.replace(plan, predicted=foreseen)
    timeline = simulate(plan, cluster(intra=(1e7, 0.0)))
    causes = timeline.differences
    assert sum(causes.values()) == pytest.approx(timeline.step_seconds - 9.0)
    assert causes["warm-up and round trips of the schedule"] == pytest.approx(12 - 8)
    assert causes["transfers not hidden by compute"] > 0
    text = timeline.as_text()
    assert "+4 s warm-up and round trips of the schedule" in text
    assert "the search foresaw 9 s" in text
    close = dataclasses.replace(plan, predicted={**foreseen, "step_seconds": 12.8})
    assert "round trips" not in simulate(close, FAST).as_text().splitlines()[-1]


def test_trace_for_perfetto(tmp_path):
    timeline = simulate(pipeline([(1, 2, 1)] * 2, 3), cluster(intra=(1e6, 0.0)))
    events = json.loads(timeline.to_chrome_trace(tmp_path / "t.json").read_text())["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == sum(map(len, timeline.spans)) + len(timeline.transfers)
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert "mesh 0 to mesh 1" in names
    rows: dict = {}
    for event in sorted(complete, key=lambda e: e["ts"]):
        row = (event["pid"], event["tid"])
        assert event["ts"] >= rows.get(row, 0.0) - 1e-6
        rows[row] = event["ts"] + event["dur"]


def test_picture(tmp_path):
    """A box for each run and wait, inside the picture; very short ones are joined."""
    timeline = simulate(pipeline([(1, 2, 1)] * 2, 3), FAST)
    root = ElementTree.fromstring(timeline.to_svg(tmp_path / "t.svg", width=400).read_text())
    svg = "{http://www.w3.org/2000/svg}"
    boxes = [box for box in root.iter(f"{svg}rect") if box.find(f"{svg}title") is not None]
    assert len(boxes) == sum(map(len, timeline.spans))
    for box in boxes:
        assert 250 <= float(box.attrib["x"]) <= float(root.attrib["width"])
        assert float(box.attrib["width"]) > 0
    titles = [box.findtext(f"{svg}title") for box in boxes]
    assert "forward 0: 0 s to 1 s" in titles
    many = simulate(pipeline([(1, 2, 1)] * 2, 600, "gpipe"), FAST).to_svg(tmp_path / "m.svg", 300)
    assert "times forward" in many.read_text()
    assert len(many.read_text().splitlines()) < 1300


def test_wrong_plans_and_clusters_are_named():
    plan = pipeline([(1, 2, 1)] * 2, 1)
    with pytest.raises(errors.ClusterFileError, match="device 1 is not in a cluster of 1 dev"):
        simulate(plan, cluster(devices=1))
    with pytest.raises(errors.ClusterFileError):
        simulate(plan)  # This plan does not say what cluster it is for.
    stage = dataclasses.replace(plan.stages[0], predicted={})
    with pytest.raises(errors.PlanFormatError, match=r"stages\[0\].predicted.forward_seconds"):
        simulate(dataclasses.replace(plan, stages=(stage, plan.stages[1])), FAST)
    receiver = plan.programs[1]
    ops = tuple(op for op in receiver.instructions if not isinstance(op, RecvOp))
    lost = dataclasses.replace(receiver, instructions=ops)
    with pytest.raises(errors.PlanMismatchError, match="holds nothing"):
        simulate(with_order(dataclasses.replace(plan, programs=(plan.programs[0], lost))), FAST)
    ops = receiver.instructions
    sends = tuple(op for op in plan.programs[0].instructions if isinstance(op, SendOp))
    others = tuple(op for op in plan.programs[0].instructions if not isinstance(op, SendOp))
    stuck = dataclasses.replace(plan.programs[0], instructions=others + sends)
    with pytest.raises(errors.PlanMismatchError, match="a value that is not sent before it"):
        simulate(with_order(dataclasses.replace(plan, programs=(stuck, receiver))), FAST)
