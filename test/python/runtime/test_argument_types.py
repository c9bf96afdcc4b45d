"""Arguments of wrong types are named where users call, before anything is begun."""

from __future__ import annotations

import pathlib

import alpa_mlir
import handmade
import numpy as np
import pytest
import steps
from alpa_mlir import errors, training
from alpa_mlir.training import Resume
from alpa_runtime.errors import FLAG, FUNCTION, NUMBER, PATH, ROW, ROWS, WHOLE
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.worker_group import HOSTS

STEP = handmade.reference_step


@pytest.fixture(scope="module")
def plan():
    return steps.two_stage_plan(2)


def unused(*_):
    raise AssertionError("nothing is called before the arguments are looked at")


# Each is called with a plan; what the error says of where, what and the remedy.
CALLS = {
    "load workers": (lambda p: alpa_mlir.load(p, workers=3), "load: workers=3 is an int; fix: "),
    "load a class": (
        lambda p: alpa_mlir.load(p, workers=alpa_mlir.ThreadWorkers),
        r"workers is the class ThreadWorkers itself; fix: call it: ThreadWorkers\(\.\.\)",
    ),
    "load plan": (lambda _: alpa_mlir.load(STEP), "plan is a function; fix: give a Plan or a str"),
    "load None": (lambda _: alpa_mlir.load(None), "load: plan is None"),
    "load devices": (lambda p: alpa_mlir.load(p, devices=3), "devices=3 is an int"),
    "load donate": (lambda p: alpa_mlir.load(p, donate_state="yes"), "donate_state='yes' is a str"),
    "load progress": (lambda p: alpa_mlir.load(p, progress=3), "progress=3 is an int"),
    "load backend": (lambda p: alpa_mlir.load(p, backend=3), "backend=3 .* give a string"),
    "load cache": (lambda p: alpa_mlir.load(p, cache=3), "cache=3 .* True, False or a folder"),
    "load cluster": (lambda p: alpa_mlir.load(p, cluster=["a"]), "cluster=.* is a list; .* Clu"),
    "compile fn": (lambda _: alpa_mlir.compile(3, 1), "compile: fn=3 is an int; .*a function"),
    "compile cluster": (lambda _: alpa_mlir.compile(STEP, 1, cluster=["a"]), "is a list; fix"),
    "compile method": (lambda _: alpa_mlir.compile(STEP, 1, method="auto"), "method='auto' is a s"),
    "compile workers": (lambda _: alpa_mlir.compile(STEP, 1, workers=3), "workers=3 is an int"),
    "compile argnums": (lambda _: alpa_mlir.compile(STEP, batch_argnums="1"), "is a str"),
    "compile a plan": (lambda p: alpa_mlir.compile(p, 1), "compile: fn is a Plan; fix: .* func"),
    "parallelize": (lambda _: alpa_mlir.parallelize(3), "parallelize: fn=3 is an int"),
    "plan": (
        lambda _: alpa_mlir.parallelize(STEP).trace(*handmade.arguments(2)).plan([1]),
        r"TracedStep.plan: cluster=\[1\] is a list",
    ),
    "submeshes": (lambda _: alpa_mlir.PipeshardParallel(submeshes=2), "submeshes=2 is an int"),
    "layer_num": (lambda _: alpa_mlir.AutoLayerOption(layer_num="2"), "layer_num='2' is a str"),
    "stages": (lambda _: alpa_mlir.ManualStageOption(3, 3), "ManualStageOption: .*=3 is an int"),
    "follow": (lambda _: alpa_mlir.FollowParallel(STEP), "src_func is a function; .*ParallelFun"),
    "placement": (lambda _: alpa_mlir.Placement([0, 1]), r"Placement: workers=\[0, 1\] is a list"),
    "processes": (lambda _: alpa_mlir.ProcessWorkers(3), "ProcessWorkers: placement=3 is an int"),
    "spares": (lambda _: alpa_mlir.ProcessWorkers(spares="2"), "spares='2' is a str"),
    "limits": (lambda _: Limits(start_seconds="1"), "start_seconds='1' is a str; .* a number"),
    "threads": (lambda p: alpa_mlir.ThreadWorkers(p), "ThreadWorkers: placement is a Plan"),
    "Ray": (lambda _: alpa_mlir.RayWorkers(3), "RayWorkers: address=3 is an int"),
    "save": (lambda _: alpa_mlir.save_checkpoint(3, {}, step=1), "folder=3 .* a string or a path"),
    "restore": (lambda _: alpa_mlir.restore_checkpoint(3), "restore_checkpoint: folder=3"),
    "latest": (lambda _: alpa_mlir.latest_checkpoint(None), "folder is None; fix: give a string"),
    "simulate": (lambda _: alpa_mlir.simulate(STEP), "simulate: plan is a function; fix: give a"),
    "explain": (lambda _: alpa_mlir.explain(3), "explain: plan=3"),
    "loader": (lambda p: alpa_mlir.DataLoader([1], p), "step is a Plan; fix: give a loaded step"),
    "ahead": (lambda _: alpa_mlir.compile_ahead(3), "compile_ahead: folder=3"),
    "Plan.load": (lambda _: alpa_mlir.Plan.load(3), "Plan.load: folder=3"),
    "Plan.save": (lambda p: p.save(3), "Plan.save: folder=3"),
    "devices": (lambda _: alpa_mlir.use_virtual_devices("8"), "count='8' is a str"),
    "cluster file": (lambda _: alpa_mlir.Cluster.load(3), "Cluster.load: name_or_path=3"),
    "method of": (lambda _: alpa_mlir.plan_to_method("my_plan"), "plan='my_plan' is a str"),
    "grad": (lambda _: alpa_mlir.grad(3), "grad: fun=3 is an int; fix: give a function"),
    "problem": (lambda _: alpa_mlir.solve_problem(3), "problem=3 is an int; fix: give a string"),
    "init": (lambda _: alpa_mlir.init(3), "init: cluster=3 is an int"),
    "every": (lambda _: Resume("run", every="3"), "Resume: every='3' is a str"),
    "folder": (lambda _: Resume(3), "Resume: folder=3 is an int"),
    "resume": (lambda _: training.run(unused, {}, [], 1, "run"), "resume='run' is a str; .* Res"),
    "batches": (lambda _: training.run(unused, {}, 3, 1, Resume("run")), "batches=3 is an int"),
    "steps": (lambda _: training.run(unused, {}, [], "3", Resume("run")), "steps='3' is a str"),
    "run load": (lambda p: training.run(p, {}, [], 1, Resume("run")), "load is a Plan; .* func"),
    "elastic": (
        lambda p: training.Elastic({1: p}, alpa_mlir.ThreadWorkers()),
        r"workers is a ThreadWorkers; .* how many hosts are there: LaunchedWorkers\(\) or Ray",
    ),
    "loaded": (
        lambda p: training.run(lambda: p, {}, [], 1, Resume("no/such/run")),
        "load: the step is a Plan; fix: give a loaded step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_named(plan, name):
    call, message = CALLS[name]
    with pytest.raises(errors.ArgumentTypeError, match=message) as caught:
        call(plan)
    assert isinstance(caught.value, TypeError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind", "does"),
    [
        (np.int64(3), WHOLE, True),
        (True, WHOLE, False),
        (3.0, WHOLE, False),
        (np.float32(3), NUMBER, True),
        (3, NUMBER, True),
        (np.bool_(1), FLAG, True),
        (2, FLAG, False),
        (pathlib.PurePosixPath("x"), PATH, True),
        (b"x", PATH, False),
        (np.array([1, 2]), ROW, True),
        ("ab", ROW, False),
        ([(1, 2, "a100")], ROWS, True),
        ([1], ROWS, False),
        (len, FUNCTION, True),
        (alpa_mlir.ThreadWorkers(), HOSTS, True),
        (alpa_mlir.ThreadWorkers, HOSTS, False),
    ],
)
def test_what_fits(value, kind, does):
    assert kind.fits(value) is does


def test_what_is_right_or_missing_is_left_to_the_function(plan):
    with pytest.raises(TypeError, match="unexpected keyword argument 'worker'"):
        alpa_mlir.load(plan, worker=None)
    with pytest.raises(errors.MethodError, match="'4' micro-batches"):
        alpa_mlir.PipeshardParallel(num_micro_batches="4")
    assert Resume(pathlib.Path("run"), every=np.int64(3)).every == 3
