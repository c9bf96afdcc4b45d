"""The wheel holds all that a user needs: the native module and the programs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = """
import alpa_mlir, jax, jax.numpy as jnp, sys
assert alpa_mlir.__file__.startswith(sys.argv[1]), alpa_mlir.__file__
alpa_mlir.use_virtual_devices(8)
def step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2))(w)
    return jax.tree.map(lambda p, q: p - 0.1 * q, w, g), loss
w = {"a": jnp.full((16, 32), 0.1), "b": jnp.full((32, 8), 0.1)}
x = jnp.linspace(0, 1, 8 * 16).reshape(8, 16)
parallel = alpa_mlir.parallelize(step, cluster="cpu-test")
assert jnp.allclose(parallel(w, x)[1], jax.jit(step)(w, x)[1], rtol=1e-5)
"""


@pytest.mark.slow
def test_wheel_works_by_itself(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q"]
    subprocess.run([*pip, "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(folder)
    assert sum(name.startswith("alpa_mlir/_native") for name in names) == 1
    for tool in ("alpa-opt", "alpa-solve"):
        (program,) = (name for name in names if name.endswith(f"scripts/{tool}"))
        (folder / program).chmod(0o755)
        subprocess.run([folder / program, "--version"], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    for name in ("XLA_FLAGS", "NPROC"):
        environment.pop(name, None)
    subprocess.run([sys.executable, "-c", STEP, str(folder)], check=True, env=environment)
