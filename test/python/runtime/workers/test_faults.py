"""Real workers that die in the middle of a run: benchmark/faults.py, on a small scale."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from source_paths import ROOT

FAULTS = ROOT / "benchmark" / "faults.py"


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--spanning"], ["--hosts", "ray"]])
def test_nothing_is_lost(options):
    command = [sys.executable, str(FAULTS), "--kills", "3", "--steps", "30", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["kills"], result["losses_equal"]) == (3, 30)
    assert not result["orphans"]
    assert not result["shared_memory_left"]
