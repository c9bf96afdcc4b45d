"""A loaded step as a loop wants it: the state as one value that each call replaces."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_runtime import trees
from alpa_runtime.checkpoint.restore import StateTarget
from alpa_runtime.parallel_step import ParallelStep

from alpa_mlir.errors import ArgumentMismatchError


class CarriedStep:
    """Called with the state and the batch, gives the next state and the other results by name.

    Which result is the next value of which part of the state the plan says; what no result
    replaces stays. So any step becomes `(state, *batch) -> (state, results)`, whatever the order
    of its arguments and results: what `training.run` wants, and `restore_checkpoint`.

    Args:
        step: a loaded step.
        static: its arguments that are Python values, by position, where the plan does not know
            them.

    Example:
        >>> carried = CarriedStep(alpa_mlir.load("my_plan"))        # doctest: +SKIP
        >>> state, batch = carried.split((state, batch))            # doctest: +SKIP
        >>> state, results = carried(state, *batch)                 # doctest: +SKIP
        >>> results                                                 # doctest: +SKIP
        {"result[1]['loss']": Array(0.25, dtype=float32)}
    """

    def __init__(self, step: ParallelStep, static: Mapping[int, Any] | None = None) -> None:
        self.step = step
        form, plan = step.form, step.plan
        self._static = {
            item.position: None if item.value is None else ast.literal_eval(item.value)
            for item in form.static
        } | dict(static or {})
        numbered: tuple[Any, ...] = trees.unflatten(form.in_tree, range(form.in_tree.num_leaves))
        leaves = [[int(leaf) for leaf in trees.leaves(argument)] for argument in numbered]
        self._is_batch = [any(form.batches[i] for i in owned) for owned in leaves]
        pairs = zip(leaves, self._is_batch, strict=True)
        state = [i for owned, batch in pairs if not batch for i in owned]
        self._carried = [plan.arguments[i].carried_by for i in state]
        replaced = {index for index in self._carried if index is not None}
        self._others = {i: info.name for i, info in enumerate(plan.results) if i not in replaced}

    @property
    def num_batches(self) -> int:
        """How many arguments are batches."""
        return sum(self._is_batch)

    def split(self, arguments: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        """The state, and the batch arguments, of the step's arguments without static ones.

        Several arguments that are state are a tuple.

        Raises:
            ArgumentMismatchError: there are more or fewer than the step takes.
        """
        if len(arguments) != len(self._is_batch):
            raise ArgumentMismatchError(
                f"got {len(arguments)} arguments, the step takes {len(self._is_batch)}",
                where=self.step.plan.name,
            )
        pairs = list(zip(arguments, self._is_batch, strict=True))
        state = tuple(argument for argument, is_batch in pairs if not is_batch)
        batch = tuple(argument for argument, is_batch in pairs if is_batch)
        return (state[0] if len(state) == 1 else state), batch

    def __call__(self, state: Any, *batch: Any) -> tuple[Any, dict[str, Any]]:
        """Run one step.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the step was made for.
        """
        if len(batch) != self.num_batches:
            raise ArgumentMismatchError(
                f"a batch of {len(batch)} arguments, the step takes {self.num_batches}",
                where=self.step.plan.name,
                fix="let batches be the step's last argument, or the tuple of those that are "
                "batches",
            )
        several = self._is_batch.count(False) != 1
        states = iter(state if several else (state,))
        batches = iter(batch)
        dynamic = iter([next(batches if is_batch else states) for is_batch in self._is_batch])
        size = len(self._is_batch) + len(self._static)
        arguments = [self._static[i] if i in self._static else next(dynamic) for i in range(size)]
        results = trees.leaves(self.step(*arguments))
        old, structure = trees.flatten(state)
        new = [
            value if index is None else results[index]
            for value, index in zip(old, self._carried, strict=True)
        ]
        return trees.unflatten(structure, new), {n: results[i] for i, n in self._others.items()}

    def state_target(self) -> StateTarget:
        """What `restore_checkpoint(folder, step)` asks for."""
        return self.step.state_target()

    def close(self) -> None:
        """End the step's workers, if it has any."""
        self.step.close()
