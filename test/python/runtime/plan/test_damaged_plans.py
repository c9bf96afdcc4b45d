"""Damaged plans: whatever reads one either works or says in one error what is wrong with it."""

from __future__ import annotations

import random
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import alpa_mlir
import handmade
import jax
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import AlpaError, ClusterFileError
from alpa_mlir.export import FORMATS, export_plan
from alpa_mlir.report import write_report
from alpa_mlir.report.explanation import bottlenecks, explain
from alpa_mlir.simulator import simulate
from alpa_runtime.execution.program_merge import merge_step
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import cluster_difference, micro_batches_text
from alpa_runtime.worker_group import Placement
from damage import damage_json, limited
from test_equality import CLUSTER

SECONDS = 10  # For all that is done with one plan.


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of plans: by hand, a pipeline, one mesh, and one that was searched for."""
    root = tmp_path_factory.mktemp("plans")
    gpt = zoo.make_gpt(zoo.GPTConfig(layers=2))
    pipeline = PipeshardParallel(
        submeshes=[(1, 4), (1, 4)], num_micro_batches=2, schedule="zb-h1", remat="all"
    )
    made = [handmade.as_plan(*handmade.two_stages())]
    for model, method in (
        (gpt, pipeline),
        (zoo.get("moe"), ShardParallel(num_micro_batches=2)),
        (zoo.get("mlp"), AutoParallel()),
    ):
        step = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method, cache=False)
        made.append(step.plan(*jax.eval_shape(model.init)).plan)
    return [plan.save(root / str(number)) for number, plan in enumerate(made)]


def damage_plan(rng: random.Random, folder: Path) -> str:
    """Changes one of the files of a plan; says which."""
    files = [folder / "plan.json"] * 4 + sorted(folder.glob("*.json"))
    path = rng.choice(files)
    path.write_bytes(damage_json(rng, path.read_text()))
    return path.name


# What is done with them.


def readers(plan: Plan, whole: Plan, out: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "text", lambda: plan.as_text()
    yield "micro-batches", lambda: micro_batches_text(plan)
    yield "explain", lambda: explain(plan)
    yield "limits", lambda: bottlenecks(plan).as_text()
    yield "diff", lambda: plan.diff(whole).as_text()
    yield "other diff", lambda: whole.diff(plan).as_text()
    yield "cluster", lambda: cluster_difference(plan.cluster, whole.cluster)
    yield "other cluster", lambda: cluster_difference(whole.cluster, plan.cluster)

    def simulated() -> None:
        timeline = simulate(plan)
        timeline.as_text()
        timeline.to_chrome_trace(out / "trace.json")
        timeline.to_svg(out / "picture.svg")

    yield "simulate", simulated
    yield "simulate elsewhere", lambda: simulate(plan, CLUSTER)
    yield "report", lambda: write_report(plan, out / "report.html")
    yield "compare", lambda: write_report(whole, out / "other.html", compare={"other": plan})
    yield "placement", lambda: Placement.by_hosts(plan).check(plan)
    yield "programs", lambda: merge_step(plan)
    yield "arguments", lambda: (plan.arguments, plan.results, plan.num_devices)

    for name in FORMATS:
        yield f"export to {name}", partial(export_plan, plan, name)

    def again() -> None:
        assert Plan.load(plan.save(out / "again")) == plan

    yield "save", again


def messages(folder: Path, whole: Plan, out: Path, at: list[str]) -> list[str]:
    """What readers say of a plan that they refuse; `at` gets the name of each that is tried."""
    said: list[str] = []
    try:
        plan = Plan.load(folder)
    except AlpaError as error:
        return [str(error)]
    for name, read in readers(plan, whole, out):
        at.append(name)
        try:
            read()
        except ClusterFileError as error:  # All that is wrong with it, a line each.
            said += str(error).splitlines()
        except AlpaError as error:
            said.append(str(error))
    return said


def faults(plans: list[Path], seeds: range, tmp_path: Path) -> list[str]:
    """Of each damage that something did not get over the seed, the reader, and what it raised."""
    whole = [Plan.load(folder) for folder in plans]
    found: list[str] = []
    for seed in seeds:
        rng = random.Random(seed)
        number = rng.randrange(len(plans))
        folder = tmp_path / str(seed)
        shutil.copytree(plans[number], folder)
        file, at = damage_plan(rng, folder), ["load"]
        try:
            with limited(SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of compiled programs that are not used.
                said = messages(folder, whole[number], tmp_path, at)
            found += [f"{seed} {text!r}" for text in said if "\n" in text]
            if at == ["load"] and file not in said[0]:
                found.append(f"{seed} {file} is not named: {said[0]}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            found.append(f"{seed} {file} {at[-1]} {place} {type(error).__name__}: {error}"[:300])
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
    return found


def test_damaged_plans(plans: list[Path], tmp_path: Path) -> None:
    assert faults(plans, range(200), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_damaged_plans(plans: list[Path], tmp_path: Path, part: int) -> None:
    assert faults(plans, range(1000 + 1500 * part, 2500 + 1500 * part), tmp_path) == []
