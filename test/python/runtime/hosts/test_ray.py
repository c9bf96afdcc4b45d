"""Workers in Ray actors, on one node and on simulated ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import alpa_mlir
import pytest
import steps
from alpa_mlir import errors
from alpa_runtime.hosts.ray_hosts import RayWorkers, cause
from source_paths import PYTHONPATH, SUPPORT
from test_hosts import BUSY, SPANNING, TWO, freeze, gone, notice_soon, running

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def local_ray():
    """Whoever needs Ray first starts it; it ends with the module."""
    yield
    RayWorkers().close()
    assert not ray.is_initialized()


def load(placement):
    workers = RayWorkers(placement=placement, platform="cpu", limits=BUSY)
    return alpa_mlir.load(steps.two_stage_plan(2), workers=workers)


@pytest.mark.usefixtures("local_ray")
def test_two_actors_equal_one_device():
    step = load(TWO)
    steps.check_equals_jit(step)
    group = step.loaded.group
    assert group.ping(1, 10)["rank"] == 1
    processes = running(group.pids)
    notice_soon(group)
    freeze(group.pids[1])  # Which Ray cannot end.
    with pytest.raises(errors.WorkerLostError, match="worker 1: no answer for 5 s"):
        group.call(1, "free", ()).result(60)
    step.close()
    assert gone(processes)


def waiting(workers):
    """The processes of spare actors."""
    asked = [spare.actor.describe.remote() for spare in workers._spares._spares]
    return running(facts.pid for _, facts in ray.get(asked))


@pytest.mark.usefixtures("local_ray")
def test_spare_actors_take_the_place_of_lost_ones():
    plan = steps.two_stage_plan(2)
    workers = RayWorkers(placement=TWO, platform="cpu", spares=3, limits=BUSY)
    step = alpa_mlir.load(plan, workers=workers)
    first, spares = running(step.loaded.group.pids), waiting(workers)
    assert len(spares) == 3
    dead = next(iter(spares))
    os.kill(dead, signal.SIGKILL)  # It is not given to anybody.
    assert gone({dead: spares.pop(dead)})
    step.loaded.group.kill(0)
    step.close()
    step = alpa_mlir.load(plan, workers=workers)
    assert running(step.loaded.group.pids) == spares
    steps.check_equals_jit(step)
    new = waiting(workers)
    assert len(new) == 3
    assert not spares.keys() & new.keys()
    workers._spares.close()
    step.close()
    assert gone({**first, **spares, **new})


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_mesh_over_two_actors():
    step = load(SPANNING)
    steps.check_equals_jit(step)
    step.close()


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_killed_actor_is_noticed():
    step = load(TWO)
    group = step.loaded.group
    processes = running(group.pids)
    os.kill(group.pids[0], signal.SIGKILL)
    with pytest.raises(errors.WorkerLostError, match="worker 0: the actor's process died"):
        group.call(0, "free", ()).result(60)
    step.close()
    assert gone(processes)


def test_ray_that_does_not_start(monkeypatch):
    """Of a busy machine: a run tries again, as after any failure of workers."""

    def init(*_, **__):
        raise Exception("The current node timed out during startup.")  # As Ray does.

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray.shutdown()
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(errors.WorkerError, match="Ray does not start: The current node timed out"):
        RayWorkers().connect()


def test_why_an_actor_is_gone():
    killed = (
        "2 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "
        "192.0.2.2, ID: 7340) was 7.46GB used / 23.54GB limit (0.316890)"
    )
    assert cause(RuntimeError(killed)) == (
        "killed by Ray, whose node was out of memory (7.46GB used / 23.54GB limit)"
    )
    assert "out of memory, killed or crashed" in cause(
        RuntimeError("The actor is dead. Worker exit type: SYSTEM_ERROR Worker exit detail: ...")
    )
    assert cause(RuntimeError("its\n  creation failed")) == "the actor is gone: its creation failed"


ENCRYPTED = """
import alpa_mlir
import steps
from alpa_runtime.hosts.ray_hosts import RayWorkers
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.worker_group import Placement
limits = Limits(start_seconds=300, frozen_seconds=60)
placement = Placement(((0, 1), (2, 3)))
workers = RayWorkers(platform="cpu", placement=placement, encrypt=True, limits=limits)
step = alpa_mlir.load(steps.two_stage_plan(2), workers=workers)
steps.check_equals_jit(step)
step.loaded.group.close()
workers.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="Ray's certificates need openssl")
def test_encryption_where_ray_encrypts(tmp_path):
    """Certificates as Ray's documentation has them: of one authority, for the node's address."""

    def openssl(line):
        subprocess.run(["openssl", *line.split()], cwd=tmp_path, check=True, capture_output=True)

    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    openssl(f"req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=authority")
    openssl(f"req -new {key} -keyout node.key -out node.csr -subj /CN=node")
    names = f"subjectAltName=IP:127.0.0.1,IP:{ray.util.get_node_ip_address()},DNS:localhost"
    (tmp_path / "names").write_text(names)
    openssl(
        "x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names "
        "-out node.crt"
    )
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {
        "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(SUPPORT)]),
        "JAX_PLATFORMS": "cpu",
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(tmp_path / "node.crt"),
        "RAY_TLS_SERVER_KEY": str(tmp_path / "node.key"),
        "RAY_TLS_CA_CERT": str(tmp_path / "ca.crt"),
    }
    command = [sys.executable, "-c", ENCRYPTED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
