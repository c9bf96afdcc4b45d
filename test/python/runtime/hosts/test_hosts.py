"""Workers in processes of their own: they start, refuse what does not fit, and end."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import alpa_mlir
import handmade
import pytest
import steps
from alpa_mlir import errors
from alpa_runtime.hosts import process_group, subprocesses
from alpa_runtime.hosts.process import start_ticks
from alpa_runtime.hosts.ray_hosts import RayWorkers, check_room
from alpa_runtime.hosts.subprocesses import ProcessWorkers, how_it_ended
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.version import VERSION
from alpa_runtime.worker_group import Placement
from source_paths import PYTHONPATH

TWO = Placement(((0, 1), (2, 3)))
SPANNING = Placement(((0, 2), (1, 3)))  # Each mesh has a device of each worker.
BUSY = Limits(start_seconds=600, frozen_seconds=60)  # Whatever else the machine does.


@pytest.fixture(scope="module")
def plan():
    return steps.two_stage_plan(2)


@pytest.fixture(scope="module")
def hosts():
    with ProcessWorkers(platform="cpu", spares=2, limits=BUSY) as hosts:
        yield hosts


class Placed:
    """Hosts with a placement; one has spare processes for all tests."""

    def __init__(self, hosts, placement):
        self.hosts, self.placement = hosts, placement

    def start(self, plan, placement=None, **options):
        return self.hosts.start(plan, placement or self.placement, **options)


def running(pids):
    """When processes started; their numbers may belong to others later."""
    return {pid: start_ticks(pid) for pid in pids}


def notice_soon(group, seconds=5):
    """From now on workers that do not answer for so long are lost; before, they were only busy."""
    group.limits = dataclasses.replace(group.limits, frozen_seconds=seconds)


def gone(processes, seconds=60.0):
    """Whether all these processes end in time."""
    deadline = time.monotonic() + seconds
    while True:
        left = [pid for pid, began in processes.items() if began and start_ticks(pid) == began]
        if not left or time.monotonic() > deadline:
            return not left
        time.sleep(0.01)


def freeze(pid, seconds=10.0):
    """Stop a process, and wait until none of its threads runs: `os.kill` returns before."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        if all(stat[stat.rindex(")") + 2] == "T" for stat in stats):
            return
        time.sleep(0.001)
    raise TimeoutError(f"process {pid} does not stop")


@pytest.mark.parametrize(
    ("placement", "how", "said"),
    [
        (TWO, signal.SIGSTOP, "no answer for 5 s: frozen"),
        (SPANNING, signal.SIGKILL, "died of SIGKILL"),
    ],
)
def test_processes_equal_one_device_until_one_is_lost(hosts, plan, placement, how, said):
    seen = []
    placed = Placed(hosts, placement)
    step = alpa_mlir.load(plan, workers=placed, progress=lambda *what: seen.append(what))
    steps.check_equals_jit(step)
    assert {label.split(" on ")[0] for _, _, label in seen} >= {"worker 0", "worker 1"}
    group = step.loaded.group
    processes = running(group.pids)
    notice_soon(group)
    os.kill(group.pids[1], how)
    deadline = time.monotonic() + 60
    while group.lost is None and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(errors.WorkerLostError, match=f"worker 1: {said}") as error:
        group.call(0, "free", ())
    assert error.value.rank == 1
    state, batch = handmade.arguments(2)
    with pytest.raises(errors.WorkerError, match="worker 1"):
        step(state, batch)
    step.close()
    assert gone(processes)


def test_a_worker_that_freezes_while_it_starts(plan, monkeypatch):
    """Long before `start_seconds` are over, though the others wait for it to connect."""
    met = subprocesses.LocalProcessGroup.met

    def freeze_then(group, facts):
        freeze(group.pids[1])
        met(group, facts)

    monkeypatch.setattr(subprocesses.LocalProcessGroup, "met", freeze_then)
    limits = Limits(start_seconds=600, frozen_seconds=10)
    with pytest.raises(errors.WorkerLostError, match="worker 1: no answer for 10 s: frozen"):
        ProcessWorkers(TWO, platform="cpu", limits=limits).start(plan)


def test_worlds_meet_at_the_address_in_use(hosts, plan):
    """What `jax.distributed` listens at, on all of the group's processes, is for this host only."""
    _, group = hosts.start(plan, SPANNING)
    try:
        heard = {address for pid in group.pids for address in listening(pid)}
    finally:
        group.close()
    assert heard == {"127.0.0.1"}


def listening(pid):
    """The addresses at which a process listens by TCP."""
    own = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                words = bytes.fromhex(fields[1].partition(":")[0])
                flipped = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found.add(socket.inet_ntop(family, flipped).removeprefix("::ffff:"))
    return found


def test_killed_closed_and_dropped_groups_leave_no_process(hosts, plan):
    _, group = hosts.start(plan, TWO)
    processes = running(group.pids)
    group.kill(0)
    with pytest.raises(errors.WorkerLostError, match="worker 0: killed"):
        group.call(1, "ping")
    del group
    assert gone(processes)
    _, group = hosts.start(plan, TWO)
    processes = running(group.pids)
    group.close()
    group.close()
    assert gone(processes)
    with pytest.raises(errors.WorkerError, match="closed"):
        group.call(1, "ping")


DRIVER = """
import os, signal, sys
from alpa_mlir import Placement, Plan, ProcessWorkers, RayWorkers
from alpa_runtime.hosts.process import start_ticks

signal.signal(signal.SIGINT, signal.default_int_handler)  # Jobs in the background ignore it.
two = Placement(((0, 1), (2, 3)))
if sys.argv[3] == "ray":
    hosts, spares = RayWorkers(placement=two, platform="cpu"), []
else:
    hosts = ProcessWorkers(two, platform="cpu", spares=1)
    spares = hosts._spares
_, group = hosts.start(Plan.load(sys.argv[1]))
pids = [*group.pids, *[process.popen.pid for process in spares]]
print(*[f"{pid}:{start_ticks(pid)}" for pid in pids], flush=True)
match sys.argv[2]:
    case "error":
        raise RuntimeError("on purpose")
    case "kill":
        os.kill(group.pids[0], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
    case "ctrl-c":
        os.killpg(0, signal.SIGINT)  # What a terminal does.
        signal.pause()
"""


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("end", "workers"),
    [
        ("kill", "processes"),
        slow("error", "processes"),
        slow("ctrl-c", "processes"),
        slow("kill", "ray"),
        slow("error", "ray"),
        slow("ctrl-c", "ray"),
    ],
)
def test_workers_end_with_their_driver(plan, tmp_path, end, workers):
    plan.save(tmp_path)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), end, workers],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    said, _ = driver.communicate(timeout=120)
    processes = dict(tuple(map(int, one.split(":"))) for one in said.split())
    assert len(processes) == (2 if workers == "ray" else 3)
    # Where Ray is used, Python ends with 1 after Ctrl-C.
    ctrl_c = 1 if workers == "ray" else -signal.SIGINT
    assert driver.returncode == {"error": 1, "kill": -signal.SIGKILL}.get(end, ctrl_c)
    assert gone(processes)


STARTING = """
import signal, sys
from alpa_mlir import Placement, Plan, ProcessWorkers

signal.signal(signal.SIGINT, signal.default_int_handler)  # Jobs in the background ignore it.
program = {"program": sys.argv[2:]} if sys.argv[2:] else {}
ProcessWorkers(Placement(((0, 1), (2, 3))), platform="cpu", **program).start(Plan.load(sys.argv[1]))
"""


@pytest.mark.parametrize("program", [(), ("-c", "import time; time.sleep(600)")])
def test_ctrl_c_while_workers_start(plan, tmp_path, program):
    """Of a worker that still imports, nothing is seen; one that never comes up is ended."""
    plan.save(tmp_path)
    driver = subprocess.Popen(
        [sys.executable, "-c", STARTING, str(tmp_path), *program],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")
    deadline = time.monotonic() + 60
    while len(pids := children.read_text().split()) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    processes = running(map(int, pids))
    assert len(processes) == 2
    time.sleep(0.1)  # Past the start of the interpreter, which would end of the signal silently.
    os.killpg(driver.pid, signal.SIGINT)
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGINT
    assert said.count("Traceback") == 1
    assert said.count("KeyboardInterrupt") == 1
    assert gone(processes)


def test_other_versions_are_refused(hosts, plan, monkeypatch):
    own = process_group.versions()
    assert own["alpa_mlir"] == VERSION
    monkeypatch.setattr(process_group, "versions", lambda: {**own, "jax": "0.9.1"})
    with pytest.raises(
        errors.WorkerError, match=r"worker 0 on .*: has jax 0\.1.*driver has 0\.9\.1"
    ):
        hosts.start(plan, TWO)


def test_missing_devices_are_refused(plan, monkeypatch):
    monkeypatch.setattr(subprocesses, "local_gpus", lambda: ("0",))
    with pytest.raises(errors.DevicesError, match="needs 4 GPUs, this machine has 1"):
        ProcessWorkers().start(plan, TWO)


@pytest.mark.parametrize(
    ("gpus", "platform", "share", "message"),
    [
        ([0], "cpu", False, "needs 2 hosts, the Ray cluster has 1"),
        ([8], "gpu", False, "needs 2 hosts, the Ray cluster has 1"),
        ([2, 1], "gpu", False, "hosts of 2, 2 GPUs, the Ray cluster has nodes of 2, 1"),
        ([3], "gpu", True, "hosts of 2, 2 GPUs, the Ray cluster has nodes of 3"),
        ([0], "cpu", True, None),
        ([1, 8, 2], "gpu", False, None),
        ([4], "gpu", True, None),
    ],
)
def test_room_in_a_ray_cluster(plan, gpus, platform, share, message):
    if message is None:
        check_room(plan, TWO, gpus, platform=platform, share=share)
        return
    with pytest.raises(errors.DevicesError, match=message):
        check_room(plan, TWO, gpus, platform=platform, share=share)


def test_ray_is_an_extra(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(errors.WorkerError, match=r"not installed.*alpa-mlir\[ray\]"):
        RayWorkers().start(plan, TWO)


def test_how_processes_end():
    assert how_it_ended(3) == "ended with status 3"
    assert "SIGSEGV" in how_it_ended(-signal.SIGSEGV)
    assert "out of memory" in how_it_ended(-signal.SIGKILL)
