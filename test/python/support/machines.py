"""Machines that one kernel pretends: each has a network, a memory to share, process numbers and a
host name of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack

import pytest

NETWORK = "10.231.0"  # Nobody but these machines sees it.


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

    def shape(self, number, rate):
        """Limits what comes to a machine."""
        limit = f"tbf rate {rate} burst 64kb latency 100ms"
        run(
            "tc", "-n", self.switch, "qdisc", "replace", "dev", f"p{number}", "root", *limit.split()
        )

    def cut_off(self, number):
        self.ip(self.switch, f"link set p{number} down")

    def connect(self, number):
        """After it was cut off."""
        self.ip(self.switch, f"link set p{number} up")

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
