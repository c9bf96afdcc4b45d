"""A saved plan runs without the compiler and solvers; the package is imported without JAX."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import alpa_mlir
import alpa_runtime
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from source_paths import PYTHONPATH

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
import alpa_runtime.hosts.interface
import alpa_runtime.execution.messages
wrong = {"alpa_mlir._native", "alpa_mlir.compiler", "alpa_mlir.methods.automatic"}
wrong |= {"alpa_mlir.trace.tracing", "highspy", "gurobipy", "ray", "iree"}
wrong |= {"tensorstore", "orbax", "optax", "flax"}
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
    environment["PYTHONPATH"] = PYTHONPATH
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
    environment["PYTHONPATH"] = PYTHONPATH
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
        assert value.__module__.startswith(("alpa_mlir.", "alpa_runtime.")), name
    assert alpa_mlir.explain is not alpa_mlir.report.explanation
    assert alpa_runtime.plan.Plan is alpa_mlir.Plan
    assert set(alpa_mlir.__all__) <= set(dir(alpa_mlir))
    assert not hasattr(alpa_mlir, "no_such_name")


def imported_anywhere(tree):
    """Modules that a file names in imports, in functions and for types alone too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports say the whole name of a module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_runtime_names_no_compiler():
    for path in Path(alpa_runtime.__file__).parent.rglob("*.py"):
        names = [*imported_anywhere(ast.parse(path.read_text()))]
        assert not [name for name in names if name.split(".")[0] == "alpa_mlir"], path


ALONE = """
import importlib, pkgutil, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "alpa_mlir":
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import alpa_runtime
assert "jax" not in sys.modules
for found in pkgutil.walk_packages(alpa_runtime.__path__, "alpa_runtime."):
    importlib.import_module(found.name)
"""


def test_runtime_is_imported_alone():
    environment = os.environ | {"PYTHONPATH": str(Path(alpa_runtime.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def imported_when_loaded(body):
    """Names that statements import by themselves: not in functions, nor for types alone."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.level, ".".join(filter(None, (node.module, alias.name)))
        elif isinstance(node, ast.Try):
            yield from imported_when_loaded(node.body)
        elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            yield from imported_when_loaded([*node.body, *node.orelse])


def test_modules_import_only_earlier_ones():
    """In the order of docs/architecture.md, by modules and packages of the top level."""
    package = Path(alpa_mlir.__file__).parent
    page = (package.parents[1] / "docs" / "architecture.md").read_text()
    (order,) = re.findall(r"^Order of imports.*$", page, re.MULTILINE)
    files = {p: p.relative_to(package).with_suffix("").parts for p in package.rglob("*.py")}
    modules = {parts[0] for parts in files.values()} - {"__init__", "__main__"}
    listed = [name for name in re.findall(r"`(\w+)`", order) if name in modules]
    rank = {name: place for place, name in enumerate(dict.fromkeys(listed))}
    assert set(rank) == modules, "list new modules in docs/architecture.md, Python modules"
    wrong: list[str] = []
    for path, parts in files.items():
        for level, name in imported_when_loaded(ast.parse(path.read_text()).body):
            names = ("alpa_mlir", *parts[: len(parts) - level], name) if level else (name,)
            first, second, *_ = (*".".join(names).split("."), "")
            if first == "alpa_mlir" and rank.get(second, 0) > rank.get(parts[0], len(rank)):
                wrong.append(f"{'.'.join(parts)} imports {second}")
    assert not wrong
