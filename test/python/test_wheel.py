"""The wheel, made from the source archive, holds all that a user needs and works without LLVM."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from alpa_runtime.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
LLVM = Path("/usr/lib/llvm-22")
STEP = """
import alpa_mlir, jax, jax.numpy as jnp, sys
def step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2))(w)
    return jax.tree.map(lambda p, q: p - 0.1 * q, w, g), loss
def entry():
    w = {"a": jnp.full((16, 32), 0.1), "b": jnp.full((32, 8), 0.1)}
    return step, (w, jnp.linspace(0, 1, 8 * 16).reshape(8, 16))
if __name__ == "__main__":
    assert alpa_mlir.__file__.startswith(sys.argv[1]), alpa_mlir.__file__
    alpa_mlir.use_virtual_devices(8)
    _, (w, x) = entry()
    parallel = alpa_mlir.parallelize(step, cluster="cpu-test")
    assert jnp.allclose(parallel(w, x)[1], jax.jit(step)(w, x)[1], rtol=1e-5)
"""
PROBLEM = {
    "problem": {
        "nodes": {"intervals": [[0, 2]], "costs": [[3, 1]], "usages": [[1, 1]]},
        "edges": {"nodes": [], "costs": []},
        "usage_limit": 8,
    }
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """The source archive, unpacked."""
    folder = tmp_path_factory.mktemp("source")
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.tar.gz")
    with tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"alpa_mlir-{VERSION}"


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory) -> Path:
    """The wheel as it would be passed on."""
    folder = tmp_path_factory.mktemp("wheel")
    environment = os.environ | {
        # As in the Makefile, so that what `make build` has compiled is not compiled again.
        "CCACHE_BASEDIR": str(archive),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime",
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
    }
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q"]
    subprocess.run([*pip, "-w", str(folder), str(archive)], check=True, env=environment)
    (plain,) = folder.glob("*.whl")
    repair = [sys.executable, "-m", "auditwheel", "repair", "-w", str(folder / "dist"), str(plain)]
    done = subprocess.run(repair, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (repaired,) = (folder / "dist").glob("*.whl")
    return repaired


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(folder)
    (native,) = folder.glob("alpa_mlir/_native*.so")
    scripts = folder / f"alpa_mlir-{VERSION}.data" / "scripts"
    return {native.name: native} | {path.name: path for path in scripts.iterdir()}


@pytest.mark.slow
def test_what_the_wheel_holds(wheel):
    # Ubuntu 22.04, Debian 12 and Red Hat 9 have this C library, or a newer one.
    assert re.fullmatch(r"alpa_mlir-[\d.]+-cp3\d+-\w+-manylinux_2_34_x86_64\.whl", wheel.name)
    assert wheel.stat().st_size < 20 << 20
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        info = f"alpa_mlir-{VERSION}.dist-info"
        assert f"Version: {VERSION}\n" in content.read(f"{info}/METADATA").decode()
        notices = content.read(f"{info}/licenses/THIRD_PARTY_NOTICES.txt").decode()
    for other in ("LLVM Exceptions", "nanobind", "HiGHS", "zlib", "Henry Spencer"):
        assert other in notices
    for package in (ROOT / "python" / "alpa_mlir", ROOT / "runtime" / "alpa_runtime"):
        for path in package.rglob("*"):
            if path.is_file() and path.suffix not in (".so", ".pyc"):
                assert str(path.relative_to(package.parent)) in names
    assert {"alpa_mlir/py.typed", "alpa_runtime/py.typed", "alpa_mlir/_build.py"} <= names
    assert not any(name.endswith((".cpp", ".h", ".td", ".a")) for name in names)


@pytest.mark.slow
def test_the_runtime_has_a_wheel_of_its_own(archive, tmp_path):
    """It is of Python alone, and imports without the other package."""
    pip = [sys.executable, "-m", "pip"]
    made = [*pip, "wheel", "--no-build-isolation", "--no-deps", "-q", "-w", str(tmp_path)]
    subprocess.run([*made, str(archive / "runtime")], check=True)
    wheel = tmp_path / f"alpa_runtime-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "site")
    found = {p.relative_to(tmp_path / "site").parts[0] for p in (tmp_path / "site").rglob("*.py")}
    assert found == {"alpa_runtime"}
    path = [str(tmp_path / "site"), sysconfig.get_path("purelib")]
    code = f"import sys; sys.path += {path!r}; from alpa_runtime.parallel_step import load"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_the_binaries_need(binaries, archive):
    assert len(binaries) == 3
    assert {*binaries} > {"alpa-opt", "alpa-solve"}
    system = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
    for name, path in binaries.items():
        readelf = ["readelf", "--dynamic", "--wide", str(path)]
        text = subprocess.run(readelf, check=True, capture_output=True, text=True).stdout
        assert {*re.findall(r"\(NEEDED\).*\[(.*)\]", text)} <= system, name
        assert not re.search(r"RUNPATH|RPATH", text), name
        content = path.read_bytes()
        for folder in (ROOT, archive, LLVM, Path(sys.prefix)):
            assert str(folder).encode() not in content, f"{name} names {folder}"


@pytest.mark.slow
def test_the_wheel_works_without_llvm(wheel, tmp_path):
    """In an environment of its own; LLVM, the build and the sources cannot be reached."""
    venv, site = tmp_path / "venv", sysconfig.get_path("purelib")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index"]
    subprocess.run([*pip, "--no-deps", "-q", str(wheel)], check=True)
    # What the package needs comes from where the tests run; files named .pth there do not count.
    (mine,) = (venv / "lib").glob("python*/site-packages")
    (mine / "needed.pth").write_text(f"{site}\n")
    (mine / "highspy").symlink_to(Path(site) / "highspy")
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    keep = ("HOME", "TMPDIR", "LANG")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    environment |= {"PATH": f"{venv}/bin:/usr/bin:/bin", "ALPA_MLIR_CACHE": str(tmp_path / "cache")}
    sources = (ROOT / "python", ROOT / "runtime")
    hidden = [path for path in (LLVM, ROOT / "build", *sources) if path.is_dir()]
    mounts = "".join(f"mount -t tmpfs none {shlex.quote(str(path))} && " for path in hidden)
    hide = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mounts}exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*hide, "true"], check=False).returncode:
        hide = []  # No namespaces here: LLVM is still not on the path, and nothing is linked to it.

    def run(*command: str) -> str:
        done = subprocess.run(
            [*hide, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    assert "--alpa-search-stages" in run("alpa-opt", "--help")
    assert "cost: " in run("alpa-solve", "problem.json")
    assert json.loads(run("alpa-solve", "problem.json", "--method", "highs", "--json"))["cost"] == 1
    found = json.loads(run("alpa-mlir", "doctor", "--json"))
    assert found["usable"] is True
    states = {item["name"]: item for group in found["groups"].values() for item in group}
    assert states["alpa_mlir"]["facts"]["folder"] == str(mine / "alpa_mlir")
    for name in ("alpa-opt", "alpa-solve"):
        assert states[name]["state"] == "ok", states[name]
        assert states[name]["facts"]["path"] == str(venv / "bin" / name)
    assert states["highs"]["state"] == "ok", states["highs"]
    run("alpa-mlir", "plan", "step.py:entry", "--cluster", "cpu-test", "-q", "-o", "my_plan")
    run("alpa-mlir", "simulate", "my_plan")
    run("python", "step.py", str(venv))
