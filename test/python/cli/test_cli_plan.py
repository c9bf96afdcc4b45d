"""Planning from the command line, and entry points that are wrong."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap

import alpa_mlir
import pytest
from alpa_mlir import Plan, cli
from alpa_mlir.cli._entry_points import load_entry
from alpa_mlir.errors import EntryPointError
from cli_entries import failure, write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("cli"))


def test_a_plan_is_printed_and_written(files, tmp_path, capsys, monkeypatch):
    source = f"{files}/model.py:entry"
    command = ["plan", source, "--cluster", "cpu-test", "--set", "layers=3", "--method", "shard"]
    assert cli.main([*command, "-q", "-o", str(tmp_path / "plan")]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert shown.out.startswith("plan of step: 1 stage")
    assert shown.out.endswith(f"wrote {tmp_path / 'plan'}\n")
    plan = alpa_mlir.Plan.load(tmp_path / "plan")
    assert len([x for x in plan.arguments if x.kind == "state"]) == 3
    assert cli.main([*command, "--no-cache"]) == 0
    assert not capsys.readouterr().err  # Bars are on terminals only.
    monkeypatch.setattr("alpa_runtime.parallel_step.on_terminal", lambda: True)
    assert cli.main([*command, "--json", "--no-cache"]) == 0
    shown = capsys.readouterr()
    assert shown.err.index("tracing: ") < shown.err.index("planning: ")
    fields = json.loads(shown.out)
    assert fields["num_micro_batches"] == plan.num_micro_batches == 1
    assert fields["exact"] is True
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
        from alpa_mlir.cli._method import method_of

        options = cli.parser(only="plan").parse_args(["plan", "x.py", *words])
        return method_of(options, None)

    common = "--shardings zero-2 --micro-batches 4 --schedule gpipe --layers 6 --max-layers 9 "
    common += "--layer-balance operators --remat 0,2 --memory-fraction 0.5 --time-limit 7 "
    common += "--num-mesh-axes 3 --export collectives --finalists 2 "
    common += "--micro-batch-semantics relaxed --sharding-constraints ignore "
    common += "--padding little --prepare-weights none --offload optimizer "
    common += "--remat-keeps products --layer-loops all"
    same = {
        "method": "zero-2",
        "sharding_constraints": "ignore",
        "padding": "little",
        "prepare_weights": "none",
        "offload": "optimizer",
        "remat_keeps": "products",
        "num_micro_batches": 4,
        "micro_batch_semantics": "relaxed",
        "schedule": "gpipe",
        "layers": 6,
        "max_layers": 9,
        "layer_balance": "operators",
        "remat": (0, 2),
        "memory_fraction": 0.5,
        "time_limit_seconds": 7,
        "num_mesh_axes": 3,
        "export": "collectives",
        "layer_loops": "all",
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
    assert method("--max-devices", "3") == alpa_mlir.AutoParallel(max_devices=3)
    few = method("--max-stages", "2", "--layer-ranges", "0-3,3-4")
    assert few == alpa_mlir.AutoParallel(max_stages=2, layer_ranges=[(0, 3), (3, 4)])
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
        (["--memory-fraction", "1.5"], "1.5 is above 1"),
        (["--remat", "al"], "'al' is none of none, all, auto, or numbers; did you mean all?"),
    ],
)
def test_wrong_options_are_usage(words, message, files, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", f"{files}/model.py", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_idle_devices_are_said_with_what_using_them_costs(files, tmp_path, capsys):
    cluster = tmp_path / "cluster.yaml"  # One device is too far away to be of use.
    cluster.write_text(
        "name: far\n"
        "device_types: {d: {memory_bytes: 1GiB, memory_bandwidth: 1e11, "
        "peak_flops: {float32: 1e12}}}\n"
        "hosts: [{count: 1, devices: 2, device_type: d}, {count: 1, devices: 1, device_type: d}]\n"
        "links: {intra_host: {bandwidth: 1e11, latency: 1us}, "
        "inter_host: {bandwidth: 1e6, latency: 1ms}}\n"
    )
    words = ["plan", f"{files}/model.py", "--cluster", str(cluster), "-q"]
    assert cli.main([*words, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    step, used = fields["predicted"]["step_seconds"], fields["num_devices"]
    assert used < 3
    found = re.fullmatch(
        r"(\d) of 3 devices (?:is|are) idle: the best plan found that uses them is slower, "
        r"([\d.]+) (us|ms) a step, ([\d.]+)% more",
        fields["idle"],
    )
    assert int(found[1]) == 3 - used
    all_of_them = float(found[2]) * {"us": 1e-6, "ms": 1e-3}[found[3]]
    assert float(found[4]) == pytest.approx(100 * (all_of_them / step - 1), rel=0.02)
    assert cli.main(words) == 0
    assert fields["idle"] in capsys.readouterr().out
    assert cli.main([*words, "--max-devices", "1", "--json"]) == 0
    idle = json.loads(capsys.readouterr().out)["idle"]
    assert idle == "2 of 3 devices are idle: at most 1 are wanted"


def test_output_that_exists_is_kept(files, capsys):
    before = (files / "plan" / "plan.json").read_bytes()
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", f"{files}/model.py", "-o", str(files / "plan")])
    assert stopped.value.code == 2
    assert "exists; name another, or give --force" in capsys.readouterr().err
    assert (files / "plan" / "plan.json").read_bytes() == before


def test_a_terminal_says_from_the_beginning_what_is_done(files, capsys, monkeypatch):
    words = ["plan", f"{files}/model.py", "--cluster", "cpu-test", "--method", "shard"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(words) == 0
    err = capsys.readouterr().err
    assert err.startswith("importing JAX\r")
    assert err.index("importing JAX") < err.index("tracing") < err.index("planning")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main([*words, "-q"]) == 0
    assert not capsys.readouterr().err


def test_force_writes_over_plans_and_files_alone(files, tmp_path, capsys):
    plan = tmp_path / "plan"
    shutil.copytree(files / "pipeline", plan)
    (plan / "notes.txt").write_text("mine")
    words = ["plan", f"{files}/model.py", "--cluster", "cpu-test", "--method", "shard", "-q"]
    assert cli.main([*words, "-o", str(plan), "--force"]) == 0
    written = Plan.load(plan)
    assert len(written.stages) == 1 < len(Plan.load(files / "pipeline").stages)
    assert {*written.modules} == {"stage_0.mlir"}  # Of the other plan nothing is left.
    assert (plan / "notes.txt").read_text() == "mine"
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    trace = tmp_path / "trace.json"
    trace.write_text("old")
    for refused, message in (
        ([*words, "-o", str(other), "--force"], "holds no plan to write over"),
        (["simulate", str(plan), "--trace", str(trace)], "exists; name another, or give --force"),
        (["profile", "-o", str(trace)], "exists; name another, or give --force"),
        (["completion", "bash", "-o", str(trace)], "exists; name another, or give --force"),
        (["run", str(plan), "--trace", str(trace)], "exists; name another, or give --force"),
        (["report", str(plan), "-o", str(trace)], "exists; name another, or give --force"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(refused)
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
        assert trace.read_text() == "old"
    assert cli.main(["simulate", str(plan), "--trace", str(trace), "--force"]) == 0
    assert "traceEvents" in trace.read_text()


def test_what_is_read_is_not_written_over(files, tmp_path, capsys):
    plan, other = tmp_path / "plan", tmp_path / "other"
    for folder in (plan, other):
        shutil.copytree(files / "plan", folder)
    shutil.copy(files / "model.py", tmp_path)
    cluster, record = tmp_path / "cluster.yaml", tmp_path / "record.json"
    assert cli.main(["clusters", "show", "cpu-test"]) == 0
    cluster.write_text(capsys.readouterr().out)
    record.write_text("{}")
    link = tmp_path / "link.json"
    link.symlink_to(plan / "plan.json")
    page = tmp_path / "page.html"
    step = str(tmp_path / "model.py")
    part, read = "is part of the plan that is read", "is what is read"
    for words, message in (
        (["export", str(plan), "--to", "jax", "-o", str(plan / "plan.json")], part),
        (["export", str(plan), "--to", "mpmd", "-o", str(plan / "stage_0.mlir")], part),
        (["export", str(plan), "--to", "jax", "-o", str(link)], part),
        (["simulate", str(plan), "--trace", str(plan / "plan.json")], part),
        (["simulate", str(plan), "--cluster", str(cluster), "--trace", str(cluster)], read),
        (["report", str(plan), str(other), "-o", str(other / "plan.json")], part),
        (["report", str(plan), "--record", str(record), "-o", str(record)], read),
        (["report", str(plan), "-o", str(page), "--plots", str(plan)], read),
        (["report", f"{step}:entry", "-o", step], read),
        (["run", str(plan), "--trace", str(plan / "plan.json")], part),
        (["measure", str(plan), str(other), "-o", str(other)], read),
        (["plan", step, "--from", str(plan), "-o", str(plan)], read),
        (["plan", step, "--keep-stages", str(plan), "-o", str(plan)], read),
    ):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(SystemExit) as stopped:
            cli.main([*words, "--force"])
        assert stopped.value.code == 2, words
        assert message in capsys.readouterr().err, words
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    with pytest.raises(SystemExit):
        cli.main(["profile", "-o", str(page), "--cluster-output", str(page)])
    assert "is named twice" in capsys.readouterr().err
    # What lies beside a plan's own files is none of them.
    for _ in range(2):
        words = ["report", str(plan), "-o", str(plan / "plan.html"), "--force"]
        assert cli.main(words) == 0
    assert Plan.load(plan) == Plan.load(files / "plan")


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
            from alpa_mlir.errors import TraceError

            def step(w, batch):
                try:
                    raise ValueError("eight rows")
                except ValueError as error:
                    raise TraceError("there is no such step", where="step") from error

            def entry():
                return step, (jnp.ones((3, 3)), jnp.ones((8, 3)))
            """
        )
    )
    words = ["plan", f"{tmp_path}/sizes.py", "--cluster", "cpu-test", "--micro-batches", "2"]
    error = failure(words, capsys)
    assert (error["kind"], error["what"]) == ("TraceError", "there is no such step")
    assert [frame["function"] for frame in error["frames"]] == ["step"]
    assert cli.main([*words, "-q"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("in step")
    assert lines[-1] == "alpa-mlir: error: step: there is no such step"


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
    assert "beside published training runs" in (tmp_path / "own.yaml").read_text()
    assert alpa_mlir.Cluster.load(tmp_path / "own.yaml").num_devices == 32
    assert cli.main(["clusters", "check", str(tmp_path / "own.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"][0]["count"] == 4
    assert cli.main(["clusters", "show", "l40s"]) == 0
    assert capsys.readouterr().out.startswith("# No published run says")
    assert cli.main(["clusters", "show", str(tmp_path / "own.yaml")]) == 0
    assert "#" not in capsys.readouterr().out
    assert cli.main(["clusters", "check", "gb200-nvl72:2"]) == 0
    assert "36 x 4, 18 in a rack" in capsys.readouterr().out
    assert cli.main(["clusters", "show", "dgx-a100"]) == 0
    assert '"ll128": 1.9e-06' in capsys.readouterr().out
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


def test_a_frontier_is_printed_and_drawn(files, tmp_path, capsys):
    source, picture = f"{files}/model.py:entry", tmp_path / "frontier.svg"
    command = ["plan", source, "--cluster", "cpu-test", "--frontier", "--over", "devices", "-q"]
    command += ["--method", "shard"]
    assert cli.main([*command, "--price", "2", "--picture", str(picture), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert [p["num_devices"] for p in fields["devices"]] == [1, 2, 4, 8]
    assert fields["devices"][0]["step_cost"] > 0
    assert (fields["tokens"], fields["unit"]) == (None, "1M examples")
    assert picture.read_text().startswith("<svg ")
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("frontier of step on cpu-test; a step has 8 examples\n")
    assert "cost" not in shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--over", "memory"], "--over goes with --frontier"),
        (["--frontier", "--compare"], "leave --compare out"),
        (["--frontier", "--price", "-1"], "-1 is not a positive number"),
        (["--frontier", "--price", "dear"], "'dear' is no number"),
        (["--frontier", "-o", "plans"], "--frontier is many plans, of which -o would write none"),
        (["--frontier", "--picture", "x.png"], "--picture x.png is no .svg file"),
        (["--frontier", "--over", "time"], "invalid choice: 'time'"),
    ],
)
def test_what_frontiers_do_not_take(words, text, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["plan", f"{files}/model.py:entry", *words])
    assert text in capsys.readouterr().err


def test_a_plan_to_begin_with(files, tmp_path, capsys):
    """What stays and what changes is said, in words and as fields."""
    plan = ["plan", f"{files}/model.py:entry", "-q", "--no-cache"]
    first = str(tmp_path / "first")
    deep = ["--set", "layers=6", "--cluster", "cpu-test"]
    assert cli.main([*plan, "--set", "layers=4", "--cluster", "dgx-a100", "-o", first]) == 0
    capsys.readouterr()
    assert cli.main([*plan, *deep, "--from", first]) == 0
    kept, changed = capsys.readouterr().out.splitlines()[-2:]
    assert kept.startswith("kept: ")
    clusters = (
        "dgx-a100, 1 host of 8 a100-80gb with 8 network adapters",
        "cpu-test, 2 hosts of 4 virtual",
    )
    assert changed.startswith(f"changed: cluster {clusters[0]} -> {clusters[1]}; ")
    assert "layers of stage 0 0-3 -> 0-" in changed
    assert cli.main([*plan, *deep, "--from", first, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)["start"]
    change = {"what": "cluster", "before": clusters[0], "after": clusters[1]}
    assert change in fields["decisions"]
    error = failure([*plan, "--from", first, "--keep-stages", first], capsys)
    assert "which says what the stages are" in error["what"]
    assert failure([*plan, "--from", str(tmp_path / "none")], capsys)["where"]


def test_stages_are_kept(files, tmp_path, capsys):
    """With other shardings, micro-batches and schedules, and on a cluster with a host more."""
    plan = ["plan", f"{files}/model.py:entry", "--set", "layers=6", "-q", "--no-cache"]
    by_hand = ["--method", "pipeshard", "--submeshes", "1x2,1x2", "--layers", "6"]
    by_hand += ["--layer-ranges", "0-2,2-6", "--micro-batches", "2"]
    first = str(tmp_path / "first")
    assert cli.main([*plan, *by_hand, "--cluster", "cpu-test", "-o", first]) == 0
    keep = [*plan, "--keep-stages", first, "--json"]
    capsys.readouterr()
    for words, count in (
        (["--cluster", "cpu-test", "--shardings", "zero-2"], 2),
        (["--cluster", "dgx-a100:2", "--micro-batches", "4"], 4),
    ):
        assert cli.main([*keep, *words]) == 0
        fields = json.loads(capsys.readouterr().out)
        assert [stage["layers"] for stage in fields["stages"]] == [[0, 2], [2, 6]]
        assert [len(stage["devices"]) for stage in fields["stages"]] == [2, 2]
        assert fields["num_micro_batches"] == count
    error = failure([*plan, "--keep-stages", first, "--layers", "3"], capsys)
    assert "--layers with --keep-stages" in error["what"]
    assert failure([*plan, "--keep-stages", str(tmp_path / "none")], capsys)["where"]


def test_files_and_folders_that_were_meant(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text("")
    (tmp_path / "plans").mkdir()
    (tmp_path / "my_plan").mkdir()
    (tmp_path / "my_plan" / "plan.json").write_text("")
    model = f"{files}/model.py"
    for words, where in (
        ([model, "--cluster", "clustr.yaml"], "cluster.yaml"),
        ([f"{files}/models.py:entry"], model),
    ):
        assert failure(["plan", *words], capsys)["fix"] == f"did you mean {where}?"
    assert failure(["explain", "my_plam"], capsys)["fix"] == "did you mean my_plan?"
    assert failure(["explain", "elsewhere"], capsys)["fix"].startswith("give a plan's folder")
