"""What a checkpoint says of itself: `manifest.json`, and the chunks of its arrays."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, gcd, prod
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import jax.numpy

from alpa_runtime.errors import CheckpointError, DamagedCheckpointError, PlanFormatError
from alpa_runtime.plan.reshard import Box
from alpa_runtime.plan.text import Node, pretty, read_file, read_json

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
            DamagedCheckpointError: it is malformed, or of another step than its folder.
            CheckpointError: there is none, or one of another version.
        """
        path = folder / MANIFEST
        try:
            root = read_json(read_file(path).decode(), str(path))
            root.get("format").choice(FORMAT)
            version = root.get("version").integer()
            if version != VERSION:
                raise CheckpointError(
                    f"version {version}, expected {VERSION}",
                    where=str(path),
                    fix="read it with the version of alpa_mlir that wrote it",
                )
            leaves = tuple(LeafRecord.read(item) for item in root.get("leaves").items())
            step = root.get("step").integer()
            if str(step) != folder.name:
                raise DamagedCheckpointError(
                    f"the checkpoint of step {step}, in the folder of step {folder.name}",
                    where=str(path),
                    fix=f"call the folder {step}, or remove it",
                )
            return cls(step, root.get("tree").plain(), (), leaves)
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
