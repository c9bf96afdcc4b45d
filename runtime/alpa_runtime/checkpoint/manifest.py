"""What a checkpoint says of itself, `manifest.json` and the chunks of its arrays, and its folder:
one a step, which is there as a whole or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import operator
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, gcd, prod
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import jax.numpy

from alpa_runtime.errors import CheckpointError, DamagedCheckpointError, PlanFormatError
from alpa_runtime.plan.reshard import Box
from alpa_runtime.plan.text import Node, pretty

MAX_CHUNK_BYTES = 64 << 20


def chunk_shape(
    shape: Sequence[int], boxes: Iterable[Box], itemsize: int, limit: int = MAX_CHUNK_BYTES
) -> tuple[int, ...]:
    """The chunks of a regular grid such that every box is made of whole ones.

    Chunks at an array's end may reach beyond it, as in Zarr.

    Args:
        shape: of the array.
        boxes: the parts that processes hold.
        itemsize: bytes of an element.
        limit: bytes of a chunk, as far as the grid allows it: whoever wants a part of a chunk
            has to read all of it.

    Returns:
        The size of a chunk in each dimension, at least 1.

    Example:
        >>> chunk_shape((8, 6), [((0, 4), (0, 6)), ((4, 8), (0, 3)), ((4, 8), (3, 6))], 4)
        (4, 3)
        >>> chunk_shape((1001, 8), [((0, 1001), (0, 8))], 4, limit=16000)
        (501, 8)
    """
    boxes = list(boxes)
    chunk: list[int] = []
    for dim, size in enumerate(shape):
        edges = {edge for box in boxes for edge in box[dim]} - {size}
        chunk.append(gcd(size, *edges) if any(edges) else size)
    for dim, size in enumerate(shape):
        parts = ceil(prod(chunk) * itemsize / limit)
        if parts <= 1:
            break
        wanted = max(1, ceil(chunk[dim] / parts))
        if chunk[dim] < size:  # Parts of it belong to several processes: only whole ones fit.
            divisor = _divisor(chunk[dim], wanted)
            wanted = divisor if 2 * divisor > wanted else chunk[dim]
        chunk[dim] = wanted
    return tuple(max(1, size) for size in chunk)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is not above `most`."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return max(d for s in small for d in (s, number // s) if d <= most)


def grid_shape(shape: Sequence[int], chunk: Sequence[int]) -> tuple[int, ...]:
    """How many chunks there are in each dimension."""
    return tuple(ceil(size / part) for size, part in zip(shape, chunk, strict=True))


def chunks_of(box: Box, chunk: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The chunks that a box touches, row-major.

    Example:
        >>> list(chunks_of(((0, 4), (3, 6)), (2, 3)))
        [(0, 1), (1, 1)]
    """
    return itertools.product(
        *(
            range(begin // part, ceil(end / part))
            for (begin, end), part in zip(box, chunk, strict=True)
        )
    )


def number_of(chunk: Sequence[int], grid: Sequence[int]) -> int:
    """The place of a chunk in row-major order."""
    number = 0
    for index, count in zip(chunk, grid, strict=True):
        number = number * count + index
    return number


def chunk_file(index: Sequence[int]) -> str:
    """The chunk's file beside `zarr.json`.

    Example:
        >>> chunk_file((0, 1)), chunk_file(())
        ('c/0/1', 'c')
    """
    return "/".join(("c", *map(str, index)))


_jnp: Any = jax.numpy

FORMAT = "alpa_mlir.checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
ARRAYS = "default"  # The name under which orbax's CheckpointManager looks for them.
CRC_BYTES = 4
NUMBERS = ("bool", "int", "float", "complex")
# Types of Zarr arrays that tensorstore reads and writes; others are stored as their bytes.
_STORED = re.compile(
    r"bool|u?int(8|16|32|64)|int[24]|bfloat16|float(16|32|64)|complex(64|128)"
    r"|float8_(e4m3fn|e4m3fnuz|e4m3b11fnuz|e5m2|e5m2fnuz|e3m4|e8m0fnu)|float4_e2m1fn"
)
_NAME = r"(?!\.)[A-Za-z0-9_.~@=+-]{1,180}"
_FOLDER = re.compile(f"{_NAME}(/{_NAME}){{0,8}}")


@dataclass(frozen=True)
class LeafRecord:
    """An array of a checkpoint.

    Attributes:
        name: its place in the tree that was saved, as code: `['params']['w']`.
        keys: the same for orbax: (text, is a position) for each container on the way.
        folder: where its chunks lie, below the folder of arrays.
        shape, dtype: of the stored array; that of the data of a typed PRNG key.
        chunk: shape of a chunk.
        key_impl: generator of a typed PRNG key.
        number: the type of a Python number, one of `NUMBERS`.
        crc32c: checksum of every chunk, row-major; empty as long as nothing is written.
    """

    name: str
    keys: tuple[tuple[str, bool], ...]
    folder: str
    shape: tuple[int, ...]
    dtype: str
    chunk: tuple[int, ...]
    key_impl: str | None = None
    number: str | None = None
    crc32c: tuple[str, ...] = field(default=(), repr=False)

    @property
    def stored_as(self) -> str:
        """Zarr's type of the elements."""
        return self.dtype if _STORED.fullmatch(self.dtype) else "uint8"

    @property
    def grid(self) -> tuple[int, ...]:
        return grid_shape(self.shape, self.chunk)

    @property
    def num_chunks(self) -> int:
        return prod(self.grid)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of each chunk's file: its elements, and their checksum."""
        return prod(self.chunk) * _jnp.dtype(self.dtype).itemsize + CRC_BYTES

    def as_text(self) -> str:
        """`float32[8,64]`, with the generator for keys, `int` for Python numbers."""
        if self.number is not None:
            return f"a Python {self.number}"
        kind = f"key<{self.key_impl}> data " if self.key_impl else ""
        return f"{kind}{self.dtype}[{','.join(map(str, self.shape))}]"

    def zarr_json(self) -> str:
        """The array's metadata: Zarr 3, plain bytes and a checksum for each chunk."""
        is_one_byte = _jnp.dtype(self.dtype).itemsize == 1
        endian = {} if is_one_byte else {"configuration": {"endian": "little"}}
        fill: Any = 0
        if self.stored_as == "bool":
            fill = False
        elif self.stored_as.startswith("complex"):
            fill = [0.0, 0.0]
        elif "float" in self.stored_as:
            fill = 0.0
        return json.dumps(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": self.shape,
                "data_type": self.stored_as,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self.chunk}},
                "chunk_key_encoding": {"name": "default"},
                "fill_value": fill,
                "codecs": [{"name": "bytes", **endian}, {"name": "crc32c"}],
            }
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "keys": [[text, position] for text, position in self.keys],
            "folder": self.folder,
            "shape": self.shape,
            "dtype": self.dtype,
            "chunk": self.chunk,
            "key_impl": self.key_impl,
            "number": self.number,
            "crc32c": " ".join(self.crc32c),
        }

    @classmethod
    def read(cls, node: Node) -> LeafRecord:
        keys: list[tuple[str, bool]] = []
        for pair in node.get("keys").items():
            if len(pair.list()) != 2:
                raise pair.error(f"got {pair.value!r}", "a text and whether it is a position")
            keys.append((pair.item(0).string(), pair.item(1).boolean()))
        folder, number = node.get("folder"), node.get("number")
        if not _FOLDER.fullmatch(folder.string()):
            raise folder.error(f"got {folder.value!r}", "the name of a folder")
        dtype = node.get("dtype")
        try:
            _jnp.dtype(dtype.string())
        except TypeError:
            raise dtype.error(f"got {dtype.value!r}", "NumPy's name of a type") from None
        record = cls(
            node.get("name").string(),
            tuple(keys),
            folder.string(),
            node.get("shape").dims(),
            dtype.string(),
            node.get("chunk").dims(),
            node.get("key_impl").optional_string(),
            None if number.value is None else number.choice(*NUMBERS),
            tuple(node.get("crc32c").string().split()),
        )
        if len(record.chunk) != len(record.shape) or 0 in record.chunk:
            raise node.get("chunk").error(f"got {list(record.chunk)}", "a size for each dimension")
        if len(record.crc32c) != record.num_chunks:
            found, wanted = len(record.crc32c), record.num_chunks
            raise node.get("crc32c").error(f"got {found} checksums", f"one of each of {wanted}")
        return record


@dataclass(frozen=True)
class Manifest:
    """All arrays of a checkpoint.

    Attributes:
        step: the number under which it was saved.
        tree: containers of the saved tree, as `alpa_runtime.trees` writes them.
        empty: containers without leaves, which orbax wants to know: keys, and orbax's word.
        leaves: in the order of the tree.
    """

    step: int
    tree: Any
    empty: tuple[tuple[tuple[tuple[str, bool], ...], str], ...]
    leaves: tuple[LeafRecord, ...]

    def to_json(self) -> str:
        return (
            pretty(
                {
                    "format": FORMAT,
                    "version": VERSION,
                    "step": self.step,
                    "tree": self.tree,
                    "leaves": [leaf.to_json() for leaf in self.leaves],
                }
            )
            + "\n"
        )

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of a checkpoint.

        Raises:
            DamagedCheckpointError: it is malformed.
            CheckpointError: there is none, or one of another version.
        """
        path = folder / MANIFEST
        try:
            root = Node(json.loads(path.read_text(encoding="utf-8")), str(path))
            root.get("format").choice(FORMAT)
            version = root.get("version").integer()
            if version != VERSION:
                raise CheckpointError(
                    f"version {version}, expected {VERSION}",
                    where=str(path),
                    fix="read it with the version of alpa_mlir that wrote it",
                )
            leaves = tuple(LeafRecord.read(item) for item in root.get("leaves").items())
            return cls(root.get("step").integer(), root.get("tree").value, (), leaves)
        except PlanFormatError as error:
            raise DamagedCheckpointError(error.what, where=error.where, fix=OLDER) from None
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise DamagedCheckpointError("not JSON", where=str(path), fix=OLDER) from None
        except OSError as error:
            raise CheckpointError(
                f"cannot read the checkpoint: {error.strerror}",
                where=str(path),
                fix="give a folder that save_checkpoint wrote",
            ) from None

    def with_crcs(self, crcs: Mapping[int, Mapping[int, str]]) -> Manifest:
        """The same, with the checksums that writers report by leaf and chunk.

        Raises:
            CheckpointError: a chunk was written by nobody.
        """
        leaves: list[LeafRecord] = []
        for number, leaf in enumerate(self.leaves):
            found = crcs.get(number, {})
            missing = [i for i in range(leaf.num_chunks) if i not in found]
            if missing:
                raise CheckpointError(
                    f"chunk {missing[0]} of {leaf.num_chunks} was written by nobody",
                    where=leaf.name,
                )
            leaves.append(replace(leaf, crc32c=tuple(found[i] for i in range(leaf.num_chunks))))
        return replace(self, leaves=tuple(leaves))

    def orbax_files(self) -> dict[str, str]:
        """Name to text of the files by which orbax finds the arrays."""
        tree: dict[str, Any] = {}

        def add(keys: Sequence[tuple[str, bool]], value: dict[str, Any]) -> None:
            tree[str(tuple(text for text, _ in keys))] = {
                "key_metadata": [{"key": t, "key_type": 1 if p else 2} for t, p in keys],
                "value_metadata": value,
            }

        metadata: list[dict[str, Any]] = []
        for leaf in self.leaves:
            kind = "scalar" if leaf.number is not None else "jax.Array"
            value = {"value_type": kind, "skip_deserialize": False, "write_shape": leaf.shape}
            add(leaf.keys, value)
            extra = {"random_key_impl": leaf.key_impl} if leaf.key_impl else None
            array = {
                "param_name": leaf.folder,
                "write_shape": leaf.shape,
                "chunk_shape": leaf.chunk,
                "ext_metadata": extra,
            }
            metadata.append({"array_metadata": array})
        for keys, kind in self.empty:
            add(keys, {"value_type": kind, "skip_deserialize": True})
        fields = {
            "tree_metadata": tree,
            "use_ocdbt": False,
            "use_zarr3": True,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": None,
        }
        return {
            "_METADATA": json.dumps(fields),
            "array_metadatas/process_0": json.dumps({"array_metadatas": metadata}),
        }


OLDER = "restore an older checkpoint with step=.., or write this one anew"


def folder_names(keys: Sequence[Sequence[tuple[str, bool]]]) -> list[str]:
    """A folder for each leaf: orbax's name (keys joined by dots) where that is safe.

    Example:
        >>> folder_names([[("w", False)], [("a/b", False)], [("W", False)], [("../w", False)]])
        ['w', 'a/b', 'leaf_2', 'leaf_3']
    """
    taken: set[str] = {"_metadata", "_sharding", "_checkpoint_metadata", "array_metadatas"}
    above: set[str] = set()
    names: list[str] = []
    for number, path in enumerate(keys):
        name = ".".join(text for text, _ in path)
        parents = {str(p).lower() for p in PurePosixPath(name).parents} - {"."}
        is_free = name.lower() not in taken | above and not parents & taken
        if not is_free or not _FOLDER.fullmatch(name):
            name, parents = f"leaf_{number}", set[str]()
            while name in taken | above:
                name += "_"
        taken.add(name.lower())
        above |= parents
        names.append(name)
    return names


# The folder of checkpoints: one folder a step, which is there as a whole or not at all.

_SAVING, _DELETING, _LOCK = ".saving-", ".deleting-", "lock"
_DAMAGED = ".damaged"  # After a step's number.
# Of file systems that are mounted without locks: what is left there, nobody clears away.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_NUMBER = re.compile("0|[1-9][0-9]*")
_OURS = re.compile(rf"\{_SAVING}.*|\{_DELETING}.*|({_NUMBER.pattern})\{_DAMAGED}(-[0-9]+)?")


def steps_in(folder: str | Path) -> list[int]:
    """The steps of which there are checkpoints, rising; empty if there is no such folder."""
    return [step for step in numbered_in(folder) if (Path(folder) / str(step) / MANIFEST).is_file()]


def numbered_in(folder: str | Path) -> list[int]:
    """The same, with those that have lost their manifests."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if _is_numbered(path))


def step_number(step: Any) -> int:
    """The number of a step, which may be one of NumPy or JAX.

    Raises:
        CheckpointError: it is none.
    """
    number = operator.index(step)
    if number < 0:
        raise CheckpointError(f"step {number}", fix="number steps from 0")
    return number


def _is_numbered(path: Path) -> bool:
    """Whether it is a folder with the name of a step."""
    return bool(_NUMBER.fullmatch(path.name)) and path.is_dir()


def _is_ours(path: Path) -> bool:
    """Whether it is a checkpoint, a part of one, or one that was set aside."""
    has_manifest = _is_numbered(path) and (path / MANIFEST).is_file()
    return has_manifest or bool(_OURS.fullmatch(path.name))


def set_aside(root: Path, step: int) -> Path | None:
    """Give a checkpoint a name under which nobody takes it for one, and nobody deletes it.

    Returns:
        Where it is now; None if it is gone, or had that name already.

    Raises:
        CheckpointError: the file system refuses.
    """
    for number in itertools.count(1):
        aside = root / f"{step}{_DAMAGED}{f'-{number}' if number > 1 else ''}"
        if aside.exists():
            continue
        try:
            os.rename(root / str(step), aside)
            _sync(root)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise _os_error(error, root) from None
        else:
            return aside
    return None


def check_root(folder: Path) -> None:
    """Refuse a folder that holds other things and no checkpoint.

    Raises:
        CheckpointError: names what is there.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError("a file, expected a folder", where=str(folder), fix="give another")
    entries = sorted(folder.iterdir())
    if entries and not any(map(_is_ours, entries)):
        raise CheckpointError(
            f"the folder holds {entries[0].name!r} and no checkpoint",
            where=str(folder),
            fix="give a new or an empty folder",
        )


class Writing:
    """A checkpoint that is being written, in a folder beside those that are whole.

    It holds a lock as long as its process lives, so that what a killed process left can be told
    from what another one is writing, and is deleted by the next one that saves there.

    Args:
        root: the folder of checkpoints.
        manifest: what is going to be written.

    Raises:
        CheckpointError: the folder holds other things, there is a checkpoint of that step, or
            the disk is too full. Nothing is left behind.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        check_root(root)
        self.root = root
        self.manifest = manifest
        self.final: Path = root / str(manifest.step)
        if self.final.exists():
            raise self._there_is_one()
        self._lock = -1
        try:
            root.mkdir(parents=True, exist_ok=True)
            _delete_leftovers(root)
            _check_room(root, manifest)
            self.folder: Path = self._make()
            self._describe()
        except OSError as error:
            if self._lock >= 0:
                self.abandon()
            raise _os_error(error, root) from None

    def _there_is_one(self) -> CheckpointError:
        return CheckpointError(
            f"there is a checkpoint of step {self.manifest.step}",
            where=str(self.root),
            fix="save another step, or delete it first",
        )

    def _make(self) -> Path:
        """A folder of its own, locked."""
        while True:
            folder = self.root / f"{_SAVING}{self.manifest.step}-{secrets.token_hex(6)}"
            folder.mkdir()
            try:
                lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(lock)
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
            if os.fstat(lock).st_nlink:
                self._lock = lock
                return folder
            os.close(lock)  # Another process took it for one that was left, and deleted it.

    def _describe(self) -> None:
        arrays = self.folder / ARRAYS
        files = {ARRAYS + "/" + k: v for k, v in self.manifest.orbax_files().items()}
        for leaf in self.manifest.leaves:
            files[f"{ARRAYS}/{leaf.folder}/zarr.json"] = leaf.zarr_json()
        files["_CHECKPOINT_METADATA"] = json.dumps(
            {
                "item_handlers": None,
                "metrics": {},
                "performance_metrics": {},
                "init_timestamp_nsecs": time.time_ns(),
                "commit_timestamp_nsecs": time.time_ns(),
                "custom_metadata": {},
            }
        )
        arrays.mkdir()
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self._files = list(files)

    def commit(self, manifest: Manifest, keep: int | None) -> Path:
        """Give the written checkpoint its name, and delete the oldest beyond `keep`.

        Raises:
            CheckpointError: the file system refuses.
        """
        try:
            (self.folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            for name in (*self._files, MANIFEST):
                _sync(self.folder / name)
            for folder, _, _ in os.walk(self.folder):
                _sync(Path(folder))
            try:
                os.rename(self.folder, self.final)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # Written meanwhile.
                    raise self._there_is_one() from None
                raise
            _sync(self.root)
            (self.final / _LOCK).unlink()
        except OSError as error:
            raise _os_error(error, self.root) from None
        finally:
            os.close(self._lock)
            self._lock = -1
        if keep is not None:
            others = [step for step in steps_in(self.root) if step != manifest.step]
            for step in others[: max(0, len(others) - (keep - 1))]:
                _delete(self.root / str(step))
        return self.final

    def abandon(self) -> None:
        """Delete what was written."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _check_room(root: Path, manifest: Manifest) -> None:
    needed = sum(leaf.num_chunks * leaf.chunk_bytes for leaf in manifest.leaves)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise CheckpointError(
            f"the checkpoint has {needed} bytes, {free} are free",
            where=str(root),
            fix="make room or give another folder; the checkpoints that were there are whole",
        )


def _delete_leftovers(root: Path) -> None:
    """What killed processes left: folders whose lock nobody holds."""
    for path in root.glob(f"{_DELETING}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(f"{_SAVING}*"):
        with suppress(OSError):
            lock = os.open(path / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _delete(path: Path) -> None:
    """A checkpoint is no checkpoint any more at once, and gone soon after."""
    doomed = path.with_name(f"{_DELETING}{path.name}-{secrets.token_hex(6)}")
    with suppress(OSError):
        os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _os_error(error: OSError, root: Path) -> CheckpointError:
    return CheckpointError(
        f"cannot write: {error.strerror}",
        where=str(error.filename or root),
        fix="make room or give another folder; the checkpoints that were there are whole",
    )


def choose_step(folder: Path, step: int | None) -> int:
    """The step to restore: the one that is wanted, or the last.

    Raises:
        DamagedCheckpointError: it has lost its manifest.
        CheckpointError: there is no such checkpoint; says which there are.
    """
    present = steps_in(folder)
    if step is None and present:
        return present[-1]
    if step is not None and (step := step_number(step)) in present:
        return step
    what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    fix = "there are steps " + _list(present) if present else "give the folder of save_checkpoint"
    if (folder / str(step)).is_dir():
        what += f": {step}/{MANIFEST} is missing"
        raise DamagedCheckpointError(what, where=str(folder), fix=fix)
    check_root(folder)
    raise CheckpointError(what, where=str(folder), fix=fix)


def _list(steps: Iterable[int]) -> str:
    return ", ".join(map(str, steps))
