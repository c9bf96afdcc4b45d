"""Saved plans explained, compared and reported from the command line."""

from __future__ import annotations

import json
import re
import shutil

import alpa_mlir
import pytest
from alpa_mlir import cli
from cli_entries import STEP, failure, write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("cli"))


def test_explain(files, capsys):
    assert cli.main(["explain", str(files / "pipeline"), "--most", "2"]) == 0
    text = capsys.readouterr().out
    assert "what limits the step" in text
    assert "is the slowest: its 2 x" in text
    assert "stage 1\n" in text
    assert "ops by cost, 2 of" in text
    assert cli.main(["explain", str(files / "plan"), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    plan = alpa_mlir.Plan.load(files / "plan")
    assert fields["slowest"] == 0
    assert fields["stages"][0]["explanation"] == plan.explanation(0)
    predicted = plan.stages[0].predicted
    seconds = predicted["forward_seconds"] + predicted["backward_seconds"]
    assert fields["stages"][0]["micro_batch_seconds"] == seconds
    source = f"{files}/model.py:parallel"
    assert cli.main(["explain", source, "--json", "-q"]) == 0
    assert [row["num_micro_batches"] for row in json.loads(capsys.readouterr().out)["tried"]] == [2]


COUPLED = """
import jax
import jax.numpy as jnp


def entry():
    def step(w, x, mask):
        def loss(w):
            h = x @ w
            balance = jnp.sum(jnp.mean(jax.nn.softmax(h), 0) ** 2)
            h = (h - h.mean(0)) / h.std(0)
            each = jnp.sum(jnp.tanh(h @ w) ** 2, 1)
            return jnp.sum(each * mask) / jnp.sum(mask) + balance

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    a = jax.ShapeDtypeStruct
    return step, (a((16, 16), jnp.float32), a((8, 16), jnp.float32), a((8,), jnp.float32))
"""


def test_explain_micro_batches(files, capsys):
    assert cli.main(["explain", str(files / "pipeline"), "--micro-batches"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 micro-batches: results are those of jax.jit on the whole batch"
    assert "sums over examples: each micro-batch adds a term, the update reads the sum" in lines
    written = STEP.splitlines()
    for place in lines[2:]:  # Each with the code that stands there.
        where, _, code = place.removeprefix(f"  {files}/model.py:").partition("  ")
        assert written[int(where) - 1].strip() == code
    assert cli.main(["explain", "--json", str(files / "pipeline"), "--micro-batches"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["num_micro_batches"], fields["exact"], fields["estimates"]) == (2, True, [])
    assert fields["sums"]
    assert fields["left_out"] == []
    # A number still is one to plan with.
    error = failure(["explain", files / "plan", "--micro-batches", "4"], capsys)
    assert error["what"] == "--micro-batches for a plan that is made already"


def test_explain_micro_batches_of_a_step_with_a_barrier(tmp_path, capsys):
    lines = [line for line in COUPLED.splitlines() if "h.mean(0)" not in line]
    (tmp_path / "balanced.py").write_text("\n".join(lines))
    source = [f"{tmp_path}/balanced.py", "--cluster", "cpu-test", "--no-cache", "-q"]
    folder = str(tmp_path / "plan")
    options = ["--method", "shard", "--micro-batches", "2", "-o", folder]
    assert cli.main(["plan", *source, *options]) == 0
    assert "2 micro-batches, a barrier, predicted step" in capsys.readouterr().out
    assert cli.main(["explain", folder, "--micro-batches"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 micro-batches: results are those of jax.jit on the whole batch\n")
    assert f"{tmp_path}/balanced.py:10" in text.partition("a barrier: ")[2]
    assert cli.main(["simulate", folder]) == 0
    assert "F forward, = barrier, B backward" in capsys.readouterr().out


def test_explain_micro_batches_of_a_step_that_couples_examples(tmp_path, capsys):
    (tmp_path / "coupled.py").write_text(COUPLED)
    source = [f"{tmp_path}/coupled.py", "--cluster", "cpu-test", "--no-cache", "-q"]
    assert cli.main(["explain", *source, "--micro-batches"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("1 micro-batch: the step runs on the whole batch, as with jax.jit\n")
    assert f"{tmp_path}/coupled.py:11" in text.partition("no plan\n")[2]
    relaxed = ["--micro-batch-semantics", "relaxed", "--method", "shard", "--micro-batches", "2"]
    folder = str(tmp_path / "relaxed")
    assert cli.main(["plan", *source, *relaxed, "-o", folder]) == 0
    differs = "results differ from jax.jit: as micro_batch_semantics asks, each micro-batch takes"
    assert differs in capsys.readouterr().out.splitlines()[1]
    assert cli.main(["explain", folder, "--micro-batches"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 micro-batches: results differ from those of jax.jit")
    assert "sums over examples" in text
    assert f"{tmp_path}/coupled.py:" in text.partition("estimates, as ")[2]
    assert cli.main(["explain", folder, "--micro-batches", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["exact"] is False
    assert fields["estimates"]


def test_explain_says_what_limits_a_step(files, tmp_path, capsys):
    from dataclasses import replace

    from alpa_mlir.report.explanation import bottlenecks

    plan = alpa_mlir.Plan.load(files / "pipeline")
    found = bottlenecks(plan)
    assert found.tight == ()
    timeline = alpa_mlir.simulate(plan)
    assert found.bubble_fraction == timeline.bubble_fraction
    assert found.link == timeline.links[0].link
    types = plan.cluster["device_types"] | {
        "virtual": plan.cluster["device_types"]["virtual"]
        | {"memory_bytes": int(1.1 * plan.stages[1].predicted["peak_bytes"])}
    }
    small = bottlenecks(replace(plan, cluster={**plan.cluster, "device_types": types}))
    assert 1 in small.tight
    assert "stage 1 is limited by memory: " in small.as_text()
    # Plans from elsewhere say less.
    replace(plan, cluster={}, explanations={}).save(tmp_path / "bare")
    assert cli.main(["explain", str(tmp_path / "bare")]) == 0
    text = capsys.readouterr().out
    assert "the step cannot be simulated: <cluster>" in text
    assert "memory limits no stage" not in text
    assert "the plan says nothing about it" in text


def test_a_saved_plan_is_not_planned_otherwise(files, capsys):
    error = failure(["explain", files / "plan", "--schedule", "gpipe"], capsys)
    assert error["what"] == "--schedule for a plan that is made already"
    error = failure(["plan", files / "plan"], capsys)
    assert error["what"] == "a folder is no step"


def test_a_folder_that_is_no_plan(files, tmp_path, capsys):
    error = failure(["explain", tmp_path], capsys)
    assert error["kind"] == "PlanFormatError"
    assert error["where"] == str(tmp_path / "plan.json")


def test_names_are_no_commands_to_a_terminal(files, tmp_path, capsys):
    shutil.copytree(files / "plan", tmp_path / "plan")
    path = tmp_path / "plan" / "plan.json"
    fields = json.loads(path.read_text())
    fields["name"] = "st\x1b[31mep\x9b"
    path.write_text(json.dumps(fields))
    assert cli.main(["explain", str(tmp_path / "plan")]) == 0
    shown = capsys.readouterr().out
    assert "st\\x1b[31mep\\x9b" in shown
    assert not set(shown) & {"\x1b", "\x9b"}


def test_diff(files, capsys):
    names = [str(files / name) for name in ("plan", "pipeline")]
    assert cli.main(["diff", names[0], names[0]]) == 0
    assert capsys.readouterr().out == "the plans are equal\n"
    assert cli.main(["diff", *names, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert not fields["equal"]
    assert {"what": "stages", "before": "1", "after": "2"} in fields["decisions"]
    assert cli.main(["diff", names[0], "/no/such/plan"]) == 1


def test_alternatives(files, capsys):
    source = [f"{files}/model.py:entry", "--cluster", "cpu-test", "--set", "width=64", "-q"]
    assert cli.main(["explain", *source, "--alternatives", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    found = {row["name"]: row for row in fields["alternatives"]}
    assert cli.main(["plan", *source, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["predicted"]["step_seconds"]
    planned = {name: row for name, row in found.items() if row["seconds"] is not None}
    assert {"data parallel", "FSDP", "pipeline, equal layers"} <= set(planned)
    # What was searched holds them all; the solver may stop within its gap.
    assert all(row["seconds"] >= 0.99 * best for row in planned.values())
    lost = found["pipeline, a device each stage"]
    assert lost["seconds"] is None
    assert "needs a layer for each of 8 devices" in lost["reason"]
    assert cli.main(["explain", *source, "--alternatives"]) == 0
    text = capsys.readouterr().out
    assert "- pipeline, a device each stage: " in text
    assert re.search(r"^pipeline, a device each stage +\| no plan +\|", text, re.MULTILINE)
    assert cli.main(["plan", *source, "--compare", "--price", "2"]) == 0
    text = capsys.readouterr().out
    names = re.findall(r"^([^|\n]+?) +\| [\d.]+ [mun]?s +\|", text, re.MULTILINE)
    assert names == ["this plan", "data parallel", "FSDP", "Megatron-LM, best grid"]
    assert re.search(r"^price: 1M rows for ", text, re.MULTILINE)
    assert "offload to hosts" not in text
    error = failure(["explain", files / "plan", "--alternatives"], capsys)
    assert error["what"] == "alternatives cannot be planned from a saved plan"


def test_alternatives_of_a_file(files, tmp_path, capsys):
    text = "func.func @main(%w: tensor<8x8xf32>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
    text += "%y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : "
    text += "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>\nreturn %y : tensor<8x8xf32>\n}"
    (tmp_path / "dot.mlir").write_text(text)
    source = [str(tmp_path / "dot.mlir"), "--cluster", "cpu-test", "--micro-batches", "2", "-q"]
    assert cli.main(["explain", *source, "--alternatives", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["alternatives"]
    assert rows[0]["seconds"] is not None


def test_plans_of_one_stage_say_nothing_of_a_schedule(files, tmp_path, capsys):
    one, two = str(files / "plan"), str(files / "pipeline")
    page = str(tmp_path / "plan.html")
    commands = (
        ["plan", f"{files}/model.py", "--cluster", "cpu-test", "--method", "shard"],
        ["explain", one],
        ["simulate", one],
        ["diff", one, one],
        ["report", one, "-o", page],
    )
    for words in commands:
        assert cli.main([*words, "-q"]) == 0
        shown = capsys.readouterr()
        assert not any(name in shown.out + shown.err for name in ("1f1b", "gpipe", "schedule"))
    assert '"schedule":""' in (tmp_path / "plan.html").read_text()
    assert cli.main(["plan", f"{files}/model.py", "--method", "shard", "--json", "-q"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (len(fields["stages"]), fields["schedule"]) == (1, None)
    assert cli.main(["simulate", two]) == 0
    assert f"schedule {alpa_mlir.Plan.load(two).schedule}" in capsys.readouterr().out
    assert cli.main(["diff", one, two]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("schedule"))
    assert [x.strip() for x in line.split("|")] == ["schedule", "-", "1f1b"]


def test_report(files, tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    output = tmp_path / "plan.html"
    words = ["report", str(files / "pipeline"), "-o", str(output)]
    assert cli.main([*words[:2], str(files / "plan"), *words[2:], "--open"]) == 0
    assert f"wrote {output}" in capsys.readouterr().out
    assert opened == [output.as_uri()]
    page = output.read_text()
    assert "</html>" in page
    assert str(files / "plan") in page
    before = output.read_bytes()
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    assert "exists; name another, or give --force" in capsys.readouterr().err
    assert output.read_bytes() == before
    assert cli.main([*words, "--force", "--json", "--plots", str(tmp_path / "pictures")]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["bytes"] == output.stat().st_size
    assert str(tmp_path / "pictures" / "timeline.svg") in fields["plots"]
    assert sorted(map(str, (tmp_path / "pictures").iterdir())) == sorted(fields["plots"])
    source = ["report", f"{files}/model.py:entry", "--cluster", "cpu-test", "--alternatives", "-q"]
    assert cli.main([*source, "-o", str(tmp_path / "step.html")]) == 0
    page = (tmp_path / "step.html").read_text()
    assert all(
        name in page for name in ("FSDP", "Megatron-LM, best grid", "pipeline, equal layers")
    )
    source = [word for word in source if word != "--alternatives"]
    assert cli.main([*source, "--no-compare", "-o", str(tmp_path / "alone.html")]) == 0
    assert '"compared":[]' in (tmp_path / "alone.html").read_text()


def test_reports_that_cannot_be_written(files, tmp_path, capsys):
    error = failure(["report", files / "plan", tmp_path, "-o", tmp_path / "x.html"], capsys)
    assert error["kind"] == "PlanFormatError"
    (tmp_path / "no.json").write_text("{}")
    error = failure(
        ["report", files / "plan", "-o", tmp_path / "x.html", "--record", tmp_path / "no.json"],
        capsys,
    )
    assert error["kind"] == "PlanFormatError"
    assert not (tmp_path / "x.html").exists()
    with pytest.raises(SystemExit):
        cli.main(["report", str(files / "plan"), "-o", "/no/such/folder/x.html"])
    with pytest.raises(SystemExit):
        cli.main(["report", str(files / "plan"), "--record", "/no/such/file"])
