"""A saved plan runs without the compiler and solvers; the package is imported without JAX."""

from __future__ import annotations

import ast
import graphlib
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
import alpa_runtime.worker_group
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


def modules_of(package):
    """Every module of a package by its name, with the modules that it imports anywhere."""
    root = Path(str(package.__file__)).parents[1]
    paths = {
        ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p
        for p in Path(str(package.__file__)).parent.rglob("*.py")
    }
    found = {}
    for module, path in paths.items():
        names = imported_anywhere(ast.parse(path.read_text()))
        nearest = (n if n in paths else n.rpartition(".")[0] for n in names)
        found[module] = {name for name in nearest if name in paths and name != module}
    return found


@pytest.mark.parametrize("package", [alpa_mlir, alpa_runtime], ids=lambda p: p.__name__)
def test_no_circles(package):
    """Not of modules, in functions and for types alone neither."""
    graphlib.TopologicalSorter(modules_of(package)).prepare()


@pytest.mark.parametrize("package", [alpa_mlir, alpa_runtime], ids=lambda p: p.__name__)
def test_packages_import_only_earlier_ones(package):
    """In the order of docs/architecture.md, by modules and packages of the top level."""
    page = (Path(alpa_mlir.__file__).parents[2] / "docs" / "architecture.md").read_text()
    _, found_heading, section = page.partition(f"### Order of imports in `{package.__name__}`\n")
    assert found_heading
    table = section.partition("\n\n")[0]
    found = modules_of(package)
    top = {m: (*m.split("."), "")[1] for m in found}
    modules = {*top.values()} - {"", "__main__"}
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    rank = {name: place for place, name in enumerate(listed)}
    assert set(rank) == modules, "list new modules in docs/architecture.md, Python modules"
    wrong = [
        f"{module} imports {name}"
        for module, names in found.items()
        for name in names
        if rank.get(top[name], -1) > rank.get(top[module], len(rank))
    ]
    assert not wrong


# What decides something by a text, rather than showing it.
DECIDING = {"startswith", "endswith", "find", "index", "count", "partition", "rpartition", "split"}
DECIDING |= {"match", "search", "fullmatch", "findall", "finditer", "removeprefix", "removesuffix"}


def decisions_by_text(function):
    """Lines of a function that decide something by the text of an error.

    Errors are what it catches, and parameters of such a type; their texts are `str(error)`, the
    parts of an AlpaError, and what is made of them.
    """
    errors = {n.name for n in ast.walk(function) if isinstance(n, ast.ExceptHandler)}
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        if argument.annotation and re.search("Error|Exception", ast.unparse(argument.annotation)):
            errors.add(argument.arg)
    texts = set()

    def is_text(node):
        for part in ast.walk(node):
            match part:
                case ast.Call(func=ast.Name("str" | "repr"), args=[ast.Name(name)]):
                    found = name in errors
                case ast.Attribute(ast.Name(name), "what" | "where" | "fix" | "args"):
                    found = name in errors
                case ast.FormattedValue(ast.Name(name)):
                    found = name in errors
                case ast.Name(name):
                    found = name in texts
                case _:
                    found = False
            if found:
                return True
        return False

    for node in ast.walk(function):
        match node:
            case ast.Assign([ast.Name(name)], value) if is_text(value):
                texts.add(name)
            case ast.comprehension(ast.Name(name), value) if is_text(value):
                texts.add(name)
            case ast.For(ast.Name(name), value) if is_text(value):
                texts.add(name)
    for node in ast.walk(function):
        match node:
            case ast.Compare(left, _, others) if any(map(is_text, [left, *others])):
                yield node.lineno
            case ast.Call(ast.Attribute(_, "split"), []):
                pass  # All in one line.
            case ast.Call(ast.Attribute(text, name), args) if name in DECIDING:
                if any(map(is_text, [text, *args])):
                    yield node.lineno


def functions_of(source):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


@pytest.mark.parametrize("package", [alpa_mlir, alpa_runtime], ids=lambda p: p.__name__)
def test_nothing_decides_by_the_text_of_an_error(package):
    """Errors have classes and codes; only foreign_errors reads what other programs say."""
    found = [
        f"{path}:{line}"
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        if path.name != "foreign_errors.py"
        for function in functions_of(path.read_text())
        for line in decisions_by_text(function)
    ]
    assert not found


@pytest.mark.parametrize(
    "body",
    [
        "try: g()\n except OSError as e:\n  if 'full' in str(e): raise",
        "try: g()\n except OSError as e:\n  text = f'{e}'\n  return text.startswith('x')",
        "return re.search('x', error.what)",
        "return any(word in str(error) for word in WORDS)",
        "return [line for line in str(error).splitlines() if 'error: ' in line]",
    ],
)
def test_decisions_by_text_are_found(body):
    (function,) = functions_of(f"def f(error: AlpaError):\n {body}")
    assert [*decisions_by_text(function)]


def test_foreign_errors_are_read_in_one_place():
    source = (Path(alpa_runtime.__file__).parent / "foreign_errors.py").read_text()
    assert sum(len([*decisions_by_text(function)]) for function in functions_of(source)) > 5
