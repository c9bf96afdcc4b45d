"""Plans that were saved here run with later versions of JAX, without the compiler.

They are not made for the Python of the pinned environment, so each gets an environment of its own,
with what a worker needs and nothing else. NEWER_PYTHON names a Python for them.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import alpa_mlir
import jax
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_runtime.checkpoint import save_checkpoint
from source_paths import PYTHONPATH, SUPPORT
from test_equality import CLUSTER
from test_schedule_equality import model

ALL = ("here", "threads", "processes")
TWO = ((0, 1), (2,))  # Devices of each worker.
NEEDED = ("numpy>=2", "scipy", "shtab", "tqdm", "tensorstore>=0.1.86")
PYTHONS = ("python3.12", "python3.13", "python3.14")


def flat_step(name, tree):
    """A model's step whose state and metrics are lists: their classes are not needed to run it."""

    def step(leaves, batch):
        state, metrics = model(name).step(jax.tree.unflatten(tree, leaves), batch)
        return jax.tree.leaves(state), jax.tree.leaves(metrics)

    return step


def save_case(folder, name, method, placement, how, checkpoint=False):
    folder.mkdir()
    state, batch = jax.device_get(model(name).init())
    leaves, tree = jax.tree.flatten(state)
    planned = alpa_mlir.parallelize(flat_step(name, tree), cluster=CLUSTER, method=method).plan(
        leaves, batch
    )
    planned.save(folder / "plan")
    step, steps, current = jax.jit(model(name).step), [], state
    for number in (1, 2):
        current, metrics = step(current, batch)
        found = jax.device_get((jax.tree.leaves(current), jax.tree.leaves(metrics)))
        steps.append(found)
        if checkpoint and number == 1:
            save_checkpoint(folder / "checkpoints", found[0], step=1).wait()
    case = {"state": leaves, "batch": batch, "steps": steps, "placement": placement, "how": how}
    (folder / "case.pickle").write_bytes(pickle.dumps(case))


def staged(**options):
    return PipeshardParallel(submeshes=[(1, 2), (1, 1)], num_micro_batches=4, layers=4, **options)


@pytest.fixture(scope="module")
def later_python():
    """A Python that later versions of JAX are made for; skips where there is none."""
    given = os.environ.get("NEWER_PYTHON")
    own = sys.executable if sys.version_info >= (3, 12) else None
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    kept = [str(x) for n in PYTHONS for x in pyenv.glob(f"{n.removeprefix('python')}.*/bin/python")]
    for name in filter(None, (given, own, *PYTHONS, *kept)):
        # A name on the path may be that of a program which only says that there is none.
        if (
            shutil.which(name)
            and not subprocess.run([name, "-c", ""], capture_output=True).returncode
        ):
            return name
    pytest.skip(f"no Python for later versions of JAX: none of {', '.join(PYTHONS)} runs")


@pytest.fixture(scope="module")
def cases(tmp_path_factory, later_python):
    folder = tmp_path_factory.mktemp("cases")
    save_case(folder / "gpt", "gpt", staged(schedule="1f1b"), TWO, ALL, checkpoint=True)
    save_case(folder / "moe", "moe", staged(export="collectives"), TWO, ALL)
    save_case(folder / "unet", "unet", staged(), TWO, ALL)
    one = ShardParallel(mesh_shape=(2, 2), num_micro_batches=2)
    # Both processes have a part of its mesh.
    save_case(folder / "spanning", "gpt", one, ((0, 1), (2, 3)), ("here", "processes"))
    return folder


def environment(python, *packages):
    """The Python of an environment with these packages, made once and kept."""
    code = "import sys; print(sys.version)"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    key = hashlib.sha256("\n".join((version.stdout, *packages)).encode()).hexdigest()[:16]
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "alpa_mlir-tests"
    folder = kept / key
    found = folder / "bin" / "python"
    if not (folder / "complete").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        install = [str(found), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        done = subprocess.run([*install, *packages], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:]
            pytest.skip(f"pip cannot install {packages[0]} for {python}: {' '.join(reason)}")
        (folder / "complete").touch()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.11.0", "0.12.0.1"])
def test_saved_plans_run(version, later_python, cases, tmp_path):
    python = environment(later_python, f"jax=={version}", f"jaxlib=={version}", *NEEDED)
    own = shutil.copytree(cases, tmp_path / "cases")
    keep = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC", "PYTHONPATH")}
    keep |= {
        "PYTHONPATH": PYTHONPATH,
        "ALPA_MLIR_CACHE": str(tmp_path / "cache"),
    }
    program = SUPPORT / "run_saved_plans.py"
    done = subprocess.run(
        [str(python), "-W", "error", str(program), str(own)],
        env=keep,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("jax ")]
    assert len(lines) == 3 * len(ALL) + 2
    assert all(line.startswith(f"jax {version}: ") for line in lines)
