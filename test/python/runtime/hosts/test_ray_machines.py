"""A Ray cluster of several machines, as one kernel pretends them (support/machines.py)."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from far_driver import FROZEN_SECONDS
from machines import machines  # noqa: F401
from source_paths import PYTHONPATH, SUPPORT

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def test_a_driver_and_two_workers_on_three_machines(machines, tmp_path):  # noqa: F811
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
