"""StableHLO without JAX's names goes through `alpa-opt` as a forward graph, in equal layers."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp

ROOT = Path(__file__).resolve().parents[3]
ALPA_OPT = Path(os.environ.get("ALPA_BUILD", ROOT / "build")) / "bin" / "alpa-opt"
BLOCKS, WIDTH = 16, 16  # Fewer are cut into halves.


def forward(weights, x):
    for first, second in weights:
        x = x + jax.nn.relu(x @ first) @ second
    return jnp.sin(x)


def test_a_file_from_elsewhere(tmp_path):
    weights = [(jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),) * 2] * BLOCKS
    x = jax.ShapeDtypeStruct((4, WIDTH), jnp.float32)
    bare = tmp_path / "bare.mlir"
    bare.write_text(jax.jit(forward).lower(weights, x).as_text())
    assert "loc(" not in bare.read_text()
    run = subprocess.run(
        [ALPA_OPT, bare, "-alpa-import", "-alpa-cluster-layers"],
        capture_output=True,
        text=True,
        check=True,
    )
    ops: dict[int, Counter] = {}
    for line in run.stdout.splitlines():
        if found := re.search(r"stablehlo\.(\w+).*alpa\.layer = (\d+)", line):
            assert 'alpa.phase = "forward"' in line
            ops.setdefault(int(found[2]), Counter())[found[1]] += 1
    assert sorted(ops) == list(range(BLOCKS))
    assert all(ops[layer]["dot_general"] == 2 for layer in ops)
    assert all(ops[layer] == ops[0] for layer in range(BLOCKS - 1))
    assert ops[BLOCKS - 1] == ops[0] + Counter(sine=1)
