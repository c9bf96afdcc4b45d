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


def start_all(machines, where, folder, *words, options=()):  # noqa: F811
    """The same program on all machines, whose links are slow; processes by machine."""
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


# Writes all that passes a port of the switch.
LISTEN = """
import socket, sys
port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
port.bind((sys.argv[1], 0))
print("listening", flush=True)
with open(sys.argv[2], "wb", buffering=0) as file:
    while True:
        file.write(port.recv(1 << 16))
"""


@pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "plain"])
def test_what_others_on_the_network_see(machines, tmp_path, encrypt):  # noqa: F811
    options = ["--encrypt"] if encrypt else []
    where = {number: machines.add(number) for number in HOSTS}
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", LISTEN, f"p{HOSTS[0]}", str(seen)]
    listener = machines.start(machines.switch, *command, stdout=subprocess.PIPE, text=True)
    assert listener.stdout.readline() == "listening\n"
    started = start_all(machines, where, tmp_path, *options, options=options)
    assert [process.wait(SECONDS) for process in started] == [0, 0], everything(tmp_path)
    check_state(tmp_path, 4)
    packets = seen.read_bytes()
    assert len(packets) > 1 << 15
    # Of greetings, calls and messages.
    for text in (b"alpa-trn", b"describe", b"numpy", b"float32"):
        assert (text in packets) != encrypt, text


@pytest.mark.parametrize("seconds", [0, 45], ids=["briefly", "for-longer-than-keepalive"])
def test_a_link_that_is_cut(machines, tmp_path, seconds):  # noqa: F811
    """The run goes on from its checkpoint once the other machine is back, and loses nothing."""
    words = ["--steps", "40", "--pause", "0.2", "--frozen-seconds", "3", "--hosts-seconds", "200"]
    where = {number: machines.add(number) for number in HOSTS}
    started = start_all(machines, where, tmp_path, *words)

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
