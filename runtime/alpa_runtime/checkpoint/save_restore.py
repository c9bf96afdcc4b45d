"""Saving a state: copies first, then a thread that writes, then one rename; and reading it: checked
first, then only the parts that are wanted.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy
import numpy as np
from jax.sharding import NamedSharding

from alpa_runtime import trees
from alpa_runtime.arrays import (
    DistributedArray,
    RowArray,
    StackedArray,
    WholeArray,
    keys_in_workers,
    of_pieces,
)
from alpa_runtime.checkpoint.folders import (
    Writing,
    choose_step,
    numbered_in,
    set_aside,
    step_number,
    steps_in,
)
from alpa_runtime.checkpoint.manifest import MANIFEST, OLDER, LeafRecord, Manifest
from alpa_runtime.checkpoint.shards import (
    Piece,
    RemoteCopies,
    RestoreTask,
    check_chunks,
    check_written,
    copied_shards,
    fill,
    held_boxes,
    index_box,
    new_manifest,
    require_tensorstore,
    start_copies,
    state_leaves,
    write_shards,
)
from alpa_runtime.errors import (
    PATH,
    WHOLE,
    AlpaError,
    CheckpointError,
    DamagedCheckpointError,
    check_type,
)
from alpa_runtime.execution.host_shards import Filling, RowFilling, StackFilling, whole_box
from alpa_runtime.jax_internals import mark_own
from alpa_runtime.plan.interface import PiecePlace
from alpa_runtime.plan.reshard import Box
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.worker_group import Reply

_log = logging.getLogger("alpa_mlir")
# What a writer reports: for each leaf, by number of the chunk, its checksum.
Crcs = dict[int, dict[int, str]]


class Saving:
    """A checkpoint that is being written while the steps go on.

    Attributes:
        folder: where it will be.
        step: the number under which it is saved.
    """

    def __init__(
        self,
        writing: Writing,
        write: Callable[[], Sequence[Crcs]],
        keep: int | None,
        waits_for_workers: bool,
    ) -> None:
        self.folder: Path = writing.final
        self.step: int = writing.manifest.step
        self._error: CheckpointError | None = None
        # A program that ends waits for its last checkpoint, but not for workers: they may hang.
        self._thread = threading.Thread(
            target=self._run,
            args=(writing, write, keep),
            name=f"checkpoint {self.step}",
            daemon=waits_for_workers,
        )
        self._thread.start()

    def _run(self, writing: Writing, write: Callable[[], Sequence[Crcs]], keep: int | None) -> None:
        try:
            found: Crcs = {}
            for crcs in write():
                for number, chunks in crcs.items():
                    found.setdefault(number, {}).update(chunks)
            manifest = writing.manifest.with_crcs(found)
            check_written(writing.folder, manifest)
            writing.commit(manifest, keep)
        except BaseException as error:
            writing.abandon()
            if not isinstance(error, CheckpointError):
                cause = error
                error = CheckpointError(f"{type(cause).__name__}: {cause}", where=str(self.folder))
                error.__cause__ = cause
            self._error = error
            _log.error("checkpoint of step %d was not written: %s", self.step, error)

    def done(self) -> bool:
        """Whether it is written, or has failed."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> Path:
        """Wait until it is written.

        Args:
            timeout: seconds; by default as long as it takes.

        Returns:
            Its folder.

        Raises:
            CheckpointError: it could not be written; those that were there before still are.
            TimeoutError: it is not written yet.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the checkpoint of step {self.step} is not written yet")
        if self._error is not None:
            raise self._error
        return self.folder


def save_checkpoint(
    folder: str | Path, state: Any, *, step: int, keep: int | None = None
) -> Saving:
    """Write a state to `folder/<step>` while the program goes on.

    The call waits for the state's values and copies them; then it returns, and a thread writes.
    The next step may use the state up at once. The checkpoint appears under its name when all of
    it is on the disk; a process that is killed before leaves the older ones as they are.

    Args:
        folder: of the run's checkpoints; made if needed.
        state: a tree of arrays and numbers, as a step returned it or any other.
        step: a number of at least 0, the checkpoint's name; one that a step returned, such as
            that of a `TrainState`, is read.
        keep: how many to keep: this one and those of the highest steps; by default all.

    Returns:
        A handle; `wait()` says when it is written, or why it could not be.

    Raises:
        CheckpointError: the folder holds other things or this step already, a leaf is no array,
            there is no room. Nothing has changed.

    Example:
        >>> saving = save_checkpoint("run/checkpoints", state, step=100, keep=3)  # doctest: +SKIP
        >>> saving.wait()                                                       # doctest: +SKIP
    """
    check_type("save_checkpoint", "folder", folder, PATH)
    check_type("save_checkpoint", "step", step, WHOLE)
    check_type("save_checkpoint", "keep", keep, WHOLE, None)
    step, keep = step_number(step), None if keep is None else operator.index(keep)
    if keep is not None and keep < 1:
        raise CheckpointError(f"keep={keep}", fix="keep at least one checkpoint")
    require_tensorstore()
    leaves = state_leaves(state)
    manifest = new_manifest(step, state, leaves, [held_boxes(leaf) for leaf in leaves])
    writing = Writing(Path(folder).absolute(), manifest)
    pieces = [leaf.pieces for leaf in leaves]
    numbered = list(enumerate(manifest.leaves))
    everything = [(n, leaf, p) for (n, leaf), p in zip(numbered, pieces, strict=True)]
    remote: RemoteCopies | None = None
    try:
        remote = RemoteCopies(writing.folder.name, everything)
        start_copies(leaves)
        shards = [copied_shards(found) for found in pieces]
    except BaseException:
        if remote is not None:
            remote.drop()
        writing.abandon()
        raise

    def write() -> list[Crcs]:
        theirs = remote.write(writing.folder)
        return [*theirs, write_shards(writing.folder, numbered, shards)]

    return Saving(writing, write, keep, remote.is_needed)


# Reading a state: checked first, then only the parts that are wanted.

_jax: Any = jax
_jnp: Any = jax.numpy
_UNCUT = PiecePlace()
Read = Callable[[Box], "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Wanted:
    """A leaf that is to be read.

    Attributes:
        name: its place in the state, as code.
        shape, dtype: of the array, or of the data of a typed PRNG key.
        pieces: (place, shape, sharding) for each of its pieces, one if it is whole; a sharding
            of None is an array of NumPy.
        number: the type of a Python number.
        of_data: whether the sharding of a typed PRNG key is that of its data.
        row_of: (number of an array, row of it that this is); its one piece says the form of that
            array, of which all rows are wanted.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[tuple[PiecePlace, tuple[int, ...], Any], ...]
    key_impl: str | None = None
    number: str | None = None
    of_data: bool = False
    row_of: tuple[int, int] | None = None

    @property
    def is_row_on_devices(self) -> bool:
        """Whether it is a row of an array on devices of this process."""
        return self.row_of is not None and self.pieces[0][2] is not None


class ReadsItself(Protocol):
    """A plan on workers."""

    def is_read(self, index: int) -> bool:
        """Whether a worker takes input `index` of the plan."""
        ...

    def handle(self, index: int) -> DistributedArray:
        """An array for an input of the plan, of which the workers know nothing yet."""
        ...

    def ask(self, rank: int, method: str, *args: Any) -> Reply:
        """Call a method of a worker."""
        ...


@dataclass(frozen=True)
class StateTarget:
    """The state that a step takes.

    Attributes:
        tree: of the state.
        leaves: in the order of the tree.
        inputs: for each leaf, which inputs of the plan its pieces are.
        workers: the plan, if its workers are to read what they need.
    """

    tree: Any
    leaves: tuple[Wanted, ...]
    inputs: tuple[tuple[int, ...], ...]
    workers: ReadsItself | None = None


@runtime_checkable
class HasState(Protocol):
    """What knows the state that it takes: a loaded step."""

    def state_target(self) -> StateTarget:
        """Its tree, and where each leaf belongs."""
        ...


def latest_checkpoint(folder: str | Path) -> int | None:
    """The highest step of which there is a checkpoint; None if there is none.

    Example:
        >>> latest_checkpoint("no/such/folder") is None
        True
    """
    check_type("latest_checkpoint", "folder", folder, PATH)
    present = steps_in(folder)
    return present[-1] if present else None


def restore_checkpoint(folder: str | Path, target: Any = None, *, step: int | None = None) -> Any:
    """The state that was saved, in the form that is wanted.

    It does not matter how it was sharded when it was saved: only the parts that are wanted are
    read. All of the checkpoint is looked through before anything is read.

    Args:
        folder: that of `save_checkpoint`.
        target: what to make of it. A step (`alpa_mlir.load`, `compile`): arrays where that step
            wants its state, which it takes without another copy; or a part of that state
            (`ParallelStep.state_target`). A tree like the state: where a
            leaf is an array of JAX, or a `jax.ShapeDtypeStruct` with a sharding, an array held
            likewise; else one of NumPy. None: arrays of NumPy in the containers that were saved.
        step: which one; by default the last.

    Returns:
        The state; keys are typed where they were, Python numbers stay what they were.

    Raises:
        DamagedCheckpointError: a shard, or what describes them, is missing or damaged.
        CheckpointError: there is none, it is of another model (the first leaf that differs is
            named), or of another version.

    Example:
        >>> state = restore_checkpoint("run/checkpoints", train_step)        # doctest: +SKIP
        >>> params = restore_checkpoint("run/checkpoints")["params"]         # doctest: +SKIP
    """
    check_type("restore_checkpoint", "folder", folder, PATH)
    check_type("restore_checkpoint", "step", step, WHOLE, None)
    root = Path(folder).absolute()
    path = root / str(choose_step(root, step))
    manifest = Manifest.load(path)
    if target is None:
        tree, wanted = _saved_tree(manifest, path), [_as_saved(leaf) for leaf in manifest.leaves]
    elif isinstance(target, HasState | StateTarget):
        state = target if isinstance(target, StateTarget) else target.state_target()
        records = _matched(manifest, state.leaves, path)
        leaves = _read_by_workers(path, records, state) if state.workers else None
        return trees.unflatten(state.tree, leaves or _read(path, records, state.leaves))
    else:
        leaves, tree = trees.flatten(target)
        wanted = [_like(*pair) for pair in zip(_names(target), leaves, strict=True)]
    records = _matched(manifest, wanted, path)
    return trees.unflatten(tree, _read(path, records, wanted))


def _saved_tree(manifest: Manifest, path: Path) -> Any:
    try:
        tree = trees.decode(manifest.tree)
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            str(error),
            where=str(path),
            fix="import its module first, or give a tree like the state: "
            "restore_checkpoint(folder, state)",
        ) from None
    if tree.num_leaves != len(manifest.leaves):
        raise DamagedCheckpointError(
            f"a tree of {tree.num_leaves} leaves, expected {len(manifest.leaves)}",
            where=str(path / MANIFEST),
            fix=OLDER,
        )
    return tree


def _names(tree: Any) -> list[str]:
    """Of a tree's leaves. Variables of a state of flax.nnx have the names of their values, so that
    it is the same state as nested dictionaries."""
    found: list[str] = []
    for path, value in trees.flatten_with_path(tree, _is_variable)[0]:
        inner = trees.flatten_with_path(value)[0] if _is_variable(value) else [((), value)]
        found += [trees.text((*path, *below[1:])) for below, _ in inner]
    return found


def _is_variable(value: Any) -> bool:
    kind: Any = value.__class__
    bases = (base for base in kind.__mro__ if base.__name__ == "Variable")
    return any(base.__module__.startswith("flax.nnx.") for base in bases)


def _saved_names(manifest: Manifest) -> list[str]:
    """Of the leaves, as `_names` has those of the target."""
    try:
        tree = trees.decode(manifest.tree)
        return _names(trees.unflatten(tree, range(tree.num_leaves)))
    except (ValueError, TypeError):  # Its classes are not there.
        return [leaf.name for leaf in manifest.leaves]


def _as_saved(leaf: LeafRecord) -> Wanted:
    whole = (_UNCUT, leaf.shape, None)
    return Wanted(leaf.name, leaf.shape, leaf.dtype, (whole,), leaf.key_impl, leaf.number)


def _like(name: str, value: Any) -> Wanted:
    for kind in (bool, int, float, complex):
        if type(value) is kind:
            dtype = str(np.asarray(value).dtype)
            return Wanted(name, (), dtype, ((_UNCUT, (), None),), number=kind.__name__)
    if isinstance(value, StackedArray):
        pieces = tuple(
            (place, piece.shape, _sharding(piece))
            for place, piece in zip(value.places, value.pieces, strict=True)
        )
        return Wanted(name, value.shape, str(value.dtype), pieces)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise CheckpointError(
            f"a {type(value).__name__} in the target, expected an array or a number",
            where=name,
            fix="give a tree like the state that was saved",
        )
    shape, sharding = tuple(value.shape), _sharding(value)
    if _jax.dtypes.issubdtype(value.dtype, _jax.dtypes.prng_key):
        data = _jax.eval_shape(_jax.random.key_data, _jax.ShapeDtypeStruct(shape, value.dtype))
        impl = str(_jax.random.key_impl(value)) if isinstance(value, jax.Array) else _impl(value)
        return Wanted(
            name, data.shape, str(data.dtype), ((_UNCUT, data.shape, sharding),), key_impl=impl
        )
    return Wanted(name, shape, str(value.dtype), ((_UNCUT, shape, sharding),))


def _sharding(value: Any) -> Any:
    """That of a leaf of the target; None for arrays of NumPy, and for those that workers hold."""
    if isinstance(value, RowArray) and isinstance(value.stack, jax.Array):
        stack: Any = value.stack.sharding
        return NamedSharding(stack.mesh, value.spec, memory_kind=stack.memory_kind)
    sharding = None if isinstance(value, WholeArray) else getattr(value, "sharding", None)
    return sharding if isinstance(sharding, jax.sharding.Sharding) else None


def _impl(value: Any) -> str:
    """The generator of an abstract key: what `key<fry>` is short for."""
    return str(value.dtype._impl.name)


def _matched(manifest: Manifest, wanted: Sequence[Wanted], path: Path) -> list[LeafRecord]:
    """The stored array of every wanted leaf.

    Raises:
        CheckpointError: the first leaf that is not there, differs, or is not wanted.
    """
    names = [leaf.name for leaf in manifest.leaves]
    if {leaf.name for leaf in wanted} != {*names}:
        names = _saved_names(manifest)
    saved = dict(zip(names, manifest.leaves, strict=True))
    fix = "give a target like the state that was saved"
    records: list[LeafRecord] = []
    for leaf in wanted:
        record = saved.pop(leaf.name, None)
        where = f"{path}: {leaf.name or 'the state'}"
        if record is None:
            raise CheckpointError("the checkpoint has no such leaf", where=where, fix=fix)
        if (problem := _difference(record, leaf)) is not None:
            raise CheckpointError(problem, where=where, fix=fix)
        records.append(record)
    if saved:
        raise CheckpointError(
            "the checkpoint has this leaf, the target has not",
            where=f"{path}: {next(iter(saved))}",
            fix=fix,
        )
    return records


def _difference(record: LeafRecord, leaf: Wanted) -> str | None:
    found = (record.shape, record.dtype, record.key_impl)
    if found == (leaf.shape, leaf.dtype, leaf.key_impl):
        return None
    # A Python number takes the type of what it meets, as in JAX.
    if not record.shape and not leaf.shape and record.key_impl is leaf.key_impl is None:
        kinds = [_kind(x.dtype) for x in (record, leaf)]
        if kinds[0] == kinds[1] and (record.number or leaf.number):
            return None
    wanted = LeafRecord("", (), "", leaf.shape, leaf.dtype, (), leaf.key_impl, leaf.number)
    return f"{record.as_text()} in the checkpoint, {wanted.as_text()} wanted"


def _kind(dtype: str) -> str:
    for kind in (_jnp.bool_, _jnp.integer, _jnp.floating, _jnp.complexfloating):
        if _jnp.issubdtype(_jnp.dtype(dtype), kind):
            return str(kind.__name__)
    return dtype


def _read(path: Path, records: Sequence[LeafRecord], wanted: Sequence[Wanted]) -> list[Any]:
    """Leaves, made part by part as these are read; the rows of one array one behind the other."""
    arrays: dict[int, _StackOnDevices] = {}
    begins: dict[int, int] = {}
    places: list[Sequence[tuple[PiecePlace, Filling | _OnHost | RowFilling]]] = []
    for number, leaf in enumerate(wanted):
        if not leaf.is_row_on_devices:
            places.append(_places(leaf))
            continue
        index, row = leaf.row_of or (0, 0)
        begins.setdefault(index, number)
        stack = arrays.setdefault(index, _StackOnDevices(leaf))
        places.append([(_UNCUT, stack.row(row))])

    def begin(number: int) -> int:
        of = wanted[number].row_of
        return number if of is None else begins.get(of[0], number)

    order = sorted(range(len(wanted)), key=begin)
    filled = fill(
        path, [Piece(records[n], wanted[n].dtype, at, [x]) for n in order for at, x in places[n]]
    )
    found: dict[int, Any] = {}
    for n in order:
        parts: list[Any] = []
        for _, place in places[n]:
            next(filled)
            if not isinstance(place, RowFilling):
                parts.append(place.array())
        if parts:
            found[n] = _made(wanted[n], parts)
    for n, leaf in enumerate(wanted):
        if leaf.is_row_on_devices:
            index, row = leaf.row_of or (0, 0)
            found[n] = RowArray(arrays[index].array(), row, leaf.shape)
    return [found[n] for n in range(len(wanted))]


class _StackOnDevices:
    """An array on devices that is made of its rows."""

    def __init__(self, leaf: Wanted) -> None:
        (_, shape, sharding), *_ = leaf.pieces
        filling = _filling(shape, leaf.dtype, sharding)
        self._filling = filling
        self._rows = StackFilling([filling], leaf.shape, shape[0])
        self._array: Any = None

    def row(self, number: int) -> RowFilling:
        """What takes one of its rows."""
        return RowFilling(self._rows, number)

    def array(self) -> Any:
        """The array, when all rows are there."""
        if self._array is None:
            self._array = self._filling.array()
        return self._array


def _filling(shape: tuple[int, ...], dtype: str, sharding: Any) -> Filling:
    """What is put on the devices of a sharding."""
    parts: dict[Box, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        parts.setdefault(index_box(index, shape), []).append(device)
    return Filling(TensorSpec(shape, dtype, ()), sharding, parts)


class _OnHost:
    """A part of a leaf that is wanted as an array of NumPy."""

    def __init__(self, box: Box) -> None:
        self.boxes = [box]
        self._found: Any = None

    def put(self, box: Box, data: np.ndarray[Any, Any]) -> None:
        """Keep the array, if it is this part."""
        if box == self.boxes[0]:
            self._found = data

    def array(self) -> np.ndarray[Any, Any]:
        """The array."""
        return self._found


def _places(leaf: Wanted) -> list[tuple[PiecePlace, Filling | _OnHost]]:
    """Where each piece of a leaf is wanted."""
    if leaf.key_impl is not None:
        return [(_UNCUT, _OnHost(whole_box(leaf.shape)))]
    places: list[tuple[PiecePlace, Filling | _OnHost]] = []
    for at, shape, sharding in leaf.pieces:
        if sharding is None:
            places.append((at, _OnHost(whole_box(shape))))
        else:
            places.append((at, _filling(shape, leaf.dtype, sharding)))
    return places


def _made(leaf: Wanted, pieces: Sequence[Any]) -> Any:
    """The leaf of its pieces."""
    if leaf.number is not None:
        return pieces[0].item()
    if leaf.key_impl is not None:
        data = _jnp.asarray(pieces[0])
        at, _, sharding = leaf.pieces[0]
        if len(leaf.pieces) > 1 or at.axis:
            sharding = None
        if sharding is not None and leaf.of_data:
            data = _jax.device_put(data, sharding)
        try:
            key = _jax.random.wrap_key_data(data, impl=leaf.key_impl)
        except (ValueError, TypeError):
            raise CheckpointError(
                f"words of shape {data.shape} are no keys of {leaf.key_impl!r}",
                where=leaf.name,
                fix="restore it with the version of JAX that saved it, or an older checkpoint",
            ) from None
        return key if sharding is None or leaf.of_data else _jax.device_put(key, sharding)
    mark_own(pieces)
    axis = leaf.pieces[0][0].axis
    if len(pieces) == 1 and not axis:
        return pieces[0]
    return StackedArray([_jnp.asarray(x) for x in pieces], axis)


def _read_by_workers(path: Path, records: Sequence[LeafRecord], target: StateTarget) -> list[Any]:
    """Leaves whose parts are read by the workers that need them; the others are read here."""
    home = target.workers
    assert home is not None
    check_chunks(path, [(r, [tuple((0, n) for n in r.shape)]) for r in records])
    at_home = [all(home.is_read(index) for index in inputs) for inputs in target.inputs]
    pieces: list[tuple[int, tuple[LeafRecord, PiecePlace, str, int | None]]] = []
    here: list[int] = []
    for number, (record, leaf, inputs, is_theirs) in enumerate(
        zip(records, target.leaves, target.inputs, at_home, strict=True)
    ):
        if not is_theirs:
            here.append(number)
            continue
        for index, (at, _, _) in zip(inputs, leaf.pieces, strict=True):
            of = None if leaf.row_of is None else leaf.row_of[1]
            pieces.append((index, (record, at, leaf.dtype, of)))

    arrays = {index: home.handle(index) for index, _ in pieces}
    first = {index: number for number, index in enumerate(arrays)}
    pieces.sort(key=lambda piece: first[piece[0]])  # The rows of one array together.
    tasks: dict[int, list[RestoreTask]] = {}
    for index, form in pieces:
        task = RestoreTask(arrays[index].uid, index, *form)
        for rank in arrays[index].workers:
            tasks.setdefault(rank, []).append(task)
    _ask_workers(home, path, tasks)
    read = iter(_read(path, [records[n] for n in here], [target.leaves[n] for n in here]))
    leaves: list[Any] = []
    for leaf, inputs, is_theirs in zip(target.leaves, target.inputs, at_home, strict=True):
        if not is_theirs:
            leaves.append(next(read))
            continue
        found: list[Any] = [arrays[index] for index in inputs]
        row = None if leaf.row_of is None else leaf.row_of[1]
        value: Any = of_pieces(found, leaf.pieces[0][0].axis, row, leaf.shape)
        leaves.append(value if leaf.key_impl is None else keys_in_workers(value, leaf.key_impl))
    return leaves


def _ask_workers(home: ReadsItself, path: Path, tasks: Mapping[int, list[RestoreTask]]) -> None:
    """Let workers read; if one of them cannot, none of them keeps anything.

    Args:
        tasks: by rank.
    """
    asked = [home.ask(rank, "restore", str(path), own) for rank, own in tasks.items()]
    failed: list[AlpaError] = []
    for reply in asked:
        try:
            reply.result()
        except AlpaError as error:
            failed.append(error)
    if not failed:
        return
    with contextlib.suppress(AlpaError):
        for rank, own in tasks.items():
            home.ask(rank, "free", list({task.uid: None for task in own}))
    # A worker that is gone says more than a file that it left half read.
    raise next((e for e in failed if not isinstance(e, CheckpointError)), failed[0])


def restore_newest(folder: str | Path, target: Any, log: logging.Logger) -> tuple[int, Any] | None:
    """The step and the state of the newest checkpoint that is not damaged.

    Newer ones that are damaged are set aside once an older one is restored: they become
    `<step>.damaged`, are logged, and stay until somebody deletes them, while their steps can be
    saved anew.

    Args:
        target: as for `restore_checkpoint`.

    Returns:
        None if there is no checkpoint.

    Raises:
        DamagedCheckpointError: all of them are damaged; says how.
        CheckpointError: one is of another model or version, or cannot be read.
    """
    root = Path(folder).absolute()
    damaged: dict[int, str] = {}
    while left := [step for step in numbered_in(root) if step not in damaged]:
        step = left[-1]
        try:
            state = restore_checkpoint(root, target, step=step)
        except CheckpointError as error:
            if not (root / str(step)).exists():
                continue  # Another run deleted it meanwhile.
            if not isinstance(error, DamagedCheckpointError):
                raise
            damaged[step] = f"{error.where}: {error.what}"
            continue
        for number, problem in damaged.items():
            if (aside := set_aside(root, number)) is not None:
                log.warning(
                    "the checkpoint of step %d is damaged, now called %s, and that of step %d is "
                    "taken instead: %s",
                    number, aside, step, problem,
                )  # fmt: skip
        return step, state
    if damaged:
        raise DamagedCheckpointError(
            "no checkpoint is whole: "
            + "; ".join(f"step {number}: {problem}" for number, problem in damaged.items()),
            where=str(root),
            fix="bring what is missing back, or begin anew in another folder",
        )
    return None
