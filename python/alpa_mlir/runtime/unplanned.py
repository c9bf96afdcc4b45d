"""Moving an array from one mesh to another without going through the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from alpa_mlir.plan import TensorSpec
from alpa_mlir.runtime.xla import Device, as_any, put_shards

_jax: Any = jax
Box = tuple[tuple[int, int], ...]


@cache
def _slicer(start: tuple[int, ...], stop: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    def cut(shard: jax.Array) -> jax.Array:
        return jax.lax.slice(shard, start, stop)

    return _jax.jit(cut)


def _boxes(sharding: NamedSharding, shape: tuple[int, ...]) -> dict[Device, Box]:
    indices = as_any(sharding).devices_indices_map(shape)
    return {
        device: tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
        for device, index in indices.items()
    }


def plan_transfer(
    tensor: TensorSpec, source: NamedSharding, target: NamedSharding
) -> Callable[[jax.Array], jax.Array]:
    """A function that copies arrays of sharding `source` to sharding `target`.

    Every target device takes its box from one shard of the source: the whole shard, or a part
    of it. Where a box spans several shards, the source mesh gathers the array first. Nothing
    in it waits for values.
    """
    shape = tensor.shape
    have, want = _boxes(source, shape), _boxes(target, shape)
    order = list(have)
    positions: list[tuple[int, Callable[[jax.Array], jax.Array] | None]] = []
    for number, box in enumerate(want.values()):
        holders = [
            i
            for i, device in enumerate(order)
            if all(lo <= a and b <= hi for (a, b), (lo, hi) in zip(box, have[device], strict=True))
        ]
        if not holders:
            gathered = NamedSharding(as_any(source).mesh, PartitionSpec())
            gather = _jax.jit(_same, out_shardings=gathered)
            then = plan_transfer(tensor, gathered, target)
            return lambda x: then(gather(x))
        chosen = holders[number % len(holders)]
        outer = have[order[chosen]]
        if outer == box:
            positions.append((chosen, None))
        else:
            start = tuple(a - lo for (a, _), (lo, _) in zip(box, outer, strict=True))
            stop = tuple(b - lo for (_, b), (lo, _) in zip(box, outer, strict=True))
            positions.append((chosen, _slicer(start, stop)))
    devices = list(want)

    def move(x: jax.Array) -> jax.Array:
        by_device = {shard.device: shard.data for shard in as_any(x).addressable_shards}
        shards = [
            by_device[order[i]] if cut is None else cut(by_device[order[i]]) for i, cut in positions
        ]
        return put_shards(tensor, target, shards, devices)

    return move


def _same(x: jax.Array) -> jax.Array:
    return x
