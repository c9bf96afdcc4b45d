"""Real workers that die in the middle of a run: benchmark/runtime/faults.py, on a small scale."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from source_paths import ROOT

FAULTS = ROOT / "benchmark" / "runtime" / "faults.py"


def may_mount():
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--stops", "1", "--drivers", "1", "--frozen-seconds", "8"],
        ["--spanning"],
        ["--hosts", "launched", "--drivers", "1", "--lost-hosts", "1"],
        ["--hosts", "ray"],
        ["--disks", "2", "--every", "5", "--steps", "60"],
    ],
)
def test_nothing_is_lost(options):
    if "--disks" in options and not may_mount():
        pytest.skip("mounting a small disk is not permitted here")
    command = [sys.executable, str(FAULTS), "--kills", "3", "--steps", "40", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["happened"] == result["wanted"]
    assert result["losses_equal"] == result["steps"]
    assert result["different"] == []
    assert not result["orphans"]
    assert not result["shared_memory_left"]
