"""Steps give the numbers of plain `jax.jit` with the instructions of other processors too.

Vectors of another width and fused multiply-adds round sums differently.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from source_paths import ROOT

HERE = Path(__file__).parent
# Adam, momentum and plain descent; both exports; one mesh, pipelines, sums and clipping.
FILES = (
    "test_exports.py",
    "test_equality.py",
    "schedule/test_schedule_equality.py",
    "spmd/test_deferred_sums.py",
)


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["SSE4_2", "AVX2", "AVX512"])
def test_equality_with(instructions):
    """With at most these instructions; with fewer where this processor has fewer."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={instructions}"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0"]
    done = subprocess.run(
        [*command, *(str(HERE / name) for name in FILES)],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags.strip()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
