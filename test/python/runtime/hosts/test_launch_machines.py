"""A launch over machines that a kernel pretends (support/machines.py): links with a limit, a link
that is cut."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time

import pytest
from alpa_runtime.hosts import launch
from machines import machines  # noqa: F401
from source_paths import PYTHONPATH, SUPPORT
from test_launch import PROGRAM, SECONDS, at_step, check_state

pytestmark = pytest.mark.slow
HOSTS = (1, 2)


def start_all(machines, folder, *words, options=()):  # noqa: F811
    """The same program on all machines, whose links are slow; processes by machine."""
    where = {number: machines.add(number) for number in HOSTS}
    key = secrets.token_hex(16)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(SUPPORT)]),
        launch.KEY_VARIABLE: key,
        "JAX_PLATFORMS": "cpu",
    }
    started = []
    for rank, number in enumerate(HOSTS):
        machines.shape(number, "200mbit")
        command = [sys.executable, "-m", "alpa_mlir", "launch", "--rank", rank]
        command += ["--num-hosts", len(HOSTS), "--coordinator", f"{where[HOSTS[0]][1]}:29400"]
        command += [*options, "--", sys.executable, PROGRAM, folder, *words]
        with (folder / f"machine{number}.txt").open("ab") as output:
            process = machines.start(
                where[number][0],
                *map(str, command),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        started.append(process)
    return started


def everything(folder):
    return "\n".join(path.read_text()[-4000:] for path in sorted(folder.glob("machine*.txt")))


def wait_for(what, processes, folder):
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, everything(folder)
        assert all(process.poll() is None for process in processes), everything(folder)
        time.sleep(0.05)


@pytest.mark.parametrize("seconds", [0, 45], ids=["briefly", "for-longer-than-keepalive"])
def test_a_link_that_is_cut(machines, tmp_path, seconds):  # noqa: F811
    """The run goes on from its checkpoint once the other machine is back, and loses nothing."""
    words = ["--steps", "40", "--pause", "0.2", "--frozen-seconds", "3", "--hosts-seconds", "200"]
    started = start_all(machines, tmp_path, *words)

    def groups():
        return len((tmp_path / "groups").read_text().splitlines())

    wait_for(lambda: at_step(tmp_path, 3), started, tmp_path)
    machines.cut_off(HOSTS[1])
    wait_for(lambda: "frozen or unreachable" in everything(tmp_path), started, tmp_path)
    time.sleep(seconds)
    assert groups() == 1
    machines.connect(HOSTS[1])
    wait_for(lambda: groups() == 2, started, tmp_path)
    assert [process.wait(SECONDS) for process in started] == [0, 0], everything(tmp_path)
    check_state(tmp_path, 40)
