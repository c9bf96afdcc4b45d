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
import pytest

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


# Notes what is opened for writing and started while code runs, and compares the process before.
SIDE_EFFECTS = """
import os, sys, threading
import jax  # What it does itself does not count.
from jax._src import xla_bridge
writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
done = []
def note(event, args):
    if event == "open" and args[2] & writes and not str(args[0]).startswith("/dev/"):
        done.append((event, args))
    does = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.putenv", "os.mkdir", "os.rename")
    if event in does or event.startswith("socket.") and event != "socket.gethostname":
        done.append((event, args))
sys.dont_write_bytecode = True  # Python's own habit.
sys.addaudithook(note)
before = dict(os.environ), threading.active_count(), os.getcwd(), sys.flags, list(sys.path)
import alpa_mlir
if sys.argv[1] == "names":
    for name in alpa_mlir.__all__:
        getattr(alpa_mlir, name)
if sys.argv[1] == "command line":
    from alpa_mlir import cli
    cli.parser()
    try:
        cli.main(["--help"])
    except SystemExit:
        pass
after = dict(os.environ), threading.active_count(), os.getcwd(), sys.flags, list(sys.path)
assert before == after, (before, after)
assert not done, done
assert not xla_bridge.backends_are_initialized()
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


@pytest.mark.parametrize("what", ["package", "names", "command line"])
def test_importing_has_no_side_effects(what):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    environment["PYTHONPATH"] = str(Path(alpa_mlir.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SIDE_EFFECTS, what],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_names_come_from_their_modules():
    for name in alpa_mlir.__all__:
        value = getattr(alpa_mlir, name)
        assert value.__module__.startswith("alpa_mlir."), name
    assert alpa_mlir.explain is not alpa_mlir.explanation
    assert alpa_mlir.plan.Plan is alpa_mlir.Plan
    assert set(alpa_mlir.__all__) <= set(dir(alpa_mlir))
    assert not hasattr(alpa_mlir, "no_such_name")
