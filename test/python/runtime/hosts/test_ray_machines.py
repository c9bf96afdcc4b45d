"""A Ray cluster of several machines, as far as one kernel can pretend them: each has a network, a
memory to share, process numbers and a host name of its own."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from far_driver import FROZEN_SECONDS
from source_paths import PYTHONPATH, SUPPORT

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
NETWORK = "10.231.0"  # Nobody but these machines sees it.
HERE = Path(__file__).parent


class Machines:
    """A switch, and machines that are connected to it."""

    def __init__(self, stack):
        self.stack = stack
        self.name = f"alpa{os.getpid()}"
        self.switch = self.namespace("s")
        for command in ("link add sw type bridge", "link set sw up"):
            self.ip(self.switch, command)

    def namespace(self, short):
        name = f"{self.name}{short}"
        run("ip", "netns", "add", name)
        self.stack.callback(run, "ip", "netns", "del", name)
        self.ip(name, "link set lo up")
        return name

    def ip(self, where, command):
        run("ip", "-n", where, *command.split())

    def add(self, number):
        """A machine; returns its namespace and address."""
        name, port, address = self.namespace(number), f"p{number}", f"{NETWORK}.{number}"
        self.ip(self.switch, f"link add {port} type veth peer name eth0 netns {name}")
        self.ip(self.switch, f"link set {port} master sw up")
        self.ip(name, f"addr add {address}/24 dev eth0")
        self.ip(name, "link set eth0 up")
        self.ip(name, f"route add default via {NETWORK}.254")
        return name, address

    def cut_off(self, number):
        self.ip(self.switch, f"link set p{number} down")

    def start(self, name, *command, **options):
        """A program on a machine; it ends with all that it has started."""
        shell = (
            "mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray && mount -t tmpfs none /dev/shm && "
            f'hostname {name} && exec "$@"'
        )
        own = ["--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", *own, "sh", "-c", shell, "sh", *command],
            **options,
        )
        self.stack.callback(end, process)
        return process


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


def end(process):
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


@pytest.fixture
def machines():
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"network namespaces need the program {program}")
    with ExitStack() as stack:
        try:
            made = Machines(stack)
            process = made.start(made.switch, "true", stderr=subprocess.DEVNULL)
            if process.wait(120):
                pytest.skip("namespaces of processes and mounts are not permitted here")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield made


def test_a_driver_and_two_workers_on_three_machines(machines, tmp_path):
    """The driver's machine has no worker: everything between them goes over the network."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "RAY_ADDRESS")} | {
        "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(HERE), str(SUPPORT)]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    log = (tmp_path / "log").open("w")
    machines.stack.callback(log.close)
    where = {number: machines.add(number) for number in (1, 2, 3)}
    head = f"{where[1][1]}:6379"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--object-store-memory=100000000"]

    def start(number, role, then="", **options):
        name, address = where[number]
        starts = shlex.join([*ray, f"--node-ip-address={address}", *role]) + then
        options = {"stdout": log, "stderr": log, "env": environment} | options
        return machines.start(name, "sh", "-c", starts, **options)

    program = shlex.join([sys.executable, str(SUPPORT / "far_driver.py"), head])
    first = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
    driver = start(
        1,
        first,
        f" >&2 && exec {program}",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert hear(driver, "joined", log) == {"joined": [[]]}  # It has no processors.
    for number in (2, 3):
        start(number, [f"--address={head}", "--num-cpus=1", "--block"])
    said = hear(driver, "ready", log)
    assert said["equal"] == [True, True]
    for addresses in said["addresses"]:
        assert sorted(addresses) == [where[2][1], where[3][1]]
    assert said["tcp"] == [True, True]
    last = said["addresses"][-1][1]  # Of worker 1.
    machines.cut_off(next(number for number, (_, address) in where.items() if address == last))
    driver.stdin.write("\n")
    driver.stdin.flush()
    said = hear(driver, "closed", log)
    ((rank, how),), (error,) = said["lost"], said["error"]
    assert (rank, how) == (1, f"no answer for {FROZEN_SECONDS} s: frozen or unreachable; killed")
    assert "worker 1" in error
    assert driver.wait(300) == 0


def hear(driver, last, log):
    """What the driver says until it says something of this name, by name."""
    said = {}
    for line in driver.stdout:
        if not line.startswith("{"):  # What Ray passes on from its workers.
            continue
        for name, value in json.loads(line).items():
            said.setdefault(name, []).append(value)
        if last in said:
            return said
    log.flush()
    raise AssertionError(f"the driver ended: {said}\n{Path(log.name).read_text()[-4000:]}")
