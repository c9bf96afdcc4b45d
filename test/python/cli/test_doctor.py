"""The doctor: what it finds here, and that nothing broken makes it fail or wait."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from alpa_mlir import cli
from alpa_mlir.doctor import Diagnosis, Finding, checks, diagnose
from alpa_mlir.doctor.probes import ANSWER, run_bounded, run_probe
from alpa_runtime.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return diagnose()


def only(findings) -> Finding:
    (finding,) = findings
    return finding


def test_this_installation_is_well(found):
    assert not found.broken
    assert found["alpa_mlir"].facts["version"] == VERSION
    build = found["native module"].facts["build"]
    assert build.startswith(f"alpa_mlir {VERSION}, sources ")
    assert ", LLVM 22." in build
    for name in checks.PROGRAMS:
        assert found[name].facts["build"] == build, found[name].what
    for name in ("built-in", "highs", "gurobi", "ray", "iree", "checkpoints", "plots"):
        assert found[name].state == "ok", found[name].what
    assert found["gurobi"].facts["any_size"] in (True, False)
    assert found["cpu"].facts["cores"] == len(os.sched_getaffinity(0))
    assert found["memory"].facts["total_bytes"] > 1 << 30


def test_text_and_json_say_the_same(found):
    text, fields = found.as_text(), json.loads(found.as_json())
    assert fields["usable"] is True
    for title, group in fields["groups"].items():
        assert f"\n{title}\n" in f"\n{text}"
        for finding in group:
            assert f"  {finding['state']:<8} {finding['what']}" in text
            assert (finding["state"] == "ok") == (not finding["fix"]), finding


def test_exit_status_is_of_what_is_needed(monkeypatch, capsys):
    from alpa_mlir import doctor

    well = Finding("python", "ok", "Python", needed=True)
    no_ray = Finding("ray", "problem", "Ray does not answer", "start it")
    broken = Finding("jax", "problem", "jax is not installed", "pip install jax", needed=True)
    monkeypatch.setattr(doctor, "diagnose", lambda **_: Diagnosis({"all": (well, no_ray)}))
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("usable, with 1 problem\n")
    monkeypatch.setattr(doctor, "diagnose", lambda **_: Diagnosis({"all": (well, broken)}))
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["usable"] is False
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "  problem  jax is not installed\n           pip install jax\n" in out
    assert out.endswith("not usable: jax\n")


def test_what_the_package_needs_is_what_it_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = (text.partition(",")[0] for text in project["dependencies"])
    declared = dict(text.partition(">=")[::2] for text in needed)
    assert declared == checks.NEEDED
    assert project["requires-python"] == f">={'.'.join(map(str, checks.PYTHON))}"
    source = "".join(p.read_text() for p in (ROOT / "python/alpa_mlir/doctor").glob("*.py"))
    for extra in project["optional-dependencies"]:
        named = any(f"{quote}{extra}{quote}" in source for quote in "'\"")
        assert named or extra in ("all", "docs", "examples"), (
            f"the doctor does not look at [{extra}]"
        )


def test_a_check_that_fails_is_a_finding(monkeypatch):
    def surprise(seconds):
        raise ValueError("no such thing")

    monkeypatch.setattr(checks, "CHECKS", {"all": (surprise,)})
    assert only(diagnose().findings).what.endswith("ValueError: no such thing")


# What comes of a probe ---------------------------------------------------------------------------


def test_probes_may_crash_hang_and_talk(tmp_path):
    crash = f"import os, signal; os.kill(os.getpid(), signal.{signal.SIGSEGV.name})"
    talk = f"print('noise'); print({ANSWER!r} + '{{}}'); print('more noise')"
    ended = run_bounded([sys.executable, "-c", crash], 30)
    assert not isinstance(ended, str)
    assert ended.returncode == -signal.SIGSEGV
    ended = run_bounded([sys.executable, "-c", talk], 30)
    assert not isinstance(ended, str)
    assert ended.stdout.splitlines() == ["noise", f"{ANSWER}{{}}", "more noise"]
    # A process that never ends, with a child that holds its output open.
    file = tmp_path / "pid"
    hang = f"sleep 1000 & echo $! > {file}; sleep 1000"
    start = time.monotonic()
    assert run_bounded(["bash", "-c", hang], 0.5) == "no answer within 0.5 s"
    assert time.monotonic() - start < 20
    child = Path(f"/proc/{file.read_text().strip()}/stat")
    end = time.monotonic() + 20
    while child.exists() and child.read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
        assert time.monotonic() < end
        time.sleep(0.01)
    assert str(run_bounded(["/no/such/program"], 1)).startswith("cannot be started")


def test_a_failing_probe_says_why_in_one_line():
    assert run_probe("solver", "no-such-method", seconds=60).error.startswith("SolverError: ")
    assert run_probe("imports", "no_such_module", seconds=60).error == (
        "ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert run_probe("no such probe", seconds=60).error == "KeyError: 'no such probe'"


# What is missing or wrong ------------------------------------------------------------------------


@pytest.fixture
def versions(monkeypatch):
    """Versions of packages, other than what is installed."""
    given: dict[str, str | None] = {}
    real = checks.version_of

    def version_of(package: str) -> str | None:
        return given[package] if package in given else real(package)

    monkeypatch.setattr(checks, "version_of", version_of)
    return given


@pytest.mark.parametrize(
    ("package", "check", "extra"),
    [
        ("highspy", checks.highs, "highs"),
        ("gurobipy", checks.gurobi, "gurobi"),
        ("ray", checks.ray, "ray"),
        ("iree-base-runtime", checks.iree, "iree"),
        ("cupy-cuda12x", checks.nccl, "nccl"),
        ("nixl-cu12", checks.nixl, "nixl"),
        ("tensorstore", checks.checkpoints, "checkpoint"),
        ("matplotlib", checks.plots, "plots"),
    ],
)
def test_missing_options_name_their_extra(versions, package, check, extra):
    versions[package] = None
    finding = only(check(60.0))
    assert finding.state == "missing"
    assert finding.fix == f"pip install 'alpa-mlir[{extra}]'"
    assert not finding.needed


def test_options_for_cuda_13(versions):
    versions |= {"jax-cuda12-plugin": None, "jax-cuda13-plugin": "0.12.0"}
    versions |= {name: None for name in ("cupy-cuda12x", "cupy-cuda13x")}
    assert only(checks.nccl(60.0)).fix == "pip install 'alpa-mlir[nccl13]'"


@pytest.mark.parametrize(
    ("package", "module", "check", "title"),
    [("cupy-cuda12x", "cupy", checks.nccl, "NCCL"), ("nixl-cu12", "nixl", checks.nixl, "NIXL")],
)
def test_what_is_installed_and_cannot_be_used(versions, package, module, check, title):
    if importlib.util.find_spec(module) or importlib.util.find_spec(f"{module}_cu12"):
        pytest.skip("it can be used here")
    versions[package] = "1.2.3"  # Says its metadata.
    finding = only(check(60.0))
    assert finding.state == "problem"
    assert finding.what.startswith(f"{title}: {package} 1.2.3 cannot be used: TransportError: ")


def test_missing_and_old_packages(versions):
    versions |= {"tqdm": None, "jax": "0.9.9", "jaxlib": "0.10.2"}
    found = {finding.name: finding for finding in checks.dependencies(60.0)}
    assert found["tqdm"].what == "tqdm is not installed"
    assert found["jax"].what == "jax 0.9.9 is older than 0.10.2"
    assert found["jax"].fix == "pip install 'jax>=0.10.2'"
    assert found["jax versions"].needed
    assert found["jaxlib"].state == found["numpy"].state == "ok"


def test_versions_that_do_not_belong_together(versions):
    versions |= {"iree-base-compiler": "3.13.0", "iree-base-runtime": "3.12.0"}
    finding = only(checks.iree(60.0))
    assert finding.state == "problem"
    assert finding.fix == "pip install 'iree-base-runtime==3.13.0'"


def test_gpus(versions, monkeypatch):
    versions |= {"jax-cuda12-plugin": None, "jax-cuda13-plugin": None}
    monkeypatch.setattr(checks, "driver_version", lambda: None)
    assert only(checks.gpu(60.0)).state == "missing"
    monkeypatch.setattr(checks, "driver_version", lambda: "580.1")
    finding = only(checks.gpu(60.0))
    assert (finding.state, finding.fix) == ("missing", "pip install 'alpa-mlir[cuda12]'")
    versions["jax-cuda12-plugin"] = "0.9.0"
    finding = only(checks.gpu(60.0))
    assert finding.state == "problem"
    assert "does not belong to jaxlib" in finding.what
    versions["jax-cuda12-plugin"] = checks.version_of("jaxlib")
    monkeypatch.setattr(checks, "driver_version", lambda: None)
    assert only(checks.gpu(60.0)).state == "ok"


def test_a_driver_without_gpus_is_a_problem(versions, monkeypatch):
    versions["jax-cuda12-plugin"] = checks.version_of("jaxlib")
    monkeypatch.setattr(checks, "driver_version", lambda: "580.1")
    finding = only(checks.gpu(60.0))
    assert finding.state == "problem"
    assert finding.what.startswith("JAX does not compute on the GPUs (NVIDIA driver 580.1")


def test_ray_address(monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        # Bound, but not listening.
        finding = only(checks.ray(60.0))
        assert finding.state == "problem"
        assert f"nothing answers at RAY_ADDRESS=127.0.0.1:{port}" in finding.what
        # Something listens that is not Ray, and never answers.
        server.listen()
        start = time.monotonic()
        finding = only(checks.ray(3.0))
        assert time.monotonic() - start < 20
        assert finding.state == "problem"
        assert "unset RAY_ADDRESS" in finding.fix


def test_programs_of_another_build(tmp_path, monkeypatch):
    told = "alpa_mlir 0.0.1, sources 0, Debug, GNU 12, LLVM 21"
    programs = {
        "alpa-opt": f"#!/bin/sh\necho LLVM; echo '  {told}'\n",
        "alpa-solve": "#!/bin/sh\nexit 1\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(checks, "find_program", lambda name: tmp_path / name)
    found = {finding.name: finding for finding in checks.compiler(60.0)}
    assert found["native module"].state == "ok"
    assert found["alpa-opt"].what == f"{tmp_path}/alpa-opt is of another build: {told}"
    assert "does not say what it was built from" in found["alpa-solve"].what
    monkeypatch.setattr(checks, "find_program", lambda name: None)
    found = {finding.name: finding for finding in checks.compiler(60.0)}
    assert found["alpa-opt"].state == "missing"


def test_a_native_module_that_does_not_load(tmp_path):
    """The package without its native module: everything else is still looked at."""
    package = tmp_path / "alpa_mlir"
    package.mkdir()
    for path in (ROOT / "python/alpa_mlir").iterdir():
        if not path.name.startswith("_native"):
            (package / path.name).symlink_to(path)
    code = (
        "from alpa_mlir.doctor import checks\n"
        "found = list(checks.compiler(60.0))\n"
        "print(found[0].state, found[0].needed, found[0].what)"
    )
    # Probes look for the package where the module that starts them is.
    (package / "doctor").unlink()
    (package / "doctor").mkdir()
    for path in (ROOT / "python/alpa_mlir/doctor").glob("*.py"):
        (package / "doctor" / path.name).write_text(path.read_text())
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'runtime'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("problem True the native module does not work: ModuleNotFound")


# The machine -------------------------------------------------------------------------------------


def test_cache_folder(tmp_path, monkeypatch):
    folder = tmp_path / "plans"
    monkeypatch.setenv("ALPA_MLIR_CACHE", str(folder))
    finding = only(checks.cache(1.0))
    assert (finding.state, finding.facts["used_bytes"]) == ("ok", 0)
    assert not folder.exists()  # Looking leaves nothing behind.
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "b").write_bytes(b"x" * 1000)
    assert only(checks.cache(1.0)).facts["used_bytes"] == 1000
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ALPA_MLIR_CACHE", str(tmp_path / "file" / "below"))
    finding = only(checks.cache(1.0))
    assert finding.state == "problem"
    assert finding.fix == "set ALPA_MLIR_CACHE to another folder"


def test_little_room(monkeypatch):
    monkeypatch.setattr(checks, "LEAST_DISK_BYTES", 1 << 60)
    monkeypatch.setattr(checks, "LEAST_SHM_BYTES", 1 << 60)
    monkeypatch.setattr(checks, "LEAST_OPEN_FILES", 1 << 60)
    assert only(checks.temporary(1.0)).state == "problem"
    shared = [found for found in checks.memory(1.0) if found.name == "shared memory"]
    assert only(shared).fix.startswith("make it larger")
    files = [found for found in checks.limits(1.0) if found.name == "open files"]
    assert only(files).state == "problem"
