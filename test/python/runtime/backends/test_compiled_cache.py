"""Programs that were compiled before are found again, and nothing else is taken for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import handmade
import jax
import numpy as np
import pytest
from alpa_runtime import cache as program_cache
from alpa_runtime.backends import xla
from alpa_runtime.backends.interface import Job
from alpa_runtime.backends.xla import XlaBackend
from alpa_runtime.cache import CompiledCache
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from source_paths import PYTHONPATH, ROOT, SUPPORT

VECTOR = TensorSpec((8,), "float32", (("x",),))


def mesh_of(*devices: int, axes=("x",)):
    return jax.sharding.Mesh(np.array([jax.devices()[d] for d in devices]), axes)


def job(scale: float = 2.0, mesh: int = 0) -> Job:
    held = f"tensor<8xf32> {{{xla.sharding_text(VECTOR)}}}"
    text = f"""module {{
  {xla.mesh_text(MeshInfo((2,), ("x",), (0, 1)))}
  func.func public @main(%a: {held}) -> ({held}) {{
    %s = stablehlo.constant dense<{scale}> : tensor<8xf32>
    %0 = stablehlo.multiply %a, %s : tensor<8xf32>
    return %0 : tensor<8xf32>
  }}
}}"""
    return Job(f"times {scale}", text, mesh, (VECTOR,), (VECTOR,))


def run(program, mesh):
    value = np.arange(8, dtype=np.float32)
    (result,) = program.call([jax.device_put(value, xla.named_sharding(mesh, VECTOR))])
    assert result.sharding.device_set == set(mesh.devices.flat)
    return np.asarray(result)


@pytest.fixture
def compiled(monkeypatch):
    """The texts that XLA really compiles."""
    texts, real = [], xla.compile_text

    def compile_text(text, mesh, **options):
        texts.append(text)
        return real(text, mesh, **options)

    monkeypatch.setattr(xla, "compile_text", compile_text)
    return texts


@pytest.fixture
def cache(tmp_path):
    return CompiledCache(tmp_path / "compiled")


def build(cache, scale=2.0, devices=(0, 1)):
    mesh = mesh_of(*devices)
    (program,) = XlaBackend(cache).build([job(scale)], [mesh])
    return run(program, mesh)


def test_compiled_once(cache, compiled):
    first = build(cache)
    second = build(cache, devices=(5, 3))
    np.testing.assert_array_equal(first, 2 * np.arange(8))
    np.testing.assert_array_equal(second, first)
    assert len(compiled) == 1
    np.testing.assert_array_equal(build(cache, 3.0), 3 * np.arange(8))
    assert len(compiled) == 2
    assert len(list(cache.folder.iterdir())) == 2


def test_one_text_on_two_meshes(cache, compiled):
    meshes = [mesh_of(0, 1), mesh_of(2, 3)]
    for _ in range(2):
        programs = XlaBackend(cache).build([job(2.0, 0), job(2.0, 1), job(2.0, 0)], meshes)
        for program, mesh in zip(programs, [*meshes, meshes[0]], strict=True):
            np.testing.assert_array_equal(run(program, mesh), 2 * np.arange(8))
    assert len(compiled) == 1


def only_file(cache) -> Path:
    (path,) = cache.folder.iterdir()
    return path


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def empty(path):
    path.write_bytes(b"")


def other_form(path):
    path.write_bytes(b"[1, 2]\n" + path.read_bytes())


DAMAGES = [flip, cut, empty, other_form]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_made_again(cache, compiled, damage):
    expected = build(cache)
    damage(only_file(cache))
    with pytest.warns(UserWarning, match="compiled again: it is not what was written"):
        np.testing.assert_array_equal(build(cache), expected)
    assert len(compiled) == 2
    np.testing.assert_array_equal(build(cache), expected)
    assert len(compiled) == 2


def test_program_of_another_text_is_not_taken(cache, compiled):
    build(cache, 3.0)
    other = only_file(cache)
    mesh = mesh_of(0, 1)
    shutil.copy(other, cache.path(xla.program_parts(job(2.0).text, mesh)))
    with pytest.warns(UserWarning, match="compiled again"):
        np.testing.assert_array_equal(build(cache, 2.0), 2 * np.arange(8))


def test_bytes_that_xla_cannot_load(cache, compiled):
    mesh = mesh_of(0, 1)
    cache.put(xla.program_parts(job().text, mesh), b"of a later version, say")
    with pytest.warns(UserWarning, match="XLA cannot load it"):
        np.testing.assert_array_equal(build(cache), 2 * np.arange(8))
    build(cache)
    assert len(compiled) == 1


def test_files_that_others_can_write(cache, compiled, monkeypatch):
    build(cache)
    for mode, who in ((0o646, "every user"), (0o664, "group")):
        only_file(cache).chmod(mode)
        with pytest.warns(UserWarning, match=f"{who}.* may write to it.*chmod go-w"):
            build(cache)
    monkeypatch.setattr(program_cache.os, "getuid", lambda: os.stat(cache.folder).st_uid + 1)
    if os.stat(cache.folder).st_uid != 0:  # What root wrote is trusted.
        with pytest.warns(UserWarning, match="it belongs to user"):
            build(cache)
    assert len(compiled) >= 2


def test_key_holds_what_a_program_depends_on(monkeypatch):
    mesh = mesh_of(0, 1)
    text = job().text
    base = xla.program_parts(text, mesh)
    assert xla.program_parts(text, mesh_of(6, 2)) == base
    for other in (
        xla.program_parts(job(3.0).text, mesh),
        xla.program_parts(text, mesh_of(0, 1, 2)),
        xla.program_parts(text, mesh_of(0, 1, axes=("y",))),
        xla.program_parts(text, mesh, per_device=True),
    ):
        assert other != base
    flags = os.environ.get("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_dump_to=/nowhere")
    assert xla.program_parts(text, mesh) == base
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_cpu_enable_fast_math=true")
    assert xla.program_parts(text, mesh) != base
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setenv("NPROC", "3")
    assert xla.program_parts(text, mesh) != base
    monkeypatch.undo()
    monkeypatch.setattr(xla, "host_cpu", lambda: "flags: mmx")
    assert xla.program_parts(text, mesh) != base
    monkeypatch.setattr(xla, "host_cpu", lambda: None)
    assert xla.program_parts(text, mesh) is None  # Nothing is kept for a machine unknown.


def test_processors_are_told_apart_by_their_instructions(monkeypatch):
    def host_of(text):
        monkeypatch.setattr(xla.Path, "read_text", lambda self: text)
        xla.host_cpu.cache_clear()
        return xla.host_cpu()

    try:
        one = "model name\t: A\ncpu MHz\t: 2000.1\nflags\t: avx sse\n\nprocessor\t: 1\n"
        assert host_of(one) == host_of(one.replace("2000.1", "900").replace("avx sse", "sse avx"))
        assert host_of(one) != host_of(one.replace("avx", "avx2"))
        assert host_of(one) != host_of(one.replace("name\t: A", "name\t: B"))
        assert host_of("CPU part\t: 0xd0c\nFeatures\t: fp asimd\n") is not None
        assert host_of("something else\n") is None
    finally:
        monkeypatch.undo()
        xla.host_cpu.cache_clear()


def test_callbacks_are_not_kept(cache):
    text = job().text.replace("@main", "@main /* xla_ffi_python_cpu_callback */")
    assert xla.program_parts(text, mesh_of(0, 1)) is None


def test_the_least_recently_used_goes(tmp_path):
    cache = CompiledCache(tmp_path, most_bytes=2500)
    for i in range(3):
        cache.put({"text": str(i)}, bytes(800))
        os.utime(cache.path({"text": str(i)}), (i, i))
    assert cache.get({"text": "0"}) is None
    assert cache.get({"text": "1"}) == bytes(800)  # Used now, so the other one goes.
    cache.put({"text": "3"}, bytes(800))
    assert [cache.get({"text": str(i)}) is None for i in range(4)] == [True, False, True, False]
    cache.put({"text": "4"}, bytes(9000))  # The newest stays whatever its size.
    assert [path.name for path in tmp_path.iterdir()] == [cache.path({"text": "4"}).name]


def test_remains_of_a_killed_process_go(tmp_path):
    cache = CompiledCache(tmp_path)
    old, new = tmp_path / ".new-old", tmp_path / ".new-new"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.put({"text": "0"}, b"program")
    assert not old.exists()
    assert new.exists()


def test_folder_that_cannot_be_written(tmp_path, compiled):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="programs cannot be kept"):
        result = build(CompiledCache(tmp_path / "file" / "compiled"))
    np.testing.assert_array_equal(result, 2 * np.arange(8))


def test_plans_load_from_the_cache(tmp_path, compiled):
    plan = handmade.as_plan(*handmade.two_stages(2, first=(1, 2), second=(2, 1)))
    state, batch = handmade.arguments(2)
    arguments = [state["w0"], state["w1"], batch["x"], batch["y"]]
    expected = load(plan, cache=False)(arguments)
    some = len(compiled)
    assert some
    load(plan, cache=tmp_path)
    assert len(compiled) == 2 * some
    for found, wanted in zip(load(plan, cache=tmp_path)(arguments), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert len(compiled) == 2 * some


OTHER_PROCESS = """
import sys
sys.path[:0] = sys.argv[2:]
import test_compiled_cache as t
from alpa_runtime.cache import CompiledCache
t.xla.compile_text = None  # Compiling would fail.
print(t.build(CompiledCache(t.Path(sys.argv[1]))).tolist())
"""


def test_another_process_loads_it(cache):
    """Also one with fewer devices."""
    expected = build(cache)
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=2")
    folders = [*PYTHONPATH.split(os.pathsep), ROOT / "test", Path(__file__).parent, SUPPORT]
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, cache.folder, *map(str, folders)],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(expected.tolist())
