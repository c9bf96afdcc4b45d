"""The same question has the same answer: byte-identical plans on a busy machine, with other numbers
of threads, and from other directories."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import alpa_mlir
import jax
import pytest
import zoo
from alpa_mlir import AutoParallel
from alpa_mlir.search import planner
from alpa_runtime.plan import Plan
from source_paths import PYTHONPATH
from test_equality import CLUSTER

# So that memory binds: prices, mixed plans and stages that are solved under the limit come up.
MEMORY = "290KiB"
METHOD = AutoParallel(num_micro_batches=(2, 4))


def cluster():
    fields = json.loads(json.dumps(CLUSTER))
    fields["device_types"]["small"]["memory_bytes"] = MEMORY
    return fields


def plan_gpt():
    model = zoo.get("gpt")
    state, batch = jax.eval_shape(model.init)
    function = alpa_mlir.parallelize(model.step, cluster=cluster(), method=METHOD)
    return function.trace(state, batch).plan(cache=False).plan


def files_of(plan, folder):
    """The plan's files by name, but for the one that says how long the search took."""
    plan.save(folder)
    found = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    assert found.pop("planning.json")
    return found


@contextmanager
def burning():
    """Both cores, and more if there are, have twice as much other work as they can do."""
    count = 2 * (os.cpu_count() or 2)
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
        assert all(other.poll() is None for other in others)
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    plan = plan_gpt()
    assert not plan.timed_out_solves
    return files_of(plan, tmp_path_factory.mktemp("idle"))


def test_memory_binds(idle):
    """Or the others would compare little."""
    plan = json.loads(idle["plan.json"])
    fields = json.loads(json.dumps(CLUSTER))
    model = zoo.get("gpt")
    state, batch = jax.eval_shape(model.init)
    free = alpa_mlir.parallelize(model.step, cluster=fields, method=METHOD)
    seconds = free.trace(state, batch).plan(cache=False).plan.predicted["step_seconds"]
    assert plan["predicted"]["step_seconds"] > seconds


def test_a_busy_machine(idle, tmp_path):
    with burning():
        plan = plan_gpt()
    assert files_of(plan, tmp_path) == idle


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_threads(idle, tmp_path, monkeypatch, threads):
    module = functools.partial(planner.Module, threads=threads)
    monkeypatch.setattr(planner, "Module", module)
    assert files_of(plan_gpt(), tmp_path) == idle


def test_another_directory_and_process(idle, tmp_path):
    """With other hash seeds, temporary files and addresses, too."""
    script = "from test_same_plan import plan_gpt\nimport sys\nplan_gpt().save(sys.argv[1])\n"
    here = Path(__file__).parent
    folder = tmp_path / "elsewhere"
    (folder / "temporary").mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([PYTHONPATH, *sys.path, str(here)]),
        "PYTHONHASHSEED": "1",
        "TMPDIR": str(folder / "temporary"),
    }
    subprocess.run([sys.executable, "-c", script, "plan"], cwd=folder, env=environment, check=True)
    assert (folder / "plan" / "plan.json").read_bytes() == idle["plan.json"]
    assert files_of(Plan.load(folder / "plan"), tmp_path / "again") == idle


def test_the_clock_says_that_it_struck(tmp_path):
    """A plan that the time limit decided about says so, and is not kept for later."""
    model = zoo.get("gpt")
    state, batch = jax.eval_shape(model.init)
    method = AutoParallel(num_micro_batches=2, time_limit_seconds=1e-9)
    function = alpa_mlir.parallelize(model.step, cluster=cluster(), method=method)
    found = function.trace(state, batch).plan(cache=tmp_path)
    assert found.plan.timed_out_solves > 0
    assert "the time limit ended" in found.as_text()
    assert [path.name for path in tmp_path.iterdir()] == ["solved"]
    # What has nothing to choose is proven without a search.
    kept = [path.read_text().split("\n")[1] for path in (tmp_path / "solved").iterdir()]
    assert all(choices == [] for entry in kept for choices, *_ in json.loads(entry)["points"])
