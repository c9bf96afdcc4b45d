"""Planning, explaining and comparing from the command line, and entry points that are wrong."""

from __future__ import annotations

import json
import shutil
import textwrap

import alpa_mlir
import pytest
from alpa_mlir import cli
from alpa_mlir.entry import load_entry
from alpa_mlir.errors import EntryPointError

STEP = '''
import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np


def step(state, batch):
    def loss(w):
        h = batch["x"]
        for each in w:
            h = h + jnp.tanh(h @ each)
        return jnp.mean((h - batch["y"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["w"])
    w = jax.tree.map(lambda p, g: p - 0.1 * g, state["w"], gradient)
    return {"w": w}, {"loss": value}


def entry(*, layers: int = 4, width: int = 16, rows: int = 8, scale: float = 0.1, on=None):
    """Layers of a residual network."""
    random = np.random.default_rng(0)
    w = [random.normal(size=(width, width)).astype(np.float32) * scale for _ in range(layers)]
    x = [random.normal(size=(rows, width)).astype(np.float32) for _ in range(6)]
    batches = [{"x": each, "y": np.roll(each, 1, 1)} for each in x]
    return step, ({"w": w}, batches[0]), batches


def shapes(*, layers: int = 2):
    a = jax.ShapeDtypeStruct
    state = {"w": [a((16, 16), jnp.float32)] * layers}
    return step, (state, {"x": a((8, 16), jnp.float32), "y": a((8, 16), jnp.float32)})


def huge():
    state = {"w": [jax.ShapeDtypeStruct((2**22, 2**22), jnp.float32)]}
    rows = jax.ShapeDtypeStruct((8, 2**22), jnp.float32)
    return step, (state, {"x": rows, "y": rows})


def parallel():
    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=2)
    return alpa_mlir.parallelize(step, cluster="cpu-test", method=method), entry()[1]


def fails():
    raise KeyError("no weight")


def needs(x):
    return step, (x, x)


def gives_a_number():
    return 3


def gives_an_array():
    return step, np.ones(3)


def gives_batches_that_are_none():
    return step, entry()[1], 7


def wrong_shapes():
    return (lambda w, b: (w, (b @ w).sum())), (jnp.ones(3), jnp.ones((4, 5)))


value = 4
'''


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "model.py").write_text(STEP)
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "imports.py").write_text("import alpa_no_such_module\n")
    command = ["plan", f"{folder}/model.py", "--cluster", "cpu-test", "-q", "--no-cache"]
    assert cli.main([*command, "--method", "shard", "-o", f"{folder}/plan"]) == 0
    pipeline = ["--method", "pipeshard", "--submeshes", "1x1,1x1", "--micro-batches", "2"]
    assert cli.main([*command, *pipeline, "-o", f"{folder}/pipeline"]) == 0
    return folder


def failure(arguments, capsys):
    assert cli.main([*map(str, arguments), "--json", "-q"]) == 1
    shown = capsys.readouterr()
    assert not shown.err
    return json.loads(shown.out)["error"]


def test_a_plan_is_printed_and_written(files, tmp_path, capsys):
    source = f"{files}/model.py:entry"
    command = ["plan", source, "--cluster", "cpu-test", "--set", "layers=3", "--method", "shard"]
    assert cli.main([*command, "-q", "-o", str(tmp_path / "plan")]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert shown.out.startswith("plan of step: 1 stage")
    assert shown.out.endswith(f"wrote {tmp_path / 'plan'}\n")
    plan = alpa_mlir.Plan.load(tmp_path / "plan")
    assert len([x for x in plan.arguments if x.kind == "state"]) == 3
    assert cli.main([*command, "--json", "--no-cache"]) == 0
    shown = capsys.readouterr()
    assert "planning: " in shown.err
    fields = json.loads(shown.out)
    assert fields["num_micro_batches"] == plan.num_micro_batches == 1
    assert fields["predicted"]["step_seconds"] == plan.predicted["step_seconds"]
    assert [tuple(stage["layers"]) for stage in fields["stages"]] == [plan.stages[0].layers]


def test_shapes_are_enough_to_plan(files, capsys):
    command = ["plan", f"{files}/model.py:shapes", "--cluster", "dgx-a100:2", "--set", "layers=3"]
    assert cli.main([*command, "--micro-batches", "1,2", "--json", "-q"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["cluster"] == "dgx-a100"
    assert {row["num_micro_batches"] for row in fields["tried"]} == {1, 2}


def test_without_a_cluster_the_plan_is_for_this_process(files, capsys):
    command = ["plan", f"{files}/model.py", "--method", "shard", "--json"]
    assert cli.main(command) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["cluster"] == "live-cpu"
    assert "planning for the devices of this process; --cluster names others" in shown.err
    assert cli.main(["plan", f"{files}/model.py:parallel"]) == 0
    assert "--cluster names" not in capsys.readouterr().err
    error = failure(["plan", f"{files}/model.py:huge", "--method", "shard"], capsys)
    assert error["kind"] == "InfeasiblePlanError"
    assert error["fix"].startswith("name a cluster with --cluster, or ")


def test_options_of_the_step_are_the_defaults(files, capsys):
    assert cli.main(["plan", f"{files}/model.py:parallel", "--json", "-q"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (len(fields["stages"]), fields["num_micro_batches"]) == (2, 2)
    assert cli.main(["plan", f"{files}/model.py:parallel", "--schedule", "gpipe", "-q"]) == 0
    assert "2 stages on 2 devices, 2 micro-batches, schedule gpipe" in capsys.readouterr().out


def test_every_option_reaches_its_method():
    def method(*words):
        from alpa_mlir.cli.method import method_of

        options = cli.parser(only="plan").parse_args(["plan", "x.py", *words])
        return method_of(options, None)

    common = "--shardings zero-2 --micro-batches 4 --schedule gpipe --layers 6 --max-layers 9 "
    common += "--layer-balance operators --remat 0,2 --memory-fraction 0.5 --time-limit 7 "
    common += "--num-mesh-axes 3 --export collectives --finalists 2"
    same = {
        "method": "zero-2",
        "num_micro_batches": 4,
        "schedule": "gpipe",
        "layers": 6,
        "max_layers": 9,
        "layer_balance": "operators",
        "remat": (0, 2),
        "memory_fraction": 0.5,
        "time_limit_seconds": 7,
        "num_mesh_axes": 3,
        "export": "collectives",
        "finalists": 2,
    }
    words = common.split()
    assert method(*words, "--pipeline", "equal-layer") == alpa_mlir.AutoParallel(
        **same, pipeline="equal-layer"
    )
    shard = ["--method", "shard", "--mesh-shape", "2x4", "--device-type", "a100"]
    assert method(*words, *shard) == alpa_mlir.ShardParallel(
        **same, mesh_shape=(2, 4), device_type="a100"
    )
    by_hand = "--method pipeshard --submeshes 1x2,1x2@v100 --mesh-shapes 1x2,2x1 "
    by_hand += "--layer-ranges 0-2,2-6"
    assert method(*words, *by_hand.split()) == alpa_mlir.PipeshardParallel(
        **same,
        submeshes=[(1, 2), (1, 2, "v100")],
        mesh_shapes=[(1, 2), (2, 1)],
        layer_ranges=[(0, 2), (2, 6)],
    )
    assert method() == alpa_mlir.AutoParallel()
    assert method("--micro-batches", "any").num_micro_batches is None
    assert method("--micro-batches", "2,8").num_micro_batches == (2, 8)
    rounds = method("--schedule", "interleaved-1f1b", "--virtual-stages", "3")
    assert rounds.stages_per_mesh == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--micro-batches", "many"], "'many' is no whole number"),
        (["--schedule", "2f2b"], "invalid choice: '2f2b' (choose from 'auto', "),
        (["--submeshes", "4"], "'4' is no submesh such as 1x4"),
        (["--layer-ranges", "3"], "'3' is no range such as 0-2"),
        (["--layer-ranges", "a-3"], "'a' is no whole number"),
        (["--set", "layers"], "'layers' is not NAME=VALUE"),
        (["--memory-fraction", "-1"], "-1 is not a positive number"),
    ],
)
def test_wrong_options_are_usage(words, message, files, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", f"{files}/model.py", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_output_that_exists_is_kept(files, capsys):
    before = (files / "plan" / "plan.json").read_bytes()
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", f"{files}/model.py", "-o", str(files / "plan")])
    assert stopped.value.code == 2
    assert "exists; nothing is overwritten" in capsys.readouterr().err
    assert (files / "plan" / "plan.json").read_bytes() == before


@pytest.mark.parametrize(
    ("source", "what", "fix"),
    [
        ("nothing.py", "there is no such file", "give path/file.py:function"),
        ("alpa_no_such:entry", "no module named 'alpa_no_such'", "set PYTHONPATH"),
        (":entry", "'' is no module", "give module:function"),
        ("DIR/model.py:entri", "no function 'entri'", "its functions are entry"),
        ("DIR/model.py:value", "no function 'value'", ""),
        ("DIR/model.py:needs", "parameter 'x' has no default", "--set x=VALUE"),
        ("DIR/model.py:gives_a_number", "it gives a int", "(step, arguments)"),
        ("DIR/model.py:gives_an_array", "the arguments are a ndarray", "the tuple of"),
        ("DIR/model.py:gives_batches_that_are_none", "the batches are a int", "iterate"),
        ("DIR/syntax.py", "cannot be read as Python: ", ""),
        ("nothing", "there is no such plan, nor is it code", "an entry point"),
    ],
)
def test_wrong_entry_points(source, what, fix, files, capsys):
    error = failure(["plan", source.replace("DIR", str(files))], capsys)
    assert error["kind"] == "EntryPointError"
    assert what in error["what"]
    assert fix in error["fix"]
    assert source.replace("DIR", str(files)).startswith(error["where"].split(":")[0])


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("layer=3", "no parameter 'layer'"),
        ("layers=x", "layers='x'"),
        ("layers=1.5", "layers='1.5'"),
        ("scale=yes", "scale='yes'"),
    ],
)
def test_wrong_settings(setting, what, files, capsys):
    error = failure(["plan", f"{files}/model.py", "--set", setting], capsys)
    assert (error["kind"], error["what"]) == ("EntryPointError", what)
    assert error["fix"]


def test_settings_take_the_form_of_their_defaults(tmp_path):
    (tmp_path / "many.py").write_text(
        textwrap.dedent(
            """
            seen = None
            def entry(*, a=1, b=1.0, c=True, d="x", e=None, **more):
                global seen
                seen = (a, b, c, d, e, more)
                return print, ()
            def strict(a, /): ...
            """
        )
    )
    import sys

    given = {"a": "3", "b": "2", "c": "false", "d": "7", "e": "(1, 2)", "f": "name"}
    load_entry(f"{tmp_path}/many.py", given)
    seen = sys.modules["many"].seen
    assert seen == (3, 2.0, False, "7", (1, 2), {"f": "name"})
    assert isinstance(seen[1], float)
    with pytest.raises(EntryPointError, match="c='maybe'; fix: use true or false"):
        load_entry(f"{tmp_path}/many.py", {"c": "maybe"})
    with pytest.raises(EntryPointError, match="make it a keyword parameter"):
        load_entry(f"{tmp_path}/many.py:strict", {"a": "1"})


def test_files_of_one_name_are_not_mixed_up(tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "twin.py").write_text(f"def entry(): return print, ({number},)\n")
    entries = [load_entry(f"{tmp_path}/{number}/twin.py") for number in (1, 2)]
    assert [entry.arguments for entry in entries] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("source", "what", "function"),
    [
        ("model.py:fails", "KeyError: 'no weight'", "fails"),
        ("model.py:wrong_shapes", "TypeError: dot_general requires", "<lambda>"),
        ("imports.py", "ModuleNotFoundError: No module named 'alpa_no_such_module'", "<module>"),
    ],
)
def test_errors_of_the_users_code_show_its_frames(source, what, function, files, capsys):
    arguments = ["plan", f"{files}/{source}", "--cluster", "cpu-test", "-q"]
    error = failure(arguments, capsys)
    assert error["kind"] == "UserCodeError"
    assert error["what"].startswith(what)
    assert [frame["function"] for frame in error["frames"]] == [function]
    assert error["where"] == f"{error['frames'][-1]['file']}:{error['frames'][-1]['line']}"
    assert cli.main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f'  File "{error["frames"][0]["file"]}", line ' + (
        f"{error['frames'][0]['line']}, in {function}"
    )
    assert lines[-1] == f"alpa-mlir: error: {error['where']}: {error['what']}"
    assert not any("site-packages" in line or "alpa_mlir/" in line for line in lines)


def test_an_error_in_words_shows_the_frames_behind_it(tmp_path, capsys):
    (tmp_path / "sizes.py").write_text(
        textwrap.dedent(
            """
            import jax.numpy as jnp

            def step(w, batch):
                if batch.shape[0] == 8:
                    raise ValueError("eight rows")
                return (batch @ w).sum()

            def entry():
                return step, (jnp.ones((3, 3)), jnp.ones((8, 3)))
            """
        )
    )
    words = ["plan", f"{tmp_path}/sizes.py", "--cluster", "cpu-test", "--micro-batches", "2"]
    error = failure(words, capsys)
    assert error["kind"] == "TraceError"
    assert "eight rows" in error["what"]
    assert [frame["function"] for frame in error["frames"]] == ["step"]
    assert cli.main([*words, "-q"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("in step")
    assert lines[-1].startswith("alpa-mlir: error: step: the step works on one of 2 micro-batches")


@pytest.mark.parametrize("command", ["plan", "report", "simulate"])
def test_what_cannot_be_written_is_one_line(command, files, capsys):
    words = {
        "plan": [f"{files}/model.py", "--cluster", "cpu-test", "-o", "/proc/alpa/plan"],
        "report": [str(files / "plan"), "-o", "/proc/alpa.html"],
        "simulate": [str(files / "plan"), "--trace", "/proc/alpa.json"],
    }[command]
    error = failure([command, *words], capsys)
    assert error["kind"] == "OSError"
    assert error["where"].startswith("/proc/alpa")
    assert cli.main([command, *words, "-q"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_failed_plan_leaves_no_folder(files, tmp_path, capsys):
    output = tmp_path / "one" / "two"
    words = ["plan", f"{files}/model.py:fails", "-o", str(output)]
    assert cli.main([*words, "-q"]) == 1
    assert not output.exists()


def test_what_a_step_prints_stays_out_of_the_document(files, tmp_path, capsys):
    (tmp_path / "loud.py").write_text("print('hello')\nfrom model import shapes as entry\n")
    shutil.copy(files / "model.py", tmp_path)
    assert cli.main(["plan", f"{tmp_path}/loud.py", "--cluster", "cpu-test", "--json", "-q"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["name"] == "step"
    assert shown.err == "hello\n"


def test_a_method_takes_its_own_options_only(files, capsys):
    source = f"{files}/model.py"
    error = failure(["plan", source, "--method", "shard", "--pipeline", "auto"], capsys)
    assert (error["kind"], error["fix"]) == ("MethodError", "use --method auto")
    error = failure(["plan", source, "--cluster", "cpu-test", "--micro-batches", "3"], capsys)
    assert error["kind"] == "MicroBatchError"


def test_clusters(tmp_path, capsys):
    assert cli.main(["clusters"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in alpa_mlir.cluster_presets():
        assert any(line.startswith(f"{name} ") for line in lines)
    assert cli.main(["clusters", "show", "dgx-a100:4"]) == 0
    (tmp_path / "own.yaml").write_text(capsys.readouterr().out)
    assert alpa_mlir.Cluster.load(tmp_path / "own.yaml").num_devices == 32
    assert cli.main(["clusters", "check", str(tmp_path / "own.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"][0]["count"] == 4
    (tmp_path / "wrong.yaml").write_text("name: x\nhosts: {count: 0}\n")
    error = failure(["clusters", "check", tmp_path / "wrong.yaml"], capsys)
    assert error["kind"] == "ClusterFileError"
    assert "wrong.yaml" in error["what"]
    error = failure(["clusters", "show", "dgx-a10"], capsys)
    assert error["fix"] == "did you mean dgx-a100?"
    for words in (["list", "dgx-a100"], ["show"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["clusters", *words])
        assert stopped.value.code == 2


def test_an_unknown_cluster_is_named(files, capsys):
    error = failure(["plan", f"{files}/model.py", "--cluster", "p3.16xlarg:2"], capsys)
    assert error["kind"] == "ClusterFileError"
    assert error["fix"] == "did you mean p3.16xlarge?"
    error = failure(["plan", f"{files}/model.py", "--cluster", files / "none.yaml"], capsys)
    assert "No such file" in error["what"]


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


def test_explain_says_what_limits_a_step(files, tmp_path, capsys):
    from dataclasses import replace

    from alpa_mlir.bottleneck import bottlenecks

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
    assert {"data parallelism", "ZeRO, stage 3", "pipeline, equal layers"} <= set(planned)
    # What was searched holds them all; the solver may stop within its gap.
    assert all(row["seconds"] >= 0.99 * best for row in planned.values())
    lost = found["pipeline, a device each stage"]
    assert lost["seconds"] is None
    assert "needs a layer for each of 8 devices" in lost["reason"]
    assert cli.main(["explain", *source, "--alternatives"]) == 0
    text = capsys.readouterr().out
    assert "- no plan for pipeline, a device each stage: " in text
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


def test_report(files, tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    output = tmp_path / "plan.html"
    words = ["report", str(files / "pipeline"), "-o", str(output)]
    assert cli.main([*words, "--open", "--compare", str(files / "plan")]) == 0
    assert f"wrote {output}" in capsys.readouterr().out
    assert opened == [output.as_uri()]
    page = output.read_text()
    assert "</html>" in page
    assert str(files / "plan") in page
    before = output.read_bytes()
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    assert "exists; name another with -o, or give --force" in capsys.readouterr().err
    assert output.read_bytes() == before
    assert cli.main([*words, "--force", "--json", "--plots", str(tmp_path / "pictures")]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["bytes"] == output.stat().st_size
    assert str(tmp_path / "pictures" / "timeline.svg") in fields["plots"]
    assert sorted(map(str, (tmp_path / "pictures").iterdir())) == sorted(fields["plots"])
    source = ["report", f"{files}/model.py:entry", "--cluster", "cpu-test", "--alternatives", "-q"]
    assert cli.main([*source, "-o", str(tmp_path / "step.html")]) == 0
    assert "ZeRO, stage 2" in (tmp_path / "step.html").read_text()


def test_reports_that_cannot_be_written(files, tmp_path, capsys):
    error = failure(
        ["report", files / "plan", "-o", tmp_path / "x.html", "--compare", tmp_path], capsys
    )
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
