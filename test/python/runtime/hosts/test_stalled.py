"""Workers that live and do not get on: they are found, say what they wait for, and are replaced."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re

import alpa_mlir
import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import steps
from alpa_mlir import PipeshardParallel, errors, training
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.hosts.watchdog import Limits, Stillness
from alpa_runtime.worker_group import Placement
from source_paths import SUPPORT
from test_equality import CLUSTER
from test_hosts import BUSY, gone, running

STATE = handmade.arguments(2)[0]
STEPS = 6
SHORT = Limits(start_seconds=120, frozen_seconds=20, stalled_seconds=2)


def batch(number):
    rng = np.random.default_rng(number)
    return {
        key: rng.standard_normal(x.shape, x.dtype) for key, x in handmade.arguments(2)[1].items()
    }


def test_a_run_gets_over_a_message_that_never_comes(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="alpa_mlir.training")
    state, expected = STATE, []
    step = steps.two_stage_step(2)
    for number in range(STEPS):
        state, loss, _ = step(state, batch(number))
        expected.append(float(loss))
    (tmp_path / "lose").write_text("0 4")
    program = [str(SUPPORT / "losing_worker.py"), str(tmp_path)]
    placement = Placement(((0, 1), (2, 3)))
    found, processes, loaded = [], {}, []
    workers = ProcessWorkers(placement, platform="cpu", limits=BUSY, program=program)

    def load():
        loaded.append(alpa_mlir.load(steps.two_stage_plan(2), workers=workers))
        processes.update(running(loaded[-1].loaded.group.pids))
        return loaded[-1]

    def heard(number, result):
        found.append((number, float(result[0])))
        if number == 3 and len(loaded) == 1:  # Whoever stands still from here on waits forever.
            group = loaded[0].loaded.group
            group.limits = dataclasses.replace(group.limits, stalled_seconds=2)

    resume = training.Resume(tmp_path / "checkpoints", every=3)
    training.run(load, STATE, batch, STEPS, resume, on_result=heard)
    loaded[-1].close()
    assert found == list(enumerate(expected))
    assert len(processes) == 4
    (line,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert re.search(
        r"no progress for \d+ s: worker 0 in step 4 at instruction \d+ of \d+: receive \d+ on "
        r"mesh 0, from worker 1; worker 1 in step 4 at instruction \d+ of \d+: receive \d+ on "
        r"mesh 1, from worker 0",
        line,
    ), line
    assert gone(processes)


def counted(params, batch):
    """Counts up to one, slowly or never, between two layers."""
    h = jnp.tanh(batch @ params["first"])
    turns = jax.lax.while_loop(lambda c: c < 1.0, lambda c: c + params["pace"], 0.0)
    return jnp.tanh(h * turns @ params["last"])


def test_a_program_without_end_is_named():
    """Nothing else is wrong: the worker answers, and no other one waits for a message."""
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("first", "last")}
    params["pace"] = np.float32(0.25)
    x = rng.standard_normal((8, 8)).astype(np.float32)
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=2, layers=2)
    plan = alpa_mlir.parallelize(counted, cluster=CLUSTER, method=method).plan(params, x)
    hosts = ProcessWorkers(Placement(((0,), (1,))), platform="cpu", limits=SHORT)
    with contextlib.closing(plan.load(workers=hosts)) as step:
        processes = running(step.loaded.group.pids)
        np.testing.assert_allclose(
            np.asarray(step(params, x)), jax.jit(counted)(params, x), rtol=1e-5, atol=1e-6
        )
        endless = step({**params, "pace": np.float32(0)}, x)
        with pytest.raises(errors.WorkerError, match="no progress for"):
            np.asarray(endless)
        with pytest.raises(errors.WorkerStalledError) as error:
            step(params, x)
        # XLA on the CPU runs a program in the thread that starts it, or in one of its own.
        never = "(in step 1 at instruction 2 of 6|not done of step 1): forward 0 on mesh 0"
        waits = "in step 1 at instruction 1 of 4: receive 0 on mesh 1, from worker 0"
        assert re.search(f"worker 0 .*{never}; worker 1 {waits}", error.value.what)
        assert "Limits(stalled_seconds=..)" in error.value.fix
    assert gone(processes)


def test_what_counts_as_stillness():
    still = Stillness()
    clock = 100.0

    def look(*marks, seconds=0.5):
        nonlocal clock
        clock += seconds
        for rank, mark in enumerate(marks):
            still.heard(rank, mark)
        return still.look(clock)

    assert look(None, None) == look(None, None) == 0  # Nothing to do.
    for turn in range(4):  # One of them moves.
        assert look((3,), (turn,)) == 0.5
    assert look((3,), None) == 0.5
    assert [look((3,), None) for _ in range(3)] == [1.0, 1.5, 2.0]
    assert look((3,), None, seconds=1000) == 4.0  # Nobody looked: this process was stopped.
    assert look((2,), None) == 0.5


@pytest.mark.parametrize("name", ["start_seconds", "frozen_seconds", "stalled_seconds"])
def test_limits_are_times(name):
    with pytest.raises(errors.ArgumentMismatchError, match=f"Limits: {name}=0; fix: give more"):
        Limits(**{name: 0})
    assert Limits(stalled_seconds=None).stalled_seconds is None
