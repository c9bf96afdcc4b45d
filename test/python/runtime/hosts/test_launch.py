"""Hosts without Ray: `alpa-mlir launch`, as Slurm, Kubernetes, SSH or a person start it."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import handmade
import jax
import numpy as np
import pytest
from alpa_mlir.errors import TransportError, WorkerError
from alpa_runtime.hosts import launch, launched
from alpa_runtime.hosts.launch import Place, find_key, find_place, first_of_nodelist
from alpa_runtime.hosts.launched import Agent, Hall, LaunchedWorkers, Meeting
from alpa_runtime.hosts.process import start_ticks
from source_paths import PYTHONPATH, SUPPORT

PROGRAM = SUPPORT / "launched_training.py"
SECONDS = 300.0  # On a busy machine.


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Launches:
    """Launches that pretend to be hosts; none stays behind."""

    def __init__(self, folder, num_hosts, variables=None):
        self.folder, self.num_hosts = folder, num_hosts
        self.port, self.key = free_port(), secrets.token_hex(16)
        self.variables = variables or self.as_torchrun
        self.all = []

    def as_torchrun(self, rank):
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.num_hosts),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
        }

    def start(self, rank, *words, options=(), key=None):
        environment = dict(os.environ) | self.variables(rank)
        environment |= {
            "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(SUPPORT)]),
            launch.KEY_VARIABLE: key or self.key,
            "JAX_PLATFORMS": "cpu",
        }
        program = [sys.executable, PROGRAM, self.folder, *words]
        command = [sys.executable, "-m", "alpa_mlir", "launch", *options, "--", *program]
        output = (self.folder / f"launch{rank}.txt").open("ab")
        process = subprocess.Popen(
            [str(word) for word in command], env=environment, stdout=output, stderr=output
        )
        output.close()
        self.all.append(process)
        return process

    def said(self, rank):
        return (self.folder / f"launch{rank}.txt").read_text()

    def everything(self):
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.txt")))


@pytest.fixture
def launches(tmp_path):
    with contextlib.ExitStack() as stack:

        def make(num_hosts=2, **options):
            made = Launches(tmp_path, num_hosts, **options)
            stack.callback(end_all, made)
            return made

        yield make


def end_all(made):
    for process in made.all:
        process.kill()
        process.wait()


def wait_for(what, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def last_state(folder):
    with np.load(folder / "state.npz") as found:
        return [found[name] for name in found.files]


def check_state(folder, steps):
    """That of `jax.jit` after so many steps."""
    state, batch = handmade.arguments(2)
    for _ in range(steps):
        state, *_ = jax.jit(handmade.reference_step)(state, batch)
    wanted = jax.tree.leaves(jax.device_get(state))
    for a, b in zip(last_state(folder), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def pids(folder):
    file = folder / "pids"
    return json.loads(file.read_text()) if file.exists() and file.read_text() else []


def at_step(folder, number):
    file = folder / "step"
    return file.exists() and file.read_text() and int(file.read_text()) >= number


@pytest.mark.parametrize("encrypt", [[], ["--encrypt"]], ids=["plain", "encrypted"])
def test_two_hosts_train_and_end_with_the_program(launches, tmp_path, encrypt):
    made = launches()
    logs = tmp_path / "logs"
    options = ["--logs", logs, *encrypt]
    started = [made.start(rank, "--json", *encrypt, options=options) for rank in (1, 0)]
    assert [p.wait(SECONDS) for p in started] == [0, 0], made.everything()
    check_state(tmp_path, 4)
    wait_for(lambda: not any(map(start_ticks, pids(tmp_path))))
    assert {path.name for path in logs.iterdir()} == {"driver.log", "host-0.log", "host-1.log"}


def test_a_program_that_fails_goes_on_from_its_checkpoint(launches, tmp_path):
    made = launches()
    started = [made.start(rank, "--fail-once") for rank in (0, 1)]
    assert [p.wait(SECONDS) for p in started] == [0, 0], made.everything()
    assert "the program ended with status 3: starting it again (1 of 3)" in made.said(0)
    check_state(tmp_path, 4)


def test_a_program_that_fails_for_good_ends_all_hosts(launches):
    made = launches()
    started = [made.start(rank, "--fail", "7", options=["--restarts", "0"]) for rank in (0, 1)]
    assert [p.wait(SECONDS) for p in started] == [7, 7], made.everything()


def test_lost_workers_and_hosts_are_replaced(launches, tmp_path):
    made = launches()
    driver = made.start(0, "--steps", "8", "--pause", "0.3")
    other = made.start(1, "--steps", "8")
    wait_for(lambda: at_step(tmp_path, 1))
    os.kill(pids(tmp_path)[1], signal.SIGKILL)
    wait_for(lambda: at_step(tmp_path, 4))
    other.kill()  # With its worker.
    other.wait()
    other = made.start(1, "--steps", "8")
    assert [driver.wait(SECONDS), other.wait(SECONDS)] == [0, 0], made.everything()
    check_state(tmp_path, 8)


def test_a_lost_host_shrinks_the_run_and_one_that_comes_back_grows_it(launches, tmp_path):
    def plans():
        file = tmp_path / "hosts"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    made = launches()
    driver = made.start(0, "--elastic", "--steps", "200", "--pause", "0.1")
    other = made.start(1)
    wait_for(lambda: at_step(tmp_path, 2))
    assert plans() == ["2"]
    other.kill()
    other.wait()
    wait_for(lambda: plans() == ["2", "1"])
    reached = int((tmp_path / "step").read_text())
    wait_for(lambda: at_step(tmp_path, reached + 3))
    made.start(1)
    wait_for(lambda: plans() == ["2", "1", "2"])
    assert driver.poll() is None, made.everything()
    driver.terminate()
    assert driver.wait(SECONDS) == 143


def test_another_key_is_refused(launches):
    made = launches()
    quick = ["--restarts", "0", "--start-seconds", "2"]
    other = made.start(1, options=quick, key="x" * 32)
    driver = made.start(0, "--hosts-seconds", "3", options=quick)
    assert driver.wait(SECONDS) == 1
    assert other.wait(SECONDS) == 1
    assert "1 of the launch's 2 came within 3 s; hosts 1 are not there" in made.said(0)
    assert "host 1: no driver within 2 s" in made.said(1)
    assert "Traceback" not in made.said(1)


# A child in a session of its own that no SIGTERM ends, and a grandchild whose parent is gone.
WITH_CHILDREN = """
import os, subprocess, sys, time
stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
child = subprocess.Popen(stubborn, start_new_session=True)
line = "sleep 1000 >&- & echo $!"
far = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, start_new_session=True)
with open(sys.argv[1] + "~", "w") as file:
    file.write(f"[{os.getpid()}, {child.pid}, {int(far.stdout)}]")
os.rename(sys.argv[1] + "~", sys.argv[1])
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, None])
def test_a_program_and_what_it_started_end_with_the_launch(tmp_path, how):
    """However the launch ends, and when the program ends by itself."""
    file = tmp_path / "pids"
    program = [sys.executable, "-c", WITH_CHILDREN, file, "1000" if how else "0"]
    command = [sys.executable, "-m", "alpa_mlir", "launch", "--restarts", "0", "--", *program]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen([str(word) for word in command], env=environment)
    try:
        wait_for(file.exists)
        there = json.loads(file.read_text())
        if how:
            process.send_signal(how)
        code = process.wait(SECONDS)
        assert code == {signal.SIGTERM: 143, signal.SIGKILL: -9, None: 0}[how]
        wait_for(lambda: not any(map(start_ticks, there)))
    finally:
        process.kill()
        process.wait()


def shell(folder, line):
    """A program that takes the place of SSH."""
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return program


def test_an_ssh_that_fails_is_named(launches, tmp_path):
    ssh = shell(tmp_path, 'echo "no way to $1" >&2\nexit 255')
    made = launches(1, variables=lambda _: {})
    options = ["--hosts", "node0,node1", "--ssh", str(ssh)]
    assert made.start(0, options=options).wait(SECONDS) == 255
    for host in ("node0", "node1"):
        said = f"host {host}: `{ssh}` ended with status 255; its last lines: no way to {host}"
        assert (said in made.said(0)) == (host == "node0"), made.everything()
    silent = ["--hosts", "node0", "--ssh", "/bin/false"]
    assert made.start(0, options=silent).wait(SECONDS) == 1
    assert "host node0: `/bin/false` ended with status 1; it said nothing" in made.said(0)


def test_an_ssh_to_another_host_that_fails_is_named(launches, tmp_path):
    ssh = shell(tmp_path, '[ "$1" = here ] && exec sh -c "$2"\necho "no way" >&2\nexit 255')
    made = launches(1, variables=lambda _: {})
    options = ["--hosts", "here,away", "--ssh", str(ssh), "--restarts", "0"]
    options += ["--coordinator", f"127.0.0.1:{made.port}"]
    assert made.start(0, "--hosts-seconds", "1", options=options).wait(SECONDS) == 1
    said = made.said(0)
    away = f"host away: `{ssh}` ended with status 255; its last lines: no way"
    assert -1 < said.find(away) < said.find("came within 1 s; hosts 1 are not there")


def test_by_ssh(launches, tmp_path):
    """A shell that takes a host's name and a line takes the place of SSH."""
    ssh = shell(tmp_path, 'echo "$1" >> "$(dirname "$0")/names"\nexec sh -c "$2"')
    made = launches(1, variables=lambda _: {})
    options = ["--hosts", "me@localhost,other", "--ssh", str(ssh)]
    options += ["--coordinator", f"127.0.0.1:{made.port}"]
    process = made.start(0, options=options)
    assert process.wait(SECONDS) == 0, made.everything()
    assert set((tmp_path / "names").read_text().split()) == {"me@localhost", "other"}
    check_state(tmp_path, 4)


def test_sigterm_ends_what_was_started(launches, tmp_path):
    made = launches()
    started = [made.start(rank, "--steps", "1000", "--pause", "0.1") for rank in (0, 1)]
    wait_for(lambda: at_step(tmp_path, 1))
    workers = pids(tmp_path)
    for process in started:
        process.terminate()
    assert [p.wait(SECONDS) for p in started] == [143, 143], made.everything()
    wait_for(lambda: not any(map(start_ticks, workers)))


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("node7", "node7"),
        ("gpu[003-010,12],login1", "gpu003"),
        ("a[1,3]-ib,b2", "a1-ib"),
        ("x1,y[2-3]", "x1"),
    ],
)
def test_first_of_nodelist(text, first):
    assert first_of_nodelist(text) == first


SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "gpu[03-06]",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
}


def test_places():
    assert find_place({}) == Place(0, 1, "127.0.0.1", 0, "nothing")
    found = find_place(SLURM)
    assert found == Place(2, 4, "gpu03", 23456, "Slurm's variables", "123456.0")
    torch = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"}
    assert find_place(torch) == Place(1, 2, "a", 7, "RANK and WORLD_SIZE")
    indexed = find_place({"JOB_COMPLETION_INDEX": "3"}, num_hosts=8, coordinator="job-0.job:5")
    assert (indexed.rank, indexed.num_hosts, indexed.host, indexed.port) == (3, 8, "job-0.job", 5)
    assert find_place({}, 0, 2, "[::1]:5").host == "::1"
    for environment in ({"RANK": "1"}, {"WORLD_SIZE": "x"}, {"JOB_COMPLETION_INDEX": "0"}):
        place = find_place(environment, 1, 2, "a:5")  # What is given needs no variables.
        assert (place.rank, place.num_hosts) == (1, 2)
    half = {"RANK": "0", "JOB_COMPLETION_INDEX": "3", "JOB_COMPLETIONS": "4", "MASTER_ADDR": "a"}
    assert (find_place(half).rank, find_place(half).num_hosts) == (3, 4)
    assert find_place({"RANK": "1"}, num_hosts=2, coordinator="a:5").rank == 1


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "nothing says where host 0 is"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, {}, "RANK=x: expected a number"),
        ({"RANK": "0", "WORLD_SIZE": ""}, {}, "WORLD_SIZE=: expected a number"),
        ({"RANK": "0"}, {}, "RANK is set in the environment, and WORLD_SIZE is not; fix: set WOR"),
        ({"WORLD_SIZE": "2"}, {}, "WORLD_SIZE is set in the environment, and RANK is not; fix"),
        ({"RANK": "0"}, {"rank": 0}, "RANK is set in the environment, and WORLD_SIZE is not"),
        ({"JOB_COMPLETION_INDEX": "0"}, {}, "and JOB_COMPLETIONS is not; fix: set JOB_COMPLETIO"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "99999"},
            {},
            "port 99999, by RANK and WORLD_SIZE",
        ),
        ({"RANK": "0", "WORLD_SIZE": "10" * 6}, {}, "101010101010 hosts, by RANK and WORLD_SIZE"),
        (SLURM | {"SLURM_LOCALID": "1"}, {}, "several tasks on one host"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, {}, "several processes on one host"),
        ({}, {"rank": 2, "num_hosts": 2, "coordinator": "a:5"}, "rank 2 of 2 hosts"),
        ({}, {"rank": 0, "num_hosts": 2, "coordinator": "a"}, "expected HOST:PORT"),
        ({}, {"rank": 0, "num_hosts": 2, "coordinator": "a:70000"}, "expected HOST:PORT"),
    ],
)
def test_places_that_contradict(environment, options, said):
    with pytest.raises(WorkerError, match=said):
        find_place(environment, **options)


def test_keys(tmp_path, monkeypatch):
    alone, two = Place(0, 1, "", 0, ""), Place(1, 2, "a", 5, "")
    assert len(find_key(alone, {}, None, 0)) == 64
    file = tmp_path / "key"
    file.write_text("k" * 20 + "\n")
    file.chmod(0o640)
    with pytest.raises(WorkerError, match="owner alone"):
        find_key(two, {}, file, 0)
    file.chmod(0o600)
    assert find_key(two, {}, file, 0) == "k" * 20
    assert find_key(two, {launch.KEY_VARIABLE: "v" * 16}, None, 0) == "v" * 16
    for environment, said in (
        ({}, "no key that they share"),
        ({launch.KEY_VARIABLE: "short"}, "a key of 5 characters"),
    ):
        with pytest.raises(WorkerError, match=said):
            find_key(two, environment, None, 0)
    with pytest.raises(WorkerError, match="cannot be read"):
        find_key(two, {}, tmp_path / "none", 0)
    monkeypatch.setenv("HOME", str(tmp_path))
    job = [Place(rank, 2, "a", 5, "", "1.0") for rank in (0, 1)]
    with pytest.raises(WorkerError, match="may not share their home"):
        find_key(job[1], {}, None, 0.1)
    made = find_key(job[0], {}, None, 0)
    assert find_key(job[1], {}, None, 0) == made
    assert launch.job_key_file(job[0]).stat().st_mode & 0o077 == 0


def test_strangers_keep_nobody_waiting():
    meeting = Meeting("127.0.0.1", free_port(), 2, "k" * 16)
    hall = Hall(meeting)
    with contextlib.ExitStack() as stack:
        stack.callback(hall.close)
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"alpa-trn" + bytes(100)):
            stranger = socket.create_connection(("127.0.0.1", meeting.port))
            stack.callback(stranger.close)
            stranger.sendall(noise)
        agent = Agent(meeting, 1)
        status = []
        serving = threading.Thread(target=lambda: status.append(agent.serve()), daemon=True)
        serving.start()
        wait_for(lambda: hall.ranks == (1,))
        hall.leave(5)
        serving.join(SECONDS)
        assert status == [5]


@pytest.mark.parametrize(
    ("driver", "host", "said"),
    [
        ({"key": "x" * 16}, {}, "refused this end: it does not know the driver's key"),
        ({"encrypt": True}, {}, "does not speak TLS"),
        ({}, {"encrypt": True}, "does not speak TLS"),
        ({"encrypt": True, "key": "x" * 16}, {"encrypt": True}, "another end answers there"),
    ],
)
def test_hosts_that_do_not_agree(driver, host, said):
    meeting = {"host": "127.0.0.1", "port": free_port(), "num_hosts": 2, "key": "k" * 16}
    hall = Hall(Meeting(**meeting | driver))
    try:
        with pytest.raises(WorkerError, match=rf"no driver within 0.1 s .*{said}"):
            Agent(Meeting(**meeting | host), 1).serve(0.1)
        assert hall.ranks == ()
    finally:
        hall.close()


def test_no_launch():
    with pytest.raises(WorkerError, match="not the driver of a launch"):
        launched._hall()
    with pytest.raises(TransportError, match="cannot listen"):
        Meeting("192.0.2.1", 29400, 2, "k" * 16).listen()
    assert LaunchedWorkers().platform is None


def test_a_command_line_without_program():
    command = [sys.executable, "-m", "alpa_mlir", "launch"]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "alpa-mlir launch: error: no program is given" in done.stderr
    nothing = [*command, "--", str(Path("/nonexistent"))]
    done = subprocess.run(nothing, capture_output=True, text=True, env=environment, check=False)
    assert "cannot be started (No such file" in done.stderr
    assert done.returncode == 1
