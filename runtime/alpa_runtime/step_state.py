"""The state and the batch that a step takes: leaves, and the inputs of the plan that they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from alpa_runtime import trees
from alpa_runtime.calling_convention import Aval, CallingConvention
from alpa_runtime.checkpoint.save_restore import StateTarget, Wanted
from alpa_runtime.errors import ArgumentMismatchError
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import InputInfo, OutputInfo


@dataclass(frozen=True)
class StateLeaf:
    """A leaf of the state.

    Attributes:
        name: its place in the state, as code.
        inputs: the plan's inputs that it is made of: one, or its pieces by rising rows.
        rows: for each of them its first row in the leaf.
    """

    name: str
    leaf: Aval
    inputs: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class StepState:
    """Everything of a step's arguments that is no batch.

    Attributes:
        tree: that of the one argument, or of the tuple of them where they are several.
        leaves: in the order of the tree.
    """

    tree: Any
    leaves: tuple[StateLeaf, ...]

    def target(
        self, plan: Plan, sharding_of: Callable[[int], Any], workers: Any = None
    ) -> StateTarget:
        """What has to be read of a checkpoint.

        Args:
            sharding_of: where an input of the plan is wanted first; None if nowhere.
            workers: the plan, if its workers are to read what they need.
        """
        wanted: list[Wanted] = []
        for item in self.leaves:
            leaf = item.leaf
            pieces = tuple(
                (row, plan.inputs[i].shape, sharding_of(i))
                for row, i in zip(item.rows, item.inputs, strict=True)
            )
            form = item.name, leaf.data_shape, leaf.data_dtype, pieces, leaf.key_impl
            wanted.append(Wanted(*form, of_data=True))
        inputs = tuple(item.inputs for item in self.leaves)
        return StateTarget(self.tree, tuple(wanted), inputs, workers)


@dataclass(frozen=True)
class StepBatch:
    """The batch of a step: the one argument, or the tuple of them where they are several.

    Attributes:
        leaves: in the order of the tree.
        several: whether it is several arguments.
        inputs: for each leaf the plan's input that it is; None for typed keys, which travel as
            their data.
    """

    name: str
    tree: Any
    several: bool
    leaves: tuple[Aval, ...]
    inputs: tuple[int | None, ...]

    def flatten(self, batch: Any) -> list[Any]:
        """The leaves of a batch.

        Raises:
            ArgumentMismatchError: it has another tree; names the first leaf that differs.
        """
        leaves, tree = trees.flatten(batch)
        if tree != self.tree:
            dummy = trees.unflatten(self.tree, range(len(self.leaves)))
            known, got = (
                {trees.text(path) for path, _ in trees.flatten_with_path(t)[0]}
                for t in (dummy, batch)
            )
            what = f"no leaf {min(known - got)}" if known - got else "other containers"
            what = f"an unknown leaf {min(got - known)}" if got - known else what
            raise ArgumentMismatchError(
                f"the batch has another tree than the step's: {what}",
                where=self.name,
                fix="give batches like the one that the step was planned for",
            )
        return leaves


def step_batch(form: CallingConvention, plan: Plan) -> StepBatch:
    """The batch that a step takes."""
    numbers, tree, count = _arguments(form, batches=True)
    members = groups(plan.inputs)
    leaves = tuple(form.in_leaves[number] for number in numbers)
    inputs = tuple(
        None if leaf.key_impl else members[number][0]
        for leaf, number in zip(leaves, numbers, strict=True)
    )
    return StepBatch(plan.name, tree, count != 1, leaves, inputs)


def groups(infos: Sequence[InputInfo] | Sequence[OutputInfo]) -> list[list[int]]:
    """Numbers of the plan's inputs, or outputs, that each argument, or result, is made of."""
    found: list[list[int]] = []
    for number, info in enumerate(infos):
        if info.piece is None or info.piece.offset == 0:
            found.append([])
        found[-1].append(number)
    return found


def _arguments(form: CallingConvention, *, batches: bool) -> tuple[list[int], Any, int]:
    """Leaf numbers, tree and number of those arguments that are batches, or of the others."""
    arguments: tuple[Any, ...] = trees.unflatten(form.in_tree, range(form.in_tree.num_leaves))
    is_batch = form.batches
    chosen = [
        a for a in arguments if any(is_batch[int(leaf)] for leaf in trees.leaves(a)) is batches
    ]
    numbers, tree = trees.flatten(chosen[0] if len(chosen) == 1 else tuple(chosen))
    return numbers, tree, len(chosen)


def step_state(form: CallingConvention, plan: Plan) -> StepState:
    """The state that a step takes.

    Example:
        >>> [leaf.name for leaf in step_state(step.form, step.plan).leaves]    # doctest: +SKIP
        ["['w']", "['b']"]
    """
    members = groups(plan.inputs)
    numbers, tree, _ = _arguments(form, batches=False)
    paths = [path for path, _ in trees.flatten_with_path(trees.unflatten(tree, numbers))[0]]
    leaves: list[StateLeaf] = []
    for path, number in zip(paths, numbers, strict=True):
        pieces = [plan.inputs[i].piece for i in members[number]]
        rows = tuple(0 if piece is None else piece.offset for piece in pieces)
        leaves.append(
            StateLeaf(trees.text(path), form.in_leaves[number], tuple(members[number]), rows)
        )
    return StepState(tree, tuple(leaves))
