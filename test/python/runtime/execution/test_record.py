"""Recorded steps: every action of every worker, on one clock, in the simulator's form."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import alpa_mlir
import handmade
import numpy as np
import pytest
import zoo
from alpa_mlir import ArgumentMismatchError, PipeshardParallel
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.execution.program_merge import Place, merge_step
from alpa_runtime.hosts.threads import ThreadWorkers
from alpa_runtime.step_trace import Recording, StepTrace
from alpa_runtime.worker_group import Placement
from alpa_runtime.workers.driver import DistributedPlan
from alpa_runtime.workers.worker import Worker

STEPS, PARTS = 2, 3
# Threads that see results may be woken late; clocks that are not aligned differ by more.
LATE = 1_000_000_000


@pytest.fixture(scope="module")
def plan():
    return handmade.as_plan(*handmade.two_stages(PARTS, first=(1, 2), second=(2, 1)))


def arguments():
    state, batch = handmade.arguments(PARTS)
    return [state["w0"], state["w1"], batch["x"], batch["y"]]


def run(step):
    """Some steps; the results of all."""
    args, found = arguments(), []
    for _ in range(STEPS):
        results = step(args)
        found.append([np.asarray(x) for x in results[2:]])
        args = [*results[:2], *args[2:]]
    return found


def check_times(trace: StepTrace):
    """Each time is one that the step allows."""
    events = [event for own in trace.events for event in own]
    ready = {}
    for event in events:
        assert event.begin <= event.end
        assert event.begin <= event.ready
        if event.kind == "run":
            ready[event.step, event.mesh, event.name] = event.ready
    received = {(e.step, e.transfer): e for e in events if e.kind in ("copy", "receive")}
    for event in events:
        if event.kind == "send":
            assert event.begin <= received[event.step, event.transfer].ready + LATE
    for step in range(STEPS):
        for part in range(PARTS):
            forth = ready[step, 0, f"forward {part}"]
            turn = ready[step, 1, f"backward {part}"]
            back = ready[step, 0, f"backward {part}"]
            times = [forth, turn, back, ready[step, 0, "update_0"]]
            assert all(a <= b + LATE for a, b in pairwise(times))
    assert len(trace.step_seconds) == STEPS
    assert all(seconds > 0 for seconds in trace.step_seconds)


def rows_of(events, process):
    """Spans of each named row of a process."""
    names = {
        e["tid"]: e["args"]["name"]
        for e in events
        if (e["name"], e["pid"]) == ("thread_name", process)
    }
    rows = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X" and event["pid"] == process:
            rows[names[event["tid"]]].append(event)
    return rows


def check_chrome(events, meshes):
    rows = rows_of(events, 2)
    assert list(rows) == meshes
    for name, spans in rows.items():
        spans.sort(key=lambda span: span["ts"])
        for a, b in pairwise(spans):
            assert a["ts"] + a["dur"] <= b["ts"] + 1e-3, name
        assert spans[0]["ts"] >= 0
    transfers = rows_of(events, 3)
    assert {name[:16] for name in transfers} == {"mesh 0 to mesh 1", "mesh 1 to mesh 0"}
    found = Counter()
    for spans in transfers.values():
        for span in spans:
            assert span["args"]["bytes"] == handmade.ROWS * handmade.HIDDEN * 4
            assert span["dur"] >= 0
            found[span["args"]["step"]] += 1
    assert found == dict.fromkeys(range(STEPS), 2 * PARTS)


def test_this_process(plan, tmp_path):
    step = load(plan)
    expected = run(step)
    assert step._bound.recorder is None
    with Recording(step, tmp_path / "trace.json") as recording:
        found = run(step)
    assert step._bound.recorder is None
    for a, b in zip(found, expected, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    (events,) = recording.trace.events
    linear = merge_step(plan)
    actions = [
        a
        for a in linear.actions
        if not (isinstance(a, Place) and plan.inputs[a.arg].kind == "state")
    ]
    assert len(events) == STEPS * len(actions)
    runs = Counter((e.mesh, e.name) for e in events if e.kind == "run")
    parts = [f"{f} {i}" for f in ("forward", "backward") for i in range(PARTS)]
    assert runs == {(mesh, name): STEPS for mesh in (0, 1) for name in [*parts, "update_0"]}
    check_times(recording.trace)
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert written == recording.trace.chrome_events()
    meshes = [f"mesh {i}: {mesh.as_text()}" for i, mesh in enumerate(plan.meshes)]
    check_chrome(written, meshes)


def test_workers_with_other_clocks(plan, monkeypatch):
    """Their clocks began at other times, as those of other hosts do."""
    ahead = [5_000_000_000, -3_000_000_000]
    placed, group = ThreadWorkers(Placement(((0, 1), (2, 3)))).start(plan)
    step = DistributedPlan(plan, placed, group, donate_state=True)
    stop, clock = Worker.stop_trace, Worker.clock

    def shifted(self):
        from alpa_runtime.step_trace import _aligned

        return list(_aligned(stop(self), -ahead[self.rank]))

    monkeypatch.setattr(Worker, "stop_trace", shifted)
    monkeypatch.setattr(Worker, "clock", lambda self: clock(self) + ahead[self.rank])
    try:
        with Recording(step) as recording:
            run(step)
        kinds = [{e.kind for e in events} for events in recording.trace.events]
        assert all(own >= {"run", "send", "receive"} for own in kinds)
        check_times(recording.trace)
        meshes = [f"mesh {i}: {m.as_text()}, worker {i}" for i, m in enumerate(plan.meshes)]
        check_chrome(recording.trace.chrome_events(), meshes)
    finally:
        step.close()


def test_nothing_is_written_of_steps_that_fail(plan, tmp_path):
    step = load(plan)
    recording = Recording(step, tmp_path / "trace.json")
    with pytest.raises(TypeError), recording:
        step(None)
    assert recording.trace is None
    assert step._bound.recorder is None
    assert not (tmp_path / "trace.json").exists()
    run(step)


def test_errors_end_the_recording(plan):
    placement, group = ThreadWorkers(Placement(((0, 1), (2, 3)))).start(plan)
    step = DistributedPlan(plan, placement, group, True)
    with pytest.raises(ArgumentMismatchError), Recording(step):
        step([*run(step)[0], None])
    run(step)
    assert [step.ask(rank, "stop_trace").result() for rank in (0, 1)] == [[], []]
    step.close()


def test_traces_that_cannot_be_written(plan, tmp_path):
    step = load(plan)
    (tmp_path / "file").write_text("")
    for path, message in (
        (tmp_path / "file" / "trace.json", "cannot be written: "),
        (tmp_path, "it is a folder"),
    ):
        with pytest.raises(ArgumentMismatchError, match=message), Recording(step, path):
            raise AssertionError("a step")
    with Recording(step, tmp_path / "new" / "trace.json"):
        run(step)
    assert json.loads((tmp_path / "new" / "trace.json").read_text())["traceEvents"]


def test_beside_the_simulated_step(tmp_path):
    model = zoo.get("mlp")
    state, batch = model.init()
    method = PipeshardParallel(num_micro_batches=2, submeshes=[(1, 2), (1, 2)])
    step = alpa_mlir.compile(model.step, state, batch, cluster="cpu-test", method=method)
    timeline = alpa_mlir.simulate(step.plan)
    with step.record(tmp_path / "trace.json", timeline) as recording:
        step(state, batch)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events == recording.trace.chrome_events() + timeline.chrome_events()
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {
        0: "meshes of step",
        1: "transfers",
        2: "meshes of step, real",
        3: "transfers of step, real",
    }
    real, simulated = (
        Counter(e["name"] for e in events if e["pid"] == pid and "stage" in e.get("args", {}))
        for pid in (2, 0)
    )
    assert real == simulated


def test_one_recording_at_a_time(plan):
    step = load(plan)
    with Recording(step) as outer:
        with (
            pytest.raises(ArgumentMismatchError, match="are recorded already"),
            Recording(step),
        ):
            raise AssertionError("a step")
        run(step)
    steps = len(outer.trace.step_seconds)
    with Recording(step) as again:
        run(step)
        run(step)
    assert len(again.trace.step_seconds) == 2 * steps > 0


def test_one_recording_at_a_time_in_workers(plan):
    placement, group = ThreadWorkers(Placement(((0, 1), (2, 3)))).start(plan)
    step = DistributedPlan(plan, placement, group, True)
    with Recording(step) as outer:
        with (
            pytest.raises(ArgumentMismatchError, match="are recorded already"),
            Recording(step),
        ):
            raise AssertionError("a step")
        run(step)
    assert outer.trace.step_seconds
    step.close()
