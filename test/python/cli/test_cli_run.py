"""Running entry points and saved plans from the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from alpa_mlir import cli
from alpa_mlir.cli._random_inputs import callable_plan, random_batch, random_state
from alpa_mlir.errors import ArgumentMismatchError
from alpa_mlir.training import StatefulStep
from cli_entries import STEP
from source_paths import PYTHONPATH

MORE = '''

def once():
    """Batches that can be read once only."""
    step, arguments, batches = entry()
    return step, arguments, iter(batches[:3])


def empty():
    return step, entry()[1], []


def bad_batch():
    step, arguments, batches = entry()
    return step, arguments, [batches[0], {"x": batches[0]["x"]}]


def breaks():
    def batches():
        yield entry()[2][0]
        raise OSError("the disk is gone")

    return step, entry()[1], batches()


def diverges():
    def step(w, batch):
        return w, {"loss": (batch @ w).sum() / 0.0, "count": jnp.int32(3)}

    return step, (np.ones((16, 16), np.float32), np.ones((8, 16), np.float32))


def on_threads():
    """Workers of its own, in place of devices of this process."""
    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=2)
    workers = alpa_mlir.ThreadWorkers()
    function = alpa_mlir.parallelize(step, cluster="cpu-test", method=method, workers=workers)
    return function, *entry()[1:]


def predict():
    def step(w, batch):
        return {"sum": (batch @ w).sum(), "all": batch @ w}

    return step, (np.ones((16, 16), np.float32), np.ones((8, 16), np.float32))
'''
PIPELINE = [
    "--cluster",
    "cpu-test",
    "--method",
    "pipeshard",
    "--submeshes",
    "1x1,1x1",
    "--micro-batches",
    "2",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "model.py").write_text(STEP + MORE)
    command = ["plan", f"{folder}/model.py", "-q", *PIPELINE, "-o", f"{folder}/plan"]
    assert cli.main(command) == 0
    return folder


def run(capsys, *words) -> dict:
    assert cli.main(["run", *map(str, words), "--json", "-q"]) == 0
    return json.loads(capsys.readouterr().out)


def losses(fields) -> list[float]:
    return [row["results"]["loss"] for row in fields["steps"]]


def expected(folder, steps):
    """What plain JAX makes of the entry point's state and batches."""
    from alpa_mlir.cli._entry_points import load_entry

    entry = load_entry(f"{folder}/model.py")
    state, found = entry.arguments[0], []
    batches = list(entry.batches)
    for number in range(steps):
        state, result = jax.jit(entry.function.fn)(state, batches[number % len(batches)])
        found.append(float(result["loss"]))
    return found


@pytest.mark.parametrize("workers", [[], ["--workers", "threads"]], ids=["here", "threads"])
def test_losses_are_those_of_jax(workers, folder, capsys):
    fields = run(capsys, f"{folder}/model.py:entry", *PIPELINE, "--steps", 8, *workers)
    np.testing.assert_allclose(losses(fields), expected(folder, 8), rtol=1e-5)
    assert [row["step"] for row in fields["steps"]] == list(range(8))
    assert fields["num_devices"] == 2
    assert fields["compiled_bytes"] > 0 < fields["foreseen_bytes"]
    assert fields["step_seconds"] > 0


def test_a_step_brings_its_own_workers(folder, capsys, monkeypatch):
    from alpa_mlir.cli import run as module

    monkeypatch.setattr(module, "_check_devices", lambda _: pytest.fail("not of this process"))
    fields = run(capsys, f"{folder}/model.py:on_threads", "--steps", 2)
    np.testing.assert_allclose(losses(fields), expected(folder, 2), rtol=1e-5)


def test_text_for_people(folder, capsys, monkeypatch):
    monkeypatch.setattr("alpa_runtime.parallel_step.on_terminal", lambda: True)
    assert cli.main(["run", f"{folder}/model.py", *PIPELINE, "--steps", "30"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith(f"step 0: loss {expected(folder, 1)[0]:.4g}"[:14])
    assert lines[9].startswith("step 29: ")
    assert lines[10] == "(10 of 30 steps; --json has all)"
    assert lines[11].startswith("a step takes ")
    assert lines[12].startswith("memory: ")
    assert " on a device, as compiled; about " in lines[12]
    assert "running: 100%" in shown.err


@pytest.mark.parametrize("more", [[], ["--checkpoint", "run", "--save-every", 2]])
def test_seconds_are_those_of_each_step(more, folder, tmp_path, capsys, monkeypatch):
    """Also of the last one, behind which nothing runs."""
    whole = StatefulStep.__call__

    def slow(self, state, *batch):
        time.sleep(0.02)
        return whole(self, state, *batch)

    monkeypatch.setattr(StatefulStep, "__call__", slow)
    monkeypatch.chdir(tmp_path)
    fields = run(capsys, f"{folder}/model.py:entry", *PIPELINE, "--steps", 3, *more)
    assert [row["seconds"] > 0.02 for row in fields["steps"]] == [True] * 3
    assert fields["step_seconds"] > 0.02


def test_batches_that_end_begin_again(folder, capsys):
    fields = run(capsys, f"{folder}/model.py:once", *PIPELINE, "--steps", 5)
    assert len(losses(fields)) == 5
    np.testing.assert_allclose(losses(fields)[:3], expected(folder, 3), rtol=1e-5)
    for steps, said in ((3, 0), (8, 1)):
        words = ["run", f"{folder}/model.py:once", *PIPELINE, "--steps", steps, "--json"]
        assert cli.main(list(map(str, words))) == 0
        text = "the entry point's batches end after 3 steps: they begin again"
        assert capsys.readouterr().err.count(text) == said


def test_a_checkpointed_run_goes_on(folder, tmp_path, capsys):
    words = [f"{folder}/model.py:once", *PIPELINE, "--checkpoint", tmp_path / "run"]
    words += ["--save-every", 2]
    first = run(capsys, *words, "--steps", 3)
    second = run(capsys, *words, "--steps", 7)
    assert [row["step"] for row in second["steps"]] == [3, 4, 5, 6]
    whole = run(capsys, f"{folder}/model.py:once", *PIPELINE, "--steps", 7)
    assert losses(first) + losses(second) == losses(whole)
    assert alpa_mlir.latest_checkpoint(tmp_path / "run") == 7
    assert cli.main(["run", *map(str, words), "--steps", "7", "-q"]) == 0
    assert "nothing was left to do" in capsys.readouterr().out
    assert cli.main(["run", *map(str, words), "--steps", "8", "-q"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"went on from the checkpoint of step 7 in {tmp_path / 'run'}\nstep 7: ")
    (tmp_path / "run" / "8" / "manifest.json").write_text("{")  # The one before is taken.
    assert cli.main(["run", *map(str, words), "--steps", "9", "-q"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"went on from the checkpoint of step 7 in {tmp_path / 'run'}\nstep 7: ")


def test_a_folder_of_another_run_is_refused_before_planning(folder, tmp_path, capsys, monkeypatch):
    from alpa_mlir.cli import run as module
    from alpa_runtime.checkpoint.folders import held_by_run

    monkeypatch.setattr(module, "plan_source", lambda _: pytest.fail("planned"))
    with held_by_run(tmp_path):
        words = [f"{folder}/model.py:once", *PIPELINE, "--checkpoint", str(tmp_path)]
        assert cli.main(["run", *words]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}: another run writes its checkpoints here: process {os.getpid()}" in said


def test_a_step_without_gradients(folder, capsys):
    fields = run(capsys, f"{folder}/model.py:predict", "--cluster", "cpu-test", "--steps", 2)
    assert [row["results"] for row in fields["steps"]] == [{"sum": 8 * 16 * 16}] * 2


def test_losses_that_are_no_numbers(folder, capsys):
    source = f"{folder}/model.py:diverges"
    fields = run(capsys, source, "--cluster", "cpu-test", "--steps", 1, "--micro-batches", 1)
    assert fields["steps"][0]["results"] == {"loss": None, "count": 3}
    assert cli.main(["run", source, "--cluster", "cpu-test", "--steps", "1", "-q"]) == 0
    assert "loss inf" in capsys.readouterr().out


def test_shapes_get_random_values(folder, capsys):
    words = ["run", f"{folder}/model.py:shapes", "--cluster", "cpu-test", "--steps", "3", "--json"]
    assert cli.main(words) == 0
    shown = capsys.readouterr()
    assert np.all(np.isfinite(losses(json.loads(shown.out))))
    assert "the state is random" in shown.err
    assert "gives no batches" in shown.err


def test_a_saved_plan_runs_on_random_inputs(folder, tmp_path, capsys):
    fields = run(capsys, folder / "plan", "--steps", 4, "--trace", tmp_path / "trace.json")
    assert np.all(np.isfinite(losses(fields)))
    assert run(capsys, folder / "plan", "--seed", 1)["steps"][0] != fields["steps"][0]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert "meshes of step, real" in names
    assert len(names) == 4
    assert {e["args"]["step"] for e in events if e.get("args", {}).get("step") is not None} == {
        *range(4)
    }


def test_a_long_trace_has_the_last_steps(folder, tmp_path, capsys, monkeypatch):
    from alpa_mlir.cli import run as module

    monkeypatch.setattr(module, "TRACED", 3)
    run(capsys, folder / "plan", "--steps", 8, "--trace", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len({e["args"]["step"] for e in events if "step" in e.get("args", {})}) == 3


def test_every_form_of_input_gets_values(tmp_path):
    def step(state, batch):
        key, used = jax.random.split(state["key"])
        noise = jax.random.normal(used, batch["x"].shape)
        loss, gradient = jax.value_and_grad(
            lambda w: jnp.mean(((batch["x"] + noise).astype(jnp.bfloat16) @ w) ** 2)
        )(state["w"])
        table = jnp.take(gradient, batch["i"], axis=0).sum()
        new = {"key": key, "w": state["w"] - gradient, "n": state["n"] + 1}
        return new, loss, table, batch["b"].sum()

    state = {"key": jax.random.key(0), "w": jnp.ones((4, 4), jnp.bfloat16), "n": jnp.int32(0)}
    batch = {
        "x": np.ones((4, 4), np.float32),
        "i": np.zeros((4,), np.int32),
        "b": np.ones((4,), bool),
    }
    planned = alpa_mlir.parallelize(step, cluster="cpu-test").plan(state, batch)
    planned.save(tmp_path / "plan")
    for plan in (planned.plan, dataclasses.replace(planned.plan, call=None)):
        loaded = alpa_mlir.load(callable_plan(plan))
        if plan.call is None:
            carried = StatefulStep(loaded)
            assert [leaf.shape for leaf in jax.tree.leaves(random_batch(loaded))]
            assert carried.num_batches == 1
            continue
        made, drawn = random_state(loaded), random_batch(loaded)
        assert jnp.issubdtype(made["key"].dtype, jax.dtypes.prng_key)
        assert made["w"].dtype == jnp.bfloat16
        assert 0 <= float(made["w"].min()) < float(made["w"].max()) < 0.021
        assert int(made["n"]) == 0
        assert set(np.unique(drawn["i"])) <= {0, 1}
        assert drawn["b"].dtype == bool
        carried = StatefulStep(loaded)
        after, results = carried(made, drawn)
        assert int(after["n"]) == 1
        assert list(results) == ["result[1]", "result[2]", "result[3]"]


def test_arguments_and_results_in_any_order():
    def step(scale, batch, w, bias):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w + bias) ** 2))(w)
        return loss * scale, (w - gradient,), bias + 1

    arguments = (2, jnp.ones((4, 4)), jnp.ones((4, 4)), jnp.float32(0))
    function = alpa_mlir.parallelize(
        step, cluster="cpu-test", batch_argnums=1, static_argnums=0, donate_state=False
    )
    carried = StatefulStep(function.compile(*arguments), {0: 2})
    state, batch = carried.split(arguments[1:])
    want_w, want_bias = arguments[2], arguments[3]
    for _ in range(3):
        (loss, (want_w,), want_bias) = step(2, arguments[1], want_w, want_bias)
        state, results = carried(state, *batch)
        assert list(results) == ["result[0]"]
        np.testing.assert_allclose(results["result[0]"], loss, rtol=1e-5)
        np.testing.assert_allclose(state[0], want_w, rtol=1e-5)
        assert float(state[1]) == float(want_bias)
    with pytest.raises(ArgumentMismatchError, match="got 2 arguments, the step takes 3"):
        carried.split(arguments[2:])
    with pytest.raises(ArgumentMismatchError, match="a batch of 2 arguments, the step takes 1"):
        carried(state, *batch, *batch)


@pytest.mark.parametrize(
    ("source", "kind", "what"),
    [
        ("model.py:empty", "EntryPointError", "its batches are empty"),
        ("model.py:bad_batch", "ArgumentMismatchError", "no leaf"),
        ("model.py:breaks", "UserCodeError", "OSError: the disk is gone"),
    ],
)
def test_wrong_batches(source, kind, what, folder, capsys):
    assert cli.main(["run", f"{folder}/{source}", *PIPELINE, "--json", "-q"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == kind
    assert what in error["what"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "x.json", "--checkpoint", "x"], "--trace and --checkpoint do not go"),
        (["--ray-address", "host:1"], "--ray-address is for --workers ray"),
        (["--steps", "0"], "0 is not 1 or more"),
    ],
)
def test_wrong_options(words, message, folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", str(folder / "plan"), *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


# Jobs in the background ignore SIGINT, and so do the tests that they run.
MAIN = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
MAIN += "from alpa_mlir.cli import main; sys.exit(main())"


def start(*words, **more):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, words)],
        env=environment | {"PYTHONPATH": PYTHONPATH, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
        **{"stderr": subprocess.PIPE} | more,
    )


def test_too_few_devices_say_what_to_do(folder):
    done = start("run", folder / "plan", "-q")
    out, err = done.communicate(timeout=120)
    assert (done.returncode, out) == (1, "")
    assert "the plan needs 2 devices, JAX has 1; fix: add --virtual-devices 2" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_leaves_no_process(number, folder):
    words = ["run", f"{folder}/model.py", *PIPELINE, "--steps", 10**6, "--workers", "processes"]
    screen, terminal = pty.openpty()  # Where there is a bar.
    termios.tcsetwinsize(terminal, (24, 120))
    command = start(*words, start_new_session=True, stderr=terminal)
    os.close(terminal)
    try:
        seen = ""
        while "step/s]" not in seen.partition("running")[2]:  # Steps are done.
            piece = os.read(screen, 1024).decode(errors="replace")
            assert piece, seen
            seen += piece
        workers = psutil.Process(command.pid).children(recursive=True)
        assert any("alpa_runtime.hosts.rpc" in " ".join(worker.cmdline()) for worker in workers)
        os.killpg(command.pid, number)  # As a terminal does it: to all of them.
        err = ""
        with contextlib.suppress(OSError):  # When the last of them has ended.
            while piece := os.read(screen, 1024).decode(errors="replace"):
                err += piece
        command.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        os.close(screen)
    assert command.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert "Traceback" not in err
    deadline = time.monotonic() + 10
    while any(worker.is_running() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [worker for worker in workers if worker.is_running()]


@pytest.mark.slow
def test_a_run_on_ray_ends_it(folder, monkeypatch):
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("ALPA_TEST_MARK", mark)  # Every process that it starts has it.

    def marked() -> list[str]:
        names = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if each.environ().get("ALPA_TEST_MARK") == mark:
                    names.append(" ".join(each.cmdline()))
        return names

    words = ["run", f"{folder}/model.py", *PIPELINE, "--steps", 3, "--workers", "ray", "--json"]
    command = start(*words, "-q")
    seen = False
    while command.poll() is None and not seen:
        seen = any("raylet" in name for name in marked())
    assert seen
    out, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    np.testing.assert_allclose(losses(json.loads(out)), expected(folder, 3), rtol=1e-5)
    deadline = time.monotonic() + 20
    while marked() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not marked()
