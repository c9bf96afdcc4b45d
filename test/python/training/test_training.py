"""The training loop gets over failures, and its results are those of an undisturbed run."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import alpa_mlir
import handmade
import jax
import numpy as np
import pytest
import steps
from alpa_mlir import errors, latest_checkpoint, restore_checkpoint, save_checkpoint, training
from alpa_mlir.training import Resume
from alpa_runtime import trees
from alpa_runtime.checkpoint import save_restore, steps_in

STATE = handmade.arguments(2)[0]


def batch(number):
    rng = np.random.default_rng(number)
    return {
        key: rng.standard_normal(x.shape, x.dtype) for key, x in handmade.arguments(2)[1].items()
    }


@pytest.fixture(scope="module")
def step():
    return steps.two_stage_step(2)


@pytest.fixture(scope="module")
def losses(step):
    """Of ten steps to which nothing happens."""
    state, found = STATE, []
    for number in range(10):
        state, loss, _ = step(state, batch(number))
        found.append(float(loss))
    return found


class Flaky:
    """A step whose calls fail, each by its count over all workers."""

    def __init__(self, step, failing, calls):
        self.step, self.failing, self.calls = step, failing, calls
        self.closed = False

    def __call__(self, *args):
        assert not self.closed
        self.calls.append(1)
        error = self.failing.get(len(self.calls))
        if error is not None:
            raise error
        return self.step(*args)

    def state_target(self):
        return self.step.state_target()

    def close(self):
        self.closed = True


class Loads:
    """Loads flaky steps, and remembers them."""

    def __init__(self, step, failing):
        self.step, self.failing = step, failing
        self.calls, self.given = [], []

    def __call__(self):
        self.given.append(Flaky(self.step, self.failing, self.calls))
        return self.given[-1]


def lost(rank=1):
    return errors.WorkerLostError("died of SIGKILL", where=f"worker {rank}", rank=rank)


def test_results_are_those_of_an_undisturbed_run(step, losses, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="alpa_mlir.training")
    load = Loads(step, {2: lost(), 7: errors.TransportError("rank 1 is gone", peer=1), 9: lost(0)})
    seen = []
    state = training.run(
        load,
        lambda: STATE,
        batch,
        10,
        Resume(tmp_path, every=3),
        on_result=lambda number, result: seen.append((number, float(result[0]))),
    )
    assert seen == list(enumerate(losses))
    assert len(load.given) == 4
    assert [one.closed for one in load.given] == [True, True, True, False]
    assert latest_checkpoint(tmp_path) == 10
    assert np.isfinite(np.asarray(state["w0"])).all()
    lines = [record.getMessage() for record in caplog.records]
    assert "step 1: worker 1: died of SIGKILL" in lines
    assert f"going on from the checkpoint of step 3 in {tmp_path}" in lines
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("several", [False, True])
def test_batches_are_placed_ahead(losses, tmp_path, several):
    """The step itself gets its batches from a loader, as one argument or as several."""
    plan = steps.two_stage_plan(2)
    if several:
        arguments = trees.encode(jax.tree.structure((STATE, 0, 0)))
        plan = replace(plan, call=replace(plan.call, arguments=arguments))
    step = alpa_mlir.load(plan)
    asked, seen = [], []

    def numbered(number):
        asked.append((number, threading.current_thread().name))
        found = batch(number)
        return (found["x"], found["y"]) if several else found

    for count in (2, 5):
        training.run(
            lambda: step,
            STATE,
            numbered,
            count,
            Resume(tmp_path, every=2),
            on_result=lambda number, result: seen.append((number, float(result[0]))),
        )
    assert seen == list(enumerate(losses[:5]))
    assert asked == [(number, "alpa-mlir loader") for number in range(5)]


def test_a_later_run_goes_on(step, losses, tmp_path):
    seen = []

    def run(count, batches):
        training.run(
            Loads(step, {}),
            STATE,
            batches,
            count,
            Resume(tmp_path, every=100),
            on_result=lambda number, result: seen.append((number, float(result[0]))),
        )

    run(4, batch)
    run(10, [batch(number) for number in range(10)])
    run(10, batch)
    assert seen == list(enumerate(losses))


def flip_a_bit(folder):
    path = folder / "default" / "w0" / "c" / "0" / "0"
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def truncate_a_shard(folder):
    path = folder / "default" / "w1" / "c" / "0" / "0"
    path.write_bytes(path.read_bytes()[:-9])


def truncate_the_manifest(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:99])


DAMAGES = [
    (truncate_a_shard, "the shard .*default/w1/c/0/0 has"),
    (lambda folder: shutil.rmtree(folder / "default" / "w1" / "c"), "the shard .* is missing"),
    (flip_a_bit, "Digest mismatch"),
    (truncate_the_manifest, "manifest.json: not JSON"),
    (lambda folder: (folder / "manifest.json").unlink(), "6/manifest.json is missing"),
    (lambda folder: (folder / "default" / "w1" / "zarr.json").unlink(), "NOT_FOUND"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_an_older_one(
    step, losses, tmp_path, caplog, damage, message
):
    """It is named, kept, and its step saved anew; nothing is different otherwise."""
    seen = {}

    def run(count, failing, keep):
        resume = Resume(tmp_path, every=3, keep=keep)
        training.run(Loads(step, failing), STATE, batch, count, resume, on_result=note)

    def note(number, result):
        assert seen.setdefault(number, float(result[0])) == float(result[0])

    run(7, {}, 3)
    shutil.rmtree(tmp_path / "7")
    damage(tmp_path / "6")
    kept = sorted(p.relative_to(tmp_path / "6") for p in (tmp_path / "6").rglob("*"))
    run(10, {}, 1)
    assert list(seen.values()) == losses
    lines = [r.getMessage() for r in caplog.records if r.name == "alpa_mlir.training"]
    assert len(lines) == 1
    aside = tmp_path / "6.damaged"
    said = f"the checkpoint of step 6 is damaged, now called {aside}, and that of step 3 is taken"
    assert lines[0].startswith(said)
    assert re.search(message, lines[0])
    assert kept == sorted(p.relative_to(aside) for p in aside.rglob("*"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "6.damaged"]
    restore_checkpoint(tmp_path, step)


def test_damage_while_a_run_goes_on(step, losses, tmp_path, caplog):
    """The state that a lost worker takes with it comes from an older checkpoint; twice."""
    hit = []

    class Damaging(Flaky):
        def __call__(self, *args):
            if len(self.calls) in (6, 10):
                deadline = time.monotonic() + 60  # It is written while the steps go on.
                while 6 not in steps_in(tmp_path) and time.monotonic() < deadline:
                    time.sleep(0.01)
                flip_a_bit(tmp_path / "6")
                hit.append(len(self.calls))
            return super().__call__(*args)

    load = Loads(step, {7: lost(), 11: lost()})
    seen = []
    training.run(
        lambda: Damaging(step, load.failing, load.calls),
        STATE,
        batch,
        10,
        Resume(tmp_path, every=3, keep=3, attempts=3),
        on_result=lambda number, result: seen.append((number, float(result[0]))),
    )
    assert hit == [6, 10]
    assert seen == list(enumerate(losses))
    names = ["10", "6", "6.damaged", "6.damaged-2", "9"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert steps_in(tmp_path) == [6, 9, 10]


def test_no_checkpoint_is_whole(step, tmp_path):
    training.run(Loads(step, {}), STATE, batch, 6, Resume(tmp_path, every=3))
    truncate_the_manifest(tmp_path / "3")
    flip_a_bit(tmp_path / "6")
    files = sorted(tmp_path.rglob("*"))
    load = Loads(step, {})
    with pytest.raises(
        errors.DamagedCheckpointError,
        match=r"no checkpoint is whole: step 6: .*Digest mismatch.*; step 3: .*not JSON: .*; fix: ",
    ):
        training.run(load, STATE, batch, 9, Resume(tmp_path))
    assert sorted(tmp_path.rglob("*")) == files
    assert (len(load.calls), load.given[0].closed) == (0, True)


@pytest.mark.parametrize("other", ["model", "version"])
def test_a_checkpoint_of_something_else_is_not_passed_over(step, tmp_path, other):
    training.run(Loads(step, {}), STATE, batch, 3, Resume(tmp_path))
    match = "version 99, expected 1"
    if other == "model":
        save_checkpoint(tmp_path, {"w0": np.zeros(3)}, step=5).wait()
        match = r"5: \['w0'\]: .* wanted"
    else:
        shutil.copytree(tmp_path / "3", tmp_path / "5")
        path = tmp_path / "5" / "manifest.json"
        path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(errors.CheckpointError, match=match) as caught:
        training.run(Loads(step, {}), STATE, batch, 9, Resume(tmp_path))
    assert type(caught.value) is errors.CheckpointError
    assert steps_in(tmp_path) == [3, 5]


def test_a_checkpoint_that_vanishes_while_it_is_read(step, losses, tmp_path, caplog, monkeypatch):
    """Another run that keeps fewer has deleted it: that is no damage."""
    training.run(Loads(step, {}), STATE, batch, 6, Resume(tmp_path, every=3))
    reading = save_restore.restore_checkpoint

    def late(folder, target, step):
        if step == 6:
            (tmp_path / "6").rename(tmp_path / ".deleting-6-ab")
        return reading(folder, target, step=step)

    monkeypatch.setattr(save_restore, "restore_checkpoint", late)
    seen = {}
    resume = Resume(tmp_path, every=3)
    training.run(Loads(step, {}), STATE, batch, 7, resume, on_result=seen.__setitem__)
    assert [float(x[0]) for x in seen.values()] == losses[3:7]
    assert "damaged" not in caplog.text


def test_an_error_of_the_program_is_no_failure_of_a_worker(step, tmp_path):
    load = Loads(step, {2: errors.ArgumentMismatchError("wrong")})
    with pytest.raises(errors.ArgumentMismatchError, match="wrong"):
        training.run(load, STATE, batch, 3, Resume(tmp_path))
    assert [one.closed for one in load.given] == [True]


def test_an_error_of_the_program_lets_the_workers_finish_their_checkpoint(
    step, tmp_path, monkeypatch
):
    load, closed = Loads(step, {5: KeyError("the program's")}), []

    def saving(*args, **options):
        def wait():
            closed.append(load.given[-1].closed)

        return SimpleNamespace(step=options["step"], wait=wait)

    monkeypatch.setattr(training, "save_checkpoint", saving)
    with pytest.raises(KeyError, match="the program's"):
        training.run(load, STATE, batch, 10, Resume(tmp_path, every=3))
    assert closed == [False]
    assert load.given[0].closed


def full_disk(monkeypatch, numbers):
    """Saving of these steps finds no room, before anything is written."""
    save = training.save_checkpoint

    def saving(folder, state, *, step, keep):
        if step in numbers:
            raise errors.CheckpointError("No space left on device", where=str(folder))
        return save(folder, state, step=step, keep=keep)

    monkeypatch.setattr(training, "save_checkpoint", saving)


def test_a_full_disk_at_one_checkpoint_is_a_warning(step, losses, tmp_path, caplog, monkeypatch):
    full_disk(monkeypatch, {2, 6})
    found = {}
    resume = Resume(tmp_path, every=2, attempts=1)
    training.run(Loads(step, {}), STATE, batch, 10, resume, on_result=found.__setitem__)
    assert len(found) == 10
    assert latest_checkpoint(tmp_path) == 10
    said = [r.getMessage() for r in caplog.records if "no checkpoint of step" in r.getMessage()]
    assert [text.split(":")[0][-1] for text in said] == ["2", "6"]


def test_a_checkpoint_that_outlives_its_workers_counts(step, tmp_path, monkeypatch):
    """A worker is lost behind checkpoint 4, which is whole: 2 and 6 are not two in a row."""
    full_disk(monkeypatch, {2, 6})
    load = Loads(step, {5: lost()})
    training.run(load, STATE, batch, 10, Resume(tmp_path, every=2))
    assert len(load.given) == 2
    assert latest_checkpoint(tmp_path) == 10


@pytest.mark.parametrize("numbers", [{4, 6}, {10}])
def test_a_disk_that_stays_full_ends_the_run(step, tmp_path, monkeypatch, numbers):
    full_disk(monkeypatch, numbers)
    with pytest.raises(errors.CheckpointError, match="No space left"):
        training.run(Loads(step, {}), STATE, batch, 10, Resume(tmp_path, every=2, attempts=1))


@pytest.mark.parametrize("numbers", [(4, {6}), (10, set())], ids=["before-a-full-disk", "last"])
def test_a_worker_lost_while_it_writes(step, losses, tmp_path, monkeypatch, numbers):
    """Fresh workers write what it did not: it is no failure of the disk."""
    number, full = numbers
    full_disk(monkeypatch, full)
    save = training.save_checkpoint
    waits = []

    class Lost:
        step = number

        def wait(self):
            waits.append(number)
            raise errors.CheckpointError("not written") from lost()

    def saving(folder, state, *, step, keep):
        if step == number and not waits:
            return Lost()
        return save(folder, state, step=step, keep=keep)

    monkeypatch.setattr(training, "save_checkpoint", saving)
    load, found = Loads(step, {}), {}
    training.run(load, STATE, batch, 10, Resume(tmp_path, every=2), on_result=found.__setitem__)
    assert waits == [number]
    assert [float(found[i][0]) for i in range(10)] == losses
    assert len(load.given) == 2
    assert latest_checkpoint(tmp_path) == 10


@pytest.mark.parametrize("stateful", [False, True])
def test_errors_of_workers_have_the_number_of_the_step(tmp_path, stateful):
    """Not that since the checkpoint."""

    def load():
        loaded.append(alpa_mlir.load(steps.two_stage_plan(2), workers=alpa_mlir.ThreadWorkers()))
        return training.StatefulStep(loaded[-1]) if stateful else loaded[-1]

    def die(number, _):
        if number == 6:
            loaded[-1].loaded.group.kill(0)

    loaded = []
    state, resume = STATE, Resume(tmp_path, every=5, attempts=1)
    training.run(load, state, batch, 5, resume)
    with pytest.raises(errors.WorkerError, match=r"worker 0: failed in step ([6-9]|10): "):
        training.run(load, state, batch, 20, resume, on_result=die)


def test_a_failure_without_end_ends_the_run(step, tmp_path):
    load = Loads(step, {count: lost() for count in range(6, 100)})
    with pytest.raises(errors.WorkerLostError, match="worker 1: died"):
        training.run(load, STATE, batch, 10, Resume(tmp_path, every=2, attempts=3))
    assert len(load.given) == 3
    assert latest_checkpoint(tmp_path) == 4


def test_replanning_when_a_host_cannot_be_replaced(step, losses, tmp_path, caplog):
    load = Loads(step, {6: lost()})
    smaller = Loads(steps.two_stage_step(2, first=(1, 1), second=(1, 1)), {})

    def once():
        if load.given:
            raise errors.DevicesError("the plan needs 2 hosts, the Ray cluster has 1")
        return load()

    seen = {}
    arguments = (STATE, batch, 10, Resume(tmp_path, every=2))
    training.run(once, *arguments, replan=lambda _: smaller(), on_result=seen.__setitem__)
    np.testing.assert_allclose([float(r[0]) for r in seen.values()], losses, rtol=1e-5)
    assert len(smaller.given) == 1
    assert "a host cannot be replaced, planning again: the plan needs 2 hosts" in caplog.text
    load.given[:] = [None]
    with pytest.raises(errors.DevicesError, match="needs 2 hosts"):
        training.run(once, STATE, batch, 20, Resume(tmp_path))


def test_a_folder_of_other_things_is_refused_before_the_first_step(step, tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    load = Loads(step, {})
    with pytest.raises(errors.CheckpointError, match=r"the folder holds 'thesis.tex'"):
        training.run(load, STATE, batch, 10, Resume(tmp_path))
    assert not load.given


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(
    step, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    load = Loads(step, {})
    with pytest.raises(errors.CheckpointError, match=r"cannot write: .*; fix: give another folder"):
        training.run(load, lambda: STATE, batch, 4, Resume(tmp_path / "deep" / "run", every=100))
    assert load.given == []


def test_a_folder_of_another_run_is_refused_before_the_first_step(step, tmp_path):
    load = Loads(step, {})

    def second(number, _):
        with pytest.raises(errors.CheckpointError, match=rf"another run .* {os.getpid()} on .*fix"):
            training.run(load, STATE, batch, 9, Resume(tmp_path))
        refused.append(number)

    refused = []
    training.run(lambda: step, STATE, batch, 4, Resume(tmp_path, every=2), on_result=second)
    assert refused == [0, 1, 2, 3]
    assert not load.given
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4"]
    with pytest.raises(ZeroDivisionError):
        training.run(lambda: 1 / 0, STATE, batch, 9, Resume(tmp_path))
    training.run(load, STATE, batch, 5, Resume(tmp_path))


def test_bad_input(step, tmp_path):
    with pytest.raises(errors.ArgumentMismatchError, match="every=0"):
        Resume(tmp_path, every=0)
    load = Loads(step, {})
    with pytest.raises(errors.ArgumentMismatchError, match="iterated over only once"):
        training.run(load, STATE, iter([batch(0)]), 1, Resume(tmp_path))
    with pytest.raises(errors.ArgumentMismatchError, match="run: steps=-1; fix: give at least 0"):
        training.run(load, STATE, [batch(0)], -1, Resume(tmp_path))
    with pytest.raises(errors.ArgumentMismatchError, match="end before step 1 of 2"):
        training.run(load, STATE, [batch(0)], 2, Resume(tmp_path))
    with pytest.raises(errors.ArgumentMismatchError, match="returned a dict"):
        training.run(lambda: Loads(lambda *_: {}, {})(), STATE, [batch(0)], 1, Resume(tmp_path))


def test_a_run_that_is_over_says_so(step, tmp_path, caplog):
    caplog.set_level(logging.INFO, "alpa_mlir.training")
    resume = Resume(tmp_path, every=2)
    state = training.run(lambda: step, STATE, batch, 4, resume)
    assert "nothing to do" not in caplog.text
    again = training.run(lambda: step, STATE, batch, 2, resume)
    assert "going on from the checkpoint of step 4" in caplog.text
    assert "the checkpoint in " in caplog.text
    assert "is of step 4, and the run of 2 steps; steps counts" in caplog.text
    jax.tree.map(np.testing.assert_array_equal, again, state)


def with_key_and_rate(state, batch, key, rate):
    noise = jax.random.normal(key, batch["x"].shape)

    def loss_of(state):
        return jax.numpy.mean(((batch["x"] + noise) @ state["w"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(state)
    return jax.tree.map(lambda p, g: p - rate * g, state, gradients), loss


def test_a_step_takes_more_than_state_and_batch(tmp_path):
    first = {"w": np.ones((4, 3), np.float32)}
    data = [{"x": np.random.default_rng(i).normal(size=(8, 4)).astype("f")} for i in range(6)]

    def further(number):
        return jax.random.key(number), 0.1 / (number + 1)

    step = alpa_mlir.compile(
        with_key_and_rate, first, data[0], *further(0), cluster="cpu-test", cache=False
    )
    wanted, losses = first, []
    for number, each in enumerate(data):
        wanted, loss = jax.jit(with_key_and_rate)(wanted, each, *further(number))
        losses.append(float(loss))
    found = {}
    for steps_done in (3, 6):  # The second run goes on from the first one's checkpoint.
        state = training.run(
            lambda: step,
            first,
            data,
            steps_done,
            Resume(tmp_path, every=3),
            arguments=further,
            on_result=found.__setitem__,
        )
    np.testing.assert_allclose([found[i] for i in range(6)], losses, rtol=1e-5)
    np.testing.assert_allclose(state["w"], wanted["w"], rtol=1e-5)
