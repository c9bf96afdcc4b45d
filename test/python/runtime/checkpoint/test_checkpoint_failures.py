"""Checkpoints: whatever is wrong is refused, and what was saved before is still there."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import (
    ArgumentTypeError,
    CheckpointError,
    restore_checkpoint,
    save_checkpoint,
)
from alpa_runtime.checkpoint import folders, save_restore, shards, steps_in
from alpa_runtime.checkpoint.manifest import Manifest
from damage import damage_json, limited
from same_bits import check_same
from source_paths import PYTHONPATH

GOOD = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(4, np.int32)}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"a": GOOD["a"], "c": GOOD["b"]}, r"\['c'\]: the checkpoint has no such leaf"),
        ({"a": GOOD["a"]}, r"\['b'\]: the checkpoint has this leaf, the target has not"),
        ({**GOOD, "a": np.zeros((3, 3), np.float32)},
         r"\['a'\]: float32\[2,3\] in the checkpoint, float32\[3,3\] wanted"),
        ({**GOOD, "b": np.zeros(4, np.int16)}, r"\['b'\]: int32\[4\] .*int16\[4\] wanted"),
        ({**GOOD, "b": jax.random.key(0)}, r"\['b'\]: int32\[4\] .*threefry.* wanted"),
        ({**GOOD, "b": "text"}, r"\['b'\]: a str in the target"),
        ({**GOOD, "b": 1}, r"\['b'\]: int32\[4\] in the checkpoint, a Python int wanted"),
    ],
)  # fmt: skip
def test_another_model_is_refused(tmp_path, target, message):
    save_checkpoint(tmp_path, GOOD, step=1).wait()
    with pytest.raises(CheckpointError, match=message):
        restore_checkpoint(tmp_path, target)
    check_same(GOOD, restore_checkpoint(tmp_path))


def damage_truncate(folder):
    path = folder / "default" / "a" / "c" / "0" / "0"
    path.write_bytes(path.read_bytes()[:-5])
    return r"\['a'\]: the shard .*default/a/c/0/0 has 23 bytes, expected 28; fix: .*step="


def damage_remove(folder):
    (folder / "default" / "b" / "c" / "0").unlink()
    return r"\['b'\]: the shard .*default/b/c/0 is missing"


def damage_flip(folder):
    path = folder / "default" / "a" / "c" / "0" / "0"
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    return r"\['a'\]: .*Digest mismatch"


def damage_other(folder):
    other = {"a": GOOD["a"] + 1, "b": GOOD["b"]}
    save_checkpoint(folder.parent, other, step=9).wait()
    name = Path("default/a/c/0/0")
    shutil.copy(folder.parent / "9" / name, folder / name)
    return r"\['a'\]: the shard .* has the checksum \w{8}, expected \w{8}"


def damage_version(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    return r"manifest.json: version 99, expected 1"


def damage_manifest(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:100])
    return "manifest.json: not JSON"


def damage_field(folder):
    path = folder / "manifest.json"
    text = json.loads(path.read_text())
    text["leaves"][1]["folder"] = "../../b"
    path.write_text(json.dumps(text))
    return r"leaves\[1\].folder: got '../../b', expected the name of a folder"


def damage_metadata(folder):
    (folder / "default" / "b" / "zarr.json").unlink()
    return r"\['b'\]: NOT_FOUND"


@pytest.mark.parametrize(
    "damage",
    [
        damage_truncate,
        damage_remove,
        damage_flip,
        damage_other,
        damage_version,
        damage_manifest,
        damage_field,
        damage_metadata,
    ],
)
def test_damaged_ones_are_refused(tmp_path, damage):
    save_checkpoint(tmp_path, GOOD, step=1).wait()
    save_checkpoint(tmp_path, GOOD, step=5).wait()
    message = damage(tmp_path / "5")
    with pytest.raises(CheckpointError, match=message):
        restore_checkpoint(tmp_path, GOOD, step=5)
    check_same(GOOD, restore_checkpoint(tmp_path, GOOD, step=1))


def test_a_folder_of_another_step(tmp_path):
    saved = save_checkpoint(tmp_path, GOOD, step=10).wait()
    shutil.copytree(saved, tmp_path / "20")
    with pytest.raises(
        CheckpointError, match="the checkpoint of step 10, in the folder of step 20"
    ):
        restore_checkpoint(tmp_path, step=20)
    check_same(GOOD, restore_checkpoint(tmp_path, GOOD, step=10))


@pytest.mark.parametrize("generator", ["lottery", "rbg"])
def test_keys_of_another_generator(tmp_path, generator):
    path = save_checkpoint(tmp_path, {"key": jax.random.key(3)}, step=1).wait() / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["leaves"][0]["key_impl"] = generator
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=f"no keys of '{generator}'"):
        restore_checkpoint(tmp_path)


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_damaged_ones(tmp_path, count):
    """Damage anywhere is refused in one error, or reads back what was saved or asked for."""
    saved = save_checkpoint(tmp_path / "good", GOOD, step=1).wait()
    rng = random.Random(count)
    bad = []
    for run in range(count):
        folder = tmp_path / "bad"
        shutil.copytree(saved, folder / "1")
        files = sorted(path for path in (folder / "1").rglob("*") if path.is_file())
        path = rng.choice([folder / "1" / "manifest.json"] * 3 + files)
        data = path.read_bytes()
        if path.suffix == ".json" and rng.random() < 0.9:
            path.write_bytes(damage_json(rng, data.decode()))
        elif data:
            at = rng.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :])
        for target in (GOOD, None):
            try:
                with limited(10):
                    found = restore_checkpoint(folder, target)
                if target is not None:
                    check_same(GOOD, found)
            except CheckpointError as error:
                bad += [f"{run}: {error!s:.200}"] * ("\n" in str(error))
            except Exception as error:
                bad.append(f"{run} {path.name}: {type(error).__name__}: {error!s:.200}")
        shutil.rmtree(folder)
    assert bad == []


def test_wrong_folders_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    for call in (lambda: save_checkpoint(tmp_path, GOOD, step=1),
                 lambda: restore_checkpoint(tmp_path)):  # fmt: skip
        with pytest.raises(CheckpointError, match=r"the folder holds 'thesis.tex' and no checkp"):
            call()
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(CheckpointError, match="a file, expected a folder"):
        save_checkpoint(tmp_path / "thesis.tex", GOOD, step=1)
    with pytest.raises(CheckpointError, match="no checkpoint; fix: give the folder"):
        restore_checkpoint(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    save_checkpoint(tmp_path / "run", GOOD, step=1).wait()
    with pytest.raises(CheckpointError, match="there is a checkpoint of step 1"):
        save_checkpoint(tmp_path / "run", {"other": 1}, step=1)
    check_same(GOOD, restore_checkpoint(tmp_path / "run"))


def test_what_cannot_be_saved_is_named(tmp_path):
    given_away = jnp.ones(3)
    given_away.delete()
    for leaf, message in (
        ("text", r"\['x'\]\[0\]: a str, expected an array"),
        (np.array([None]), "expected an array"),
        (np.zeros(2, "M8[s]"), r"\['x'\]\[0\]: a ndarray of datetime64\[s\], expected an array"),
        (np.zeros(2, [("a", "f4")]), "expected an array"),
        (np.zeros(2, np.longdouble), "of float128, expected an array"),
        (1 << 70, "more than 64 bits"),
        (given_away, "donated to an earlier step"),
    ):
        with pytest.raises(CheckpointError, match=message):
            save_checkpoint(tmp_path, {"x": [leaf]}, step=1)
    with pytest.raises(CheckpointError, match="step -1"):
        save_checkpoint(tmp_path, {}, step=-1)
    for number in (True, 1.5, "9", np.ones(2, int)):
        with pytest.raises(
            ArgumentTypeError, match=r"save_checkpoint: step.* is an? .*; fix: give a wh"
        ):
            save_checkpoint(tmp_path, {}, step=number)
    with pytest.raises(ArgumentTypeError, match=r"keep=1.5 is a float; fix: give a whole number"):
        save_checkpoint(tmp_path, {}, step=1, keep=1.5)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_was_saved_meanwhile(tmp_path, monkeypatch):
    commit = folders.Writing.commit

    def late(writing, *args):
        monkeypatch.setattr(folders.Writing, "commit", commit)
        save_checkpoint(tmp_path, [1], step=1).wait()
        return commit(writing, *args)

    monkeypatch.setattr(folders.Writing, "commit", late)
    saving = save_checkpoint(tmp_path, [2], step=1)
    with pytest.raises(CheckpointError, match="there is a checkpoint of step 1; fix: save another"):
        saving.wait()
    assert restore_checkpoint(tmp_path) == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
    (tmp_path / "1" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"step 1: 1/manifest.json is missing; fix: give the"):
        restore_checkpoint(tmp_path, step=1)


def test_no_room_is_found_before_anything_is_written(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, GOOD, step=1).wait()
    files = [path for path in (tmp_path / "1").rglob("*") if path.is_file()]
    disk = SimpleNamespace(f_bavail=len(files) - 1, f_frsize=4096)  # Each takes a block.
    with monkeypatch.context() as patch:
        patch.setattr(folders.os, "statvfs", lambda _: disk)
        said = rf"takes \d+ bytes of the disk, {disk.f_bavail * 4096} are free; fix: make room"
        with pytest.raises(CheckpointError, match=said):
            save_checkpoint(tmp_path, GOOD, step=2, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["1"]


def test_the_room_foreseen_is_that_taken(tmp_path):
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    state = {f"w{i}": np.full(10 * i, 1.0, np.float32) for i in range(20)}
    state |= {"of": {"cut": jax.device_put(np.ones((64, 64), np.float32), sharding), "n": 3}}
    save_checkpoint(tmp_path, state, step=1).wait()
    manifest = Manifest.load(tmp_path / "1")
    leaves = tuple(dataclasses.replace(leaf, crc32c=()) for leaf in manifest.leaves)
    manifest = dataclasses.replace(manifest, leaves=leaves)
    there = list((tmp_path / "1").rglob("*"))
    for block in (1, 4096):
        found = folders.bytes_on_disk(manifest, folders._descriptions(manifest), block)
        taken = sum(-(-path.stat().st_size // block) * block for path in there if path.is_file())
        num_folders = 1 + sum(path.is_dir() for path in there)
        entries = sum(32 + len(path.name) for path in there)
        most = max(entries, num_folders * block)
        assert taken + num_folders * block <= found <= taken + most + 1000


def test_file_systems_without_locks(tmp_path, monkeypatch):
    """Are saved to, and what others left there stays, as they may still be writing."""
    left = tmp_path / ".saving-1-ab"
    left.mkdir()
    (left / "lock").touch()

    def refuse(number):
        def flock(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(folders.fcntl, "flock", flock)

    refuse(errno.EOPNOTSUPP)
    save_checkpoint(tmp_path, GOOD, step=1).wait()
    check_same(GOOD, restore_checkpoint(tmp_path))
    refuse(errno.EIO)
    with pytest.raises(CheckpointError, match="cannot write: Input/output error"):
        save_checkpoint(tmp_path, GOOD, step=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".saving-1-ab", "1"]


HOLDS = """
import sys, time
from pathlib import Path
from alpa_runtime.checkpoint import folders

with folders.held_by_run(Path(sys.argv[1])):
    print("now", flush=True)
    time.sleep(600)
"""


def test_a_folder_belongs_to_one_run(tmp_path):
    """Until its process ends, however it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    said = (
        rf"{tmp_path}: another run writes its checkpoints here: process {process.pid} on "
        rf"{socket.gethostname()}, since \S+ \S+ UTC; fix: end it or give another folder; "
    )
    for _ in range(2):
        with pytest.raises(CheckpointError, match=said), folders.held_by_run(tmp_path):
            pass
        with pytest.raises(CheckpointError, match=said):
            folders.check_no_run(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [p.name for p in tmp_path.iterdir()] == [".running"]
    folders.check_no_run(tmp_path)
    folders.check_root(tmp_path)
    with folders.held_by_run(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / ".running").read_text()
        with pytest.raises(CheckpointError, match="another run"):
            folders.check_no_run(tmp_path)
        (tmp_path / ".running").unlink()  # By somebody who is sure.
        with folders.held_by_run(tmp_path):
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOLCK, errno.EIO])
def test_runs_on_file_systems_without_locks(tmp_path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders.fcntl, "flock", flock)
    with folders.held_by_run(tmp_path), folders.held_by_run(tmp_path):
        folders.check_no_run(tmp_path)
    assert (tmp_path / "x").write_text("") == 0
    with folders.held_by_run(tmp_path / "x" / "no folder"):
        pass


def test_what_is_left_without_a_lock_is_deleted(tmp_path):
    """As where somebody wrote on while the folder was deleted."""
    (tmp_path / ".saving-1-ab" / "arrays").mkdir(parents=True)
    save_checkpoint(tmp_path, GOOD, step=2).wait()
    assert [p.name for p in tmp_path.iterdir()] == ["2"]


def test_a_failed_save_waits_for_all_that_write():
    waited = []

    class Reply:
        def __init__(self, name):
            self.name = name

        def result(self):
            waited.append(self.name)
            if self.name.startswith("full"):
                raise CheckpointError(self.name)
            return self.name

    with pytest.raises(CheckpointError, match="full 1"):
        shards._results([Reply("a"), Reply("full 1"), Reply("b"), Reply("full 2")])
    assert waited == ["a", "full 1", "b", "full 2"]
    assert shards._results([Reply("a"), Reply("b")]) == ["a", "b"]


def test_errors_of_writing_leave_nothing(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, GOOD, step=1).wait()

    def full(*_):
        raise OSError(28, "No space left on device", "somewhere")

    with monkeypatch.context() as patch:
        patch.setattr(folders.Writing, "_describe", full)
        with pytest.raises(CheckpointError, match="somewhere: cannot write: No space left"):
            save_checkpoint(tmp_path, GOOD, step=2, keep=1)
    for function in ("write_shards", "check_written"):
        with monkeypatch.context() as patch:
            patch.setattr(save_restore, function, full)
            saving = save_checkpoint(tmp_path, GOOD, step=2, keep=1)
            with pytest.raises(CheckpointError, match="No space left"):
                saving.wait()
    with monkeypatch.context() as patch:
        patch.setattr(save_restore, "write_shards", lambda *_: {})
        with pytest.raises(CheckpointError, match=r"\['a'\]: chunk 0 of 1 was written by nobody"):
            save_checkpoint(tmp_path, GOOD, step=2).wait()
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
    check_same(GOOD, restore_checkpoint(tmp_path))


KILLED = """
import sys, time
import numpy as np
from alpa_runtime.checkpoint import folders, save_checkpoint, save_restore

save_checkpoint(sys.argv[1], {"w": np.full((64, 64), 1.0, np.float32)}, step=1).wait()
where, target = sys.argv[2].split(".")

def stop(*args):
    print("now", flush=True)
    time.sleep(600)

setattr({"save": save_restore, "os": folders.os}[where], target, stop)
save_checkpoint(sys.argv[1], {"w": np.full((64, 64), 2.0, np.float32)}, step=2, keep=1)
"""


@pytest.mark.parametrize("where", ["save.check_written", "os.rename"])
def test_killed_while_saving(tmp_path, where):
    """A process that is killed leaves the old checkpoint, and its rest is cleared away."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), where],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    # Another process that saves there leaves alone what is being written.
    save_checkpoint(tmp_path, [0], step=0).wait()
    left = [p for p in tmp_path.iterdir() if p.name.startswith(".saving-2-")]
    assert len(left) == 1
    assert (left[0] / "default" / "w" / "c" / "0" / "0").stat().st_size == 64 * 64 * 4 + 4
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert steps_in(tmp_path) == [0, 1]
    np.testing.assert_array_equal(restore_checkpoint(tmp_path)["w"], np.ones((64, 64)))
    save_checkpoint(tmp_path, [3], step=3).wait()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "3"]


SAVES = """
import sys
import numpy as np
from alpa_runtime.checkpoint import latest_checkpoint, save_checkpoint

step = (latest_checkpoint(sys.argv[1]) or 0) + 1
while True:
    state = {str(i): np.full((100, 100 + i), step, np.int32) for i in range(20)}
    save_checkpoint(sys.argv[1], state, step=step, keep=2).wait()
    print(step, flush=True)
    step += 1
"""


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path):
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    rng = np.random.default_rng(0)
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES, str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        last = int(process.stdout.readline())
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        last = int([str(last), *process.stdout.read().split()][-1])
        process.wait()
        process.stdout.close()
        present = steps_in(tmp_path)
        assert present[-1] in (last, last + 1)
        # One more where it was killed between the rename and the deletion.
        assert min(2, last) <= len(present) <= 3
        for step in present:
            for x in restore_checkpoint(tmp_path, step=step).values():
                assert (x == step).all()


def test_without_tensorstore(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(CheckpointError, match=r"pip install 'alpa-mlir\[checkpoint\]'"):
        save_checkpoint(tmp_path, GOOD, step=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
def test_a_full_disk(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    try:
        save_checkpoint(tmp_path / "run", GOOD, step=1).wait()
        with pytest.raises(CheckpointError, match=r"bytes, .* are free"):
            save_checkpoint(tmp_path / "run", np.ones((1 << 20,)), step=2)
        # What fits by its own size, but not with its files' overhead or what others write.
        (tmp_path / "other").write_bytes(b"x" * 600_000)
        big = {f"w{i}": np.ones((3000,)) for i in range(14)}
        with pytest.raises(CheckpointError, match="No space left"):
            save_checkpoint(tmp_path / "run", big, step=2).wait()
        assert [p.name for p in (tmp_path / "run").iterdir()] == ["1"]
        check_same(GOOD, restore_checkpoint(tmp_path / "run"))
    finally:
        subprocess.run(["umount", tmp_path], check=True)
