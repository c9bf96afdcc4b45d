"""Workers in processes, whose values go from device to device: CPU devices, and NCCL by test."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import alpa_mlir
import handmade
import pytest
import steps
from alpa_mlir import errors
from alpa_runtime.hosts.process import HostProcess, Start
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.transport import connect_in_process
from alpa_runtime.worker_group import Placement
from device_ends import HAS_NIXL
from source_paths import SUPPORT

PROGRAM = str(SUPPORT / "device_worker.py")
TWO = Placement(((0, 1), (2, 3)))


@pytest.fixture(scope="module")
def plan():
    return steps.two_stage_plan(2)


def hosts(device_transport: str) -> ProcessWorkers:
    return ProcessWorkers(
        TWO,
        platform="cpu",
        limits=Limits(start_seconds=120, frozen_seconds=20),
        device_transport=device_transport,
        program=[PROGRAM],
        environment={"NIXL_LOG_LEVEL": "ERROR"},
    )


def sent(group) -> list[tuple[int, int, int]]:
    return [group.call(rank, "messages").result(20) for rank in range(2)]


@pytest.mark.parametrize(
    "kind",
    ["nccl", pytest.param("nixl", marks=pytest.mark.skipif(not HAS_NIXL, reason="needs nixl"))],
)
def test_values_go_from_device_to_device(plan, kind):
    with contextlib.closing(alpa_mlir.load(plan, workers=hosts(kind))) as step:
        tried = sent(step.loaded.group)
        steps.check_equals_jit(step)
        step.loaded.synchronize()
        for (before, *_), (by_device, by_host, threads) in zip(
            tried, sent(step.loaded.group), strict=True
        ):
            assert before > 0  # Every way is tried at load.
            assert by_device > before
            assert by_host == 0
            assert threads > 0
        if kind != "nccl":
            return
        # One that dies in the middle of a message keeps nobody waiting.
        group = step.loaded.group
        group.call(1, "stop_in_a_message").result(20)
        state, batch = handmade.arguments(2)
        step(state, batch)
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(errors.WorkerError, match=r"worker 1: .*died of SIGKILL"):
            step.loaded.synchronize()
        assert time.monotonic() - began < 15


def start(platform) -> Start:
    return Start(0, TWO.workers, (0,), "", platform, False, 10, 10, {})


class Connected(HostProcess):
    """Has a transport, and no devices yet."""

    def __init__(self):
        super().__init__("127.0.0.1")
        self._transport = connect_in_process(1)[0]


def test_values_go_through_the_host_unless_all_can_do_otherwise():
    assert Connected()._reach_devices(start("cpu"), "auto") is None
    assert Connected()._reach_devices(start("gpu"), "host") is None
    assert HostProcess("127.0.0.1")._reach_devices(start("gpu"), "auto") is None  # One worker.


def test_what_was_asked_for_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    said = r"NCCL: CuPy cannot be imported .*; fix: pip install 'alpa-mlir\[nccl\]'"
    with pytest.raises(errors.TransportError, match=said):
        Connected()._reach_devices(start("gpu"), "nccl")
    with pytest.raises(errors.TransportError, match="nccl moves memory of gpu devices"):
        Connected()._reach_devices(start("cpu"), "nccl")


@pytest.mark.parametrize("kind", [ProcessWorkers, alpa_mlir.RayWorkers])
def test_a_way_that_does_not_exist(kind):
    with pytest.raises(errors.TransportError, match="device_transport 'infiniband', expected one"):
        kind(device_transport="infiniband")
