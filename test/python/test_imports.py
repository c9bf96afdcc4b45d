"""A saved plan runs without the compiler and solvers; the package is imported without JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np

RUN = """
import sys
import alpa_mlir
assert "jax" not in sys.modules
import numpy as np
alpa_mlir.use_virtual_devices(2)
step = alpa_mlir.load(sys.argv[1])
w, loss = step({"a": np.full((8, 4), 0.1, np.float32)}, np.ones((4, 8), np.float32))
w, loss = step(w, np.ones((4, 8), np.float32))
print(float(loss))
import alpa_mlir.hosts.interface
import alpa_mlir.runtime.messages
wrong = {"alpa_mlir._native", "alpa_mlir.compiler", "alpa_mlir.search", "alpa_mlir.trace"}
wrong |= {"highspy", "gurobipy", "ray", "iree", "tensorstore", "orbax", "optax", "flax"}
print(sorted(wrong & set(sys.modules)))
"""


def step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w["a"]) ** 2))(w)
    return jax.tree.map(lambda p, q: p - 0.1 * q, w, g), loss


def test_running_a_plan_needs_no_compiler(tmp_path):
    w, x = {"a": np.full((8, 4), 0.1, np.float32)}, np.ones((4, 8), np.float32)
    method = alpa_mlir.ShardParallel(mesh_shape=(1, 2))
    alpa_mlir.parallelize(step, cluster="cpu-test", method=method).plan(w, x).save(tmp_path)
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    environment["PYTHONPATH"] = str(Path(alpa_mlir.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loss, wrong = done.stdout.splitlines()
    assert wrong == "[]"
    expected = jax.jit(step)(jax.jit(step)(w, x)[0], x)[1]
    np.testing.assert_allclose(float(loss), expected, rtol=1e-5)


def test_names_come_from_their_modules():
    for name in alpa_mlir.__all__:
        value = getattr(alpa_mlir, name)
        assert value.__module__.startswith("alpa_mlir."), name
    assert alpa_mlir.explain is not alpa_mlir.explanation
    assert alpa_mlir.plan.Plan is alpa_mlir.Plan
    assert set(alpa_mlir.__all__) <= set(dir(alpa_mlir))
    assert not hasattr(alpa_mlir, "no_such_name")
