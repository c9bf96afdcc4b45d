"""Shared set-up: the zoo is importable as `zoo`, the packages from the source tree, benchmarks by
their names, JAX offers eight virtual CPU devices, and compiles the same program once."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "32")
# Most of the time of the tests is LLVM's; XLA's own passes run as ever.
for flag in ("--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0"):
    flags = os.environ.get("XLA_FLAGS", "")
    if flag.split("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()

# Plans of one run of the tests are not those of an earlier run.
_KEPT = tempfile.mkdtemp(prefix="alpa-mlir-tests-")
os.environ["ALPA_MLIR_CACHE"] = _KEPT

pytest.register_assert_rewrite("alpa_rows")
_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / folder) for folder in ("python", "runtime", "test", "benchmark")]
# Helpers are modules of test/python/support; some tests take cases from others.
_folders = {path.parent for path in Path(__file__).parent.rglob("*.py")}
sys.path += sorted(str(path) for path in _folders if not (path / "__init__.py").exists())


def pytest_configure():
    """JAX compiles a program of a process once: many tests compare with the same `jax.jit`."""
    import jax

    jax.config.update("jax_compilation_cache_dir", os.path.join(_KEPT, "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    # Options of compilation, by which plans are kept, would name the folder.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test with `sample(n)`, n cases are run, spread over all of them; with `sweep(n)`, as
    many more as it takes to meet every value of every parameter. Others are slow."""
    families = {}
    for item in items:
        mark = item.get_closest_marker("sweep") or item.get_closest_marker("sample")
        if mark and not item.get_closest_marker("slow"):
            families.setdefault(item.nodeid.split("[")[0], (mark, []))[1].append(item)
    golden = (5**0.5 - 1) / 2
    for mark, cases in families.values():
        (count,) = mark.args
        spread = sorted(range(len(cases)), key=lambda case: case * golden % 1)
        if mark.name == "sample":
            for case in spread[count:]:
                cases[case].add_marker(pytest.mark.slow)
            continue
        met, others = set(), []
        for item in (cases[case] for case in spread):
            values = {
                (name, value if isinstance(value, str | int) else id(value))
                for name, value in item.callspec.params.items()
            }
            if values <= met:
                others.append(item)
            met |= values
        for item in others[max(0, count - (len(cases) - len(others))) :]:
            item.add_marker(pytest.mark.slow)


def pytest_unconfigure():
    shutil.rmtree(_KEPT, ignore_errors=True)


@pytest.fixture
def newer_checkpoint():
    """JAX's newer way of rematerializing, from 0.11 on."""
    import jax

    if not hasattr(jax.config, "jax_remat3"):
        pytest.skip("this JAX has one jax.checkpoint only")
    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", True)
    yield
    jax.config.update("jax_remat3", before)


@pytest.fixture
def kernels_to_the_end(monkeypatch):
    """Plans keep the kernels until each device has its part, which plain ops then compute."""
    from alpa_mlir.methods.method import Method

    finish = Method.finish_passes
    monkeypatch.setattr(
        Method, "finish_passes", lambda *given: finish(*given) + ",alpa-expand-kernels"
    )
    monkeypatch.setattr("alpa_mlir.stages._gpus_elsewhere", lambda cluster: "9.0")
