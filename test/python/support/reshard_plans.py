"""Plans of transfers between meshes, made in a few plain ways for tests without the compiler."""

from __future__ import annotations

from alpa_runtime.plan.reshard import (
    AllGather,
    Box,
    Broadcast,
    ReshardInfo,
    ReshardStep,
    SendTile,
    Tile,
    box_elements,
    held_boxes,
    intersect,
)
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec

STRATEGIES = ("send", "broadcast", "all_gather")


def _split(box: Box, count: int) -> list[Box] | None:
    """The box in equal parts along its first dimension that allows it."""
    for dim, (begin, end) in enumerate(box):
        size = (end - begin) // count
        if size and size * count == end - begin:
            cuts = [(begin + i * size, begin + (i + 1) * size) for i in range(count)]
            return [(*box[:dim], cut, *box[dim + 1 :]) for cut in cuts]
    return None


class _Steps:
    def __init__(self, held: dict[int, Box]) -> None:
        self.held = held
        self.steps: list[ReshardStep] = []
        self.tiles = 0
        self.turn = 0

    def new(self, count: int) -> tuple[int, ...]:
        self.tiles += count
        return tuple(range(self.tiles - count, self.tiles))

    def cut(self, box: Box) -> int:
        """On one of the devices that hold the box, in turn."""
        holders = [d for d, own in self.held.items() if intersect(own, box) == box]
        self.turn += 1
        (tile,) = self.new(1)
        self.steps.append(Tile(tile, holders[self.turn % len(holders)], box))
        return tile

    def send(self, box: Box, device: int) -> int:
        source = self.cut(box)
        (tile,) = self.new(1)
        self.steps.append(SendTile(tile, source, device))
        return tile

    def bring(self, box: Box, devices: list[int], strategy: str) -> None:
        """The box, which one device of the source holds, to all devices."""
        parts = _split(box, len(devices)) if strategy == "all_gather" else None
        if len(devices) == 1 or strategy == "send":
            for device in devices:
                self.send(box, device)
        elif parts is not None:
            sent = [self.send(part, d) for part, d in zip(parts, devices, strict=True)]
            self.steps.append(AllGather(self.new(len(sent)), tuple(sent)))
        else:
            source = self.cut(box)
            tiles = self.new(len(devices))
            self.steps.append(Broadcast(tiles, source, tuple(devices), 4))


def reshard(
    source: TensorSpec,
    source_mesh: MeshInfo,
    target: TensorSpec,
    target_mesh: MeshInfo,
    strategy: str = "broadcast",
    numbers: tuple[int, int] = (0, 1),
    seconds: float = 0.0,
) -> ReshardInfo:
    """Brings every part of a source shard that a target shard needs by one of `STRATEGIES`."""
    held, wanted = held_boxes(source, source_mesh), held_boxes(target, target_mesh)
    steps = _Steps(held)
    replicas: dict[Box, list[int]] = {}
    for device, box in wanted.items():
        replicas.setdefault(box, []).append(device)
    for box, devices in replicas.items():
        for own in dict.fromkeys(held.values()):
            part = intersect(own, box)
            if part is not None and box_elements(part):
                steps.bring(part, devices, strategy)
    return ReshardInfo(
        numbers[0], source, numbers[1], target, strategy, seconds, tuple(steps.steps)
    )
