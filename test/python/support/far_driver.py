"""A driver whose workers are on other machines; test_ray_machines.py runs it on one of its own.

Run: python far_driver.py ADDRESS_OF_RAY. Writes one object of JSON a line; when it says that it is
ready to lose a worker, the node of worker 1 has to be cut off.
"""

from __future__ import annotations

import json
import socket
import sys
import time

import alpa_mlir
import handmade
import steps
from alpa_mlir import errors
from alpa_runtime.hosts.ray_hosts import RayWorkers
from alpa_runtime.hosts.watchdog import Limits
from test_hosts import SPANNING, TWO, notice_soon

FROZEN_SECONDS = 5


def say(**what):
    print(json.dumps(what), flush=True)


def load(address, placement):
    limits = Limits(start_seconds=600, frozen_seconds=60)
    workers = RayWorkers(address, placement=placement, limits=limits)
    begin = time.monotonic()
    step = alpa_mlir.load(steps.two_stage_plan(2), workers=workers)
    group = step.loaded.group
    streams = [group._calls[rank]._work._stream._socket for rank in range(2)]
    say(
        loaded=time.monotonic() - begin,
        addresses=[facts.address for facts in group.facts],
        hosts=[facts.host for facts in group.facts],
        tcp=all(stream.family == socket.AF_INET for stream in streams),
    )
    return step


def wait_for_nodes(address, count, seconds=600):
    deadline = time.monotonic() + seconds
    while len(nodes := RayWorkers(address).nodes()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{nodes} within {seconds} s")
        time.sleep(0.5)
    say(nodes=nodes)


def main():
    address = sys.argv[1]
    alpa_mlir.use_virtual_devices(8)  # The plan's functions are lowered for as many.
    say(joined=RayWorkers(address).nodes())
    wait_for_nodes(address, 2)
    for placement in (SPANNING, TWO):
        step = load(address, placement)
        steps.check_equals_jit(step)
        say(equal=True)
        if placement is SPANNING:
            step.close()
    group = step.loaded.group
    notice_soon(group, FROZEN_SECONDS)  # So far, who did not answer was only busy.
    say(ready=True)
    sys.stdin.readline()
    begin = time.monotonic()
    while group.lost is None and time.monotonic() < begin + 300:
        time.sleep(0.01)
    noticed = time.monotonic() - begin
    try:
        step(*handmade.arguments(2))
    except errors.WorkerError as error:
        say(noticed=noticed, lost=group.lost, error=str(error))
    begin = time.monotonic()
    step.close()
    say(closed=time.monotonic() - begin)


if __name__ == "__main__":
    main()
