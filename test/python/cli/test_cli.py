"""The command line as a whole: subcommands, help, JSON, exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from alpa_mlir import cli, errors
from source_paths import PYTHONPATH

ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.AlpaError)
]


def process(*arguments: str, **more) -> subprocess.CompletedProcess[str]:
    """The command as users start it."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    return subprocess.run(
        [sys.executable, "-m", "alpa_mlir", *arguments],
        env=environment | {"PYTHONPATH": PYTHONPATH, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "none.mlir"],
        ["plan", "none.py:entry"],
        ["plan", "here.py", "--cluster", "none.yaml"],
        ["plan", "here.py", "--from", "none"],
        ["run", "here.py", "--keep-stages", "none"],
        ["report", "here.py", "none"],
        ["explain", "none"],
        ["simulate", "none"],
        ["measure", "none"],
        ["compile", "none"],
        ["export", "none", "--to", "jax"],
        ["diff", "none", "none"],
    ],
    ids=" ".join,
)
def test_what_is_missing_is_said_without_jax(words, tmp_path):
    (tmp_path / "here.py").write_text("import jax\n")
    code = (
        "import sys; from alpa_mlir import cli; print(cli.main(sys.argv[1:]), 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "1 False\n", done.stderr
    assert "error: " in done.stderr
    assert "none" in done.stderr


def test_building_every_parser_imports_no_jax():
    code = "import sys; from alpa_mlir import cli; cli.parser(); print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


def test_help_lists_every_subcommand():
    done = process("--help")
    assert done.returncode == 0
    for name, summary in cli.COMMANDS.items():
        assert name in done.stdout
        assert summary.split()[0] in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_examples_of_the_help_parse(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    lines = [line.strip() for line in text.split("examples:")[1].splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("alpa-mlir")]
    assert commands
    for command in commands:
        assert command[1] == name
        options = cli.parser(only=name).parse_args(command[1:])
        assert options.command == name
        assert callable(options.run)


def test_errors_as_json(capsys):
    assert cli.main(["simulate", "/no/such/plan", "--json"]) == 1
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert error["kind"] == "PlanFormatError"
    assert error["code"] == "plan-format"
    assert set(error) == {"kind", "code", "what", "where", "fix"}
    assert not shown.err
    with pytest.raises(SystemExit) as stopped:
        cli.main(["simulate", "--json"])
    assert stopped.value.code == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["code"]) == ("UsageError", "usage")
    assert error["where"] == "alpa-mlir simulate"
    assert "PLAN" in error["what"]


def raiser(kind):
    """A subcommand that fails with an error of that class."""

    def fail(_):
        raise kind("broken", where="here", fix="mend it")

    return fail


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.code)
def test_every_error_comes_with_its_code(kind, capsys, monkeypatch):
    from alpa_mlir.cli import simulate

    monkeypatch.setattr(simulate, "run", raiser(kind))
    assert cli.main(["simulate", "x", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == {
        "kind": kind.__name__,
        "code": kind.code,
        "what": "broken",
        "where": "here",
        "fix": "mend it",
    }


def test_a_fault_of_ours_shows_its_traceback(capsys, monkeypatch):
    from alpa_mlir.cli import simulate

    def fail(_):
        raise RuntimeError("broken")

    fail.__code__ = fail.__code__.replace(co_filename=simulate.__file__)
    monkeypatch.setattr(simulate, "run", fail)
    assert cli.main(["simulate", "x"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: RuntimeError: broken; fix: report this with the traceback\n")


def test_interrupted(capsys, monkeypatch):
    from alpa_mlir.cli import simulate

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "run", interrupt)
    assert cli.main(["simulate", "x"]) == 130
    assert capsys.readouterr() == ("", "alpa-mlir: interrupted\n")
    assert cli.main(["simulate", "x", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "Interrupted"


BUSY = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # Jobs in the background ignore it.
from alpa_mlir import cli
from alpa_mlir.cli import _command, simulate

def search():
    print("searching", flush=True)
    time.sleep(600)

simulate.run = lambda _: _command.interruptible(search)
sys.exit(cli.main(["simulate", "x"]))
"""


def test_the_compiler_is_interrupted_at_its_work():
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert busy.stdout.readline() == "searching\n"
    busy.send_signal(signal.SIGINT)
    assert busy.communicate(timeout=120) == ("", "alpa-mlir: interrupted\n")
    assert busy.returncode == 130


def test_interruptible_work_gives_what_it_gives():
    from alpa_mlir.cli._command import interruptible

    assert interruptible(lambda: 3) == 3
    with pytest.raises(KeyError, match="no"):
        interruptible(lambda: {}["no"])


def test_a_reader_that_stops_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "alpa_mlir", "clusters", "show", "nothing", "--json"],
            env=os.environ | {"PYTHONPATH": PYTHONPATH},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_no_room_for_the_output(more):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", _PRINTS, *more],
            env=os.environ | {"PYTHONPATH": PYTHONPATH},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "alpa-mlir: error: cannot write the output: No space left on device\n"


# A subcommand that answers at once.
_PRINTS = """
import sys
from alpa_mlir.cli import main
from alpa_mlir.cli import clusters
from alpa_mlir.cli._command import Answer
clusters.run = lambda options: Answer("text", {"a": 1})
sys.exit(main(["clusters", *sys.argv[1:]]))
"""


def test_alone_it_prints_its_help(capsys):
    assert cli.main([]) == 0
    assert capsys.readouterr().out.startswith("usage: alpa-mlir [-h] [--version] COMMAND")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("plam", "plan"),
        ("plan x.py --clusterr=y", "--cluster"),
        ("run --micro-batchs 3 x.py", "--micro-batches"),
        ("plan x.py --schedule 1f1", "1f1b"),
        ("clusters shown", "show"),
        ("completion zhs", "zsh"),
    ],
)
def test_mistyped_words(words, meant, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(words.split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def test_words_like_none_that_is_known(capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", "x.py", "--qqqq"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_fits_the_terminal(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    text = capsys.readouterr().out.partition("examples:")[0]
    assert max(map(len, text.partition("\n\n")[2].partition("\n\n")[0].splitlines())) <= 60
    assert not [line for line in text.splitlines() if line.endswith("megatron-")]


@pytest.mark.parametrize("words", ["plan", "run", "report", "explain"])
def test_a_missing_file_needs_no_jax(words, tmp_path):
    (tmp_path / "train.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "alpa_mlir", words, "trains.py:entry"],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "trains.py: there is no such file; fix: did you mean train.py?" in done.stderr
    assert not [line for line in done.stderr.splitlines() if line.endswith("| jax")]
