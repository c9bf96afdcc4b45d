"""The state that a step takes: its leaves, and the inputs of the plan that they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from alpa_mlir import trees
from alpa_mlir.call_form import CallForm
from alpa_mlir.checkpoint.restore import Wanted
from alpa_mlir.micro_batch import Leaf
from alpa_mlir.plan import Plan


@dataclass(frozen=True)
class StateLeaf:
    """A leaf of the state.

    Attributes:
        name: its place in the state, as code.
        inputs: the plan's inputs that it is made of: one, or its pieces by rising rows.
        rows: for each of them its first row in the leaf.
    """

    name: str
    leaf: Leaf
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

    def wanted(self, plan: Plan, sharding_of: Callable[[int], Any]) -> list[Wanted]:
        """What has to be read of a checkpoint.

        Args:
            sharding_of: where an input of the plan is wanted first; None if nowhere.
        """
        result: list[Wanted] = []
        for item in self.leaves:
            leaf = item.leaf
            pieces = tuple(
                (row, plan.inputs[i].shape, sharding_of(i))
                for row, i in zip(item.rows, item.inputs, strict=True)
            )
            result.append(
                Wanted(item.name, leaf.data_shape, leaf.data_dtype, pieces, leaf.key_impl)
            )
        return result


def step_state(form: CallForm, plan: Plan) -> StepState:
    """The state that a step takes.

    Example:
        >>> [leaf.name for leaf in step_state(step.form, step.plan).leaves]    # doctest: +SKIP
        ["['w']", "['b']"]
    """
    groups: list[list[int]] = []
    for number, info in enumerate(plan.inputs):
        if info.piece is None or info.piece.offset == 0:
            groups.append([])
        groups[-1].append(number)
    arguments: tuple[Any, ...] = trees.unflatten(form.in_tree, range(form.in_tree.num_leaves))
    is_batch = form.batches
    states = [a for a in arguments if not any(is_batch[int(leaf)] for leaf in trees.leaves(a))]
    found, tree = trees.flatten_with_path(states[0] if len(states) == 1 else tuple(states))
    leaves: list[StateLeaf] = []
    for path, number in found:
        argument = int(number)
        members = groups[argument]
        pieces = [plan.inputs[i].piece for i in members]
        rows = tuple(0 if piece is None else piece.offset for piece in pieces)
        leaves.append(StateLeaf(trees.text(path), form.in_leaves[argument], tuple(members), rows))
    return StepState(tree, tuple(leaves))
