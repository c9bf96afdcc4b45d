"""A worker's share of a step: the actions in which its meshes take part, in the common order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy

from alpa_runtime.execution.actions import (
    Accumulate,
    Action,
    Copy,
    Exchange,
    LinearStep,
    Place,
    Reshard,
    Run,
    Send,
    Zero,
    drop_at_last_use,
)
from alpa_runtime.execution.reshard_part import ReshardPart, reshard_part
from alpa_runtime.placement import Placement
from alpa_runtime.plan import Plan
from alpa_runtime.plan.reshard import Tile, place_tiles

_jnp: Any = jax.numpy


def worker_step(plan: Plan, step: LinearStep, placement: Placement, rank: int) -> LinearStep:
    """What worker `rank` does of the merged programs (`merge_programs`).

    All workers of a mesh do the same with its values, and drop them at the same places, so that
    their programs give the same buffers away. Results of meshes that it has nothing of are
    listed, but not made.
    """
    mine = set(placement.meshes_of(plan, rank))
    share = _Share(plan, step, placement, mine)
    actions = [own for action in step.actions for own in share.of(action)]
    kept = {v for r in step.results for v in r if step.values[v].mesh in mine}
    return replace(step, actions=drop_at_last_use(actions, kept))


def remote_parts(
    plan: Plan, step: LinearStep, placement: Placement, rank: int
) -> dict[int, ReshardPart]:
    """What worker `rank` does of each reshard of which it has a part, and does not do all.

    Args:
        step: its share (`worker_step`).
    """
    numbers = {action.by for action in step.actions if isinstance(action, Send | Exchange)}
    found: dict[int, ReshardPart] = {}
    for by in numbers:
        info = plan.reshards[by]
        itemsize = _jnp.dtype(info.source.dtype).itemsize
        found[by] = reshard_part(info, placement.owners, rank, itemsize)
    return found


def meshes_of_inputs(step: LinearStep) -> dict[tuple[int, int | None], int]:
    """The mesh from which an input that was put in workers is read back, for each micro-batch:
    the first that takes it, the same in all workers."""
    found: dict[tuple[int, int | None], int] = {}
    for action in step.actions:
        if isinstance(action, Place):
            key = action.arg, action.micro_batch
            found.setdefault(key, step.values[action.value].mesh)
    return found


class _Share:
    def __init__(self, plan: Plan, step: LinearStep, placement: Placement, mine: set[int]) -> None:
        self.plan = plan
        self.step = step
        self.ranks = [set(placement.ranks_of(plan, mesh)) for mesh in range(len(plan.meshes))]
        self.mine = mine
        self.later: dict[int, bool] = {}

    def of(self, action: Action) -> Iterator[Action]:
        match action:
            case Place() | Reshard():
                mesh = self.step.values[action.value].mesh
            case Zero():
                mesh = self.step.values[action.values[0]].mesh
            case Run():
                mesh = self.plan.stages[action.stage].mesh
            case Accumulate():
                mesh = action.mesh
            case Send():
                info = self.plan.reshards[action.by]
                if info.source_mesh in self.mine and not self.local(action.by):
                    yield action
                return
            case Copy():
                yield from self.copy(action)
                return
            case Exchange():
                raise AssertionError("made here only")
        if mesh in self.mine:
            yield action

    def local(self, by: int) -> bool:
        """Whether one worker has both meshes, and nobody else has a part of them."""
        info = self.plan.reshards[by]
        source, target = self.ranks[info.source_mesh], self.ranks[info.target_mesh]
        return source == target and len(source) == 1

    def copy(self, copy: Copy) -> Iterator[Action]:
        info = self.plan.reshards[copy.by]
        sends, receives = info.source_mesh in self.mine, info.target_mesh in self.mine
        if self.local(copy.by):
            if sends:
                yield copy
        elif receives or (sends and self.is_read_later(copy.by)):
            source = copy.source if sends and self.is_read_later(copy.by) else None
            yield Exchange(source, copy.value if receives else None, copy.by, copy.number)

    def is_read_later(self, by: int) -> bool:
        """Whether workers of the source mesh have something to do where the copy is received:
        one has devices of both meshes, or a tile goes to another device of the source mesh."""
        found = self.later.get(by)
        if found is None:
            info = self.plan.reshards[by]
            source = set(self.plan.meshes[info.source_mesh].devices)
            moved = any(
                tile.device in source and not isinstance(info.steps[tile.step], Tile)
                for tile in place_tiles(info.steps)
            )
            shared = self.ranks[info.source_mesh] & self.ranks[info.target_mesh]
            found = self.later[by] = moved or bool(shared)
        return found
