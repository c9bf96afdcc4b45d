"""Reading the steps of transfers between meshes: each line, and steps together."""

from __future__ import annotations

import pytest
from alpa_mlir import errors
from alpa_runtime.plan.reshard import (
    AllGather,
    Broadcast,
    ReshardInfo,
    SendTile,
    Tile,
    join,
    place_tiles,
    read_step,
    shard_boxes,
)
from alpa_runtime.plan.tensor import TensorReader, TensorSpec
from alpa_runtime.plan.text import Node

LINES = {
    "tile 0 on 3 [0:4,32:64]": Tile(0, 3, ((0, 4), (32, 64))),
    "tile 7 on 0 []": Tile(7, 0, ()),
    "send 1 = 0 to 5": SendTile(1, 0, 5),
    "broadcast 2-4 = 0 to 5 6 7 chunks 8": Broadcast((2, 3, 4), 0, (5, 6, 7), 8),
    "broadcast 2 4 = 0 to 7 5 chunks 1": Broadcast((2, 4), 0, (7, 5), 1),
    "all_gather 7-8 = 5 6": AllGather((7, 8), (5, 6)),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_read_and_written(line):
    step = read_step(line)
    assert step == LINES[line]
    assert read_step(step.to_text()) == step


def test_lines_are_written_as_they_came():
    for line in LINES:
        if "all_gather" not in line:  # Ranges of two are written as ranges.
            assert read_step(line).to_text() == line


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("copy 1 = 0 to 5", "expected one of tile, send, broadcast, all_gather"),
        ("tile 0 on 3", r"expected 'tile TILE on DEVICE \[BEGIN:END,..\]'"),
        ("tile 0 on 3 [0-4]", "expected 'tile TILE"),
        ("tile 0 on 3 [4:2]", r"got the box \[4:2\], expected rising bounds"),
        ("send 1 = 0 to 5 6", "expected 'send TILE = TILE to DEVICE'"),
        ("broadcast 2-4 = 0 to 5 6 chunks 8", "makes 3 tiles on 2 devices"),
        ("broadcast 2-3 = 0 to 5 5 chunks 8", "the devices 5 5 are not different ones"),
        ("broadcast 2-3 = 0 to 5 6 chunks 0", "0 chunks, expected at least 1"),
        ("broadcast 4-2 = 0 to 5 6 chunks 1", "got the tiles 4-2, expected a rising range"),
        ("all_gather 0-99999999999 = 1", "expected a rising range"),
        ("all_gather 4 = 1 2", "makes 1 tiles of 2"),
    ],
)
def test_a_malformed_line_is_refused(line, error):
    with pytest.raises(ValueError, match=error):
        read_step(line)


def test_tiles_are_placed():
    steps = [
        read_step(line)
        for line in (
            "tile 0 on 0 [0:2,0:4]",
            "tile 1 on 1 [2:4,0:4]",
            "broadcast 2-3 = 0 to 4 5 chunks 2",
            "send 4 = 1 to 6",
            "all_gather 5-6 = 3 4",
        )
    ]
    placed = place_tiles(steps)
    assert [tile.device for tile in placed] == [0, 1, 4, 5, 6, 5, 6]
    assert [tile.step for tile in placed] == [0, 1, 2, 2, 3, 4, 4]
    assert placed[6].box == ((0, 4), (0, 4))


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["tile 1 on 0 [0:2]"], r"step 0 \(.*\): makes the tiles 1, expected 0 next"),
        (["tile 0 on 0 [0:2]"] * 2, "makes the tiles 0, expected 1 next"),
        (["send 0 = 1 to 3"], "tile 1 is not there yet"),
        (["send 0 = 0 to 3"], "tile 0 is not there yet"),
        (["tile 0 on 3 [0:2]", "send 1 = 0 to 3"], "tile 0 lies on device 3 already"),
        (["tile 0 on 3 [0:2]", "tile 1 on 3 []"], "a box of rank 0, but earlier ones have 1"),
        (
            ["tile 0 on 3 [0:2]", "tile 1 on 3 [2:4]", "all_gather 2-3 = 0-1"],
            "two of the gathered tiles lie on one device",
        ),
        (
            ["tile 0 on 3 [0:2]", "tile 1 on 4 [1:4]", "all_gather 2-3 = 0-1"],
            r"\[0:2\] and \[1:4\] overlap",
        ),
        (
            ["tile 0 on 3 [0:2]", "tile 1 on 4 [3:4]", "all_gather 2-3 = 0-1"],
            r"\[0:2\] \[3:4\] do not fill \[0:4\]",
        ),
    ],
)
def test_steps_that_do_not_follow_are_refused(lines, error):
    with pytest.raises(ValueError, match=error):
        place_tiles([read_step(line) for line in lines])


def test_boxes_join_in_any_order():
    parts = [((a, a + 2), (b, b + 3)) for a in (2, 0) for b in (0, 3)]
    assert join(parts) == ((0, 4), (0, 6))
    assert join([(), ()][:1]) == ()


def test_shards_are_numbered_from_the_major_axis():
    sizes, axes = (2, 3), ("x", "y")

    def begins(text):
        return [box[0][0] for box in shard_boxes(TensorSpec.parse(text), axes, sizes)]

    assert begins("int32[6][x*y]") == [0, 1, 2, 3, 4, 5]
    assert begins("int32[6][y*x]") == [0, 2, 4, 1, 3, 5]
    assert begins("int32[6][x]") == [0, 0, 0, 3, 3, 3]
    assert begins("int32[6][R]") == [0] * 6
    assert shard_boxes(TensorSpec.parse("int32[][]"), axes, sizes) == ((),) * 6


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        ("int32[7][x]", "dimension 0 of size 7 is split in 2 parts"),
        ("int32[6][z]", "the mesh has no axis z"),
        ("int32[6,6][x,x]", "axis x splits twice"),
    ],
)
def test_shards_that_a_mesh_cannot_hold_are_refused(tensor, error):
    with pytest.raises(ValueError, match=error):
        shard_boxes(TensorSpec.parse(tensor), ("x", "y"), (2, 3))


RESHARD = {
    "source_mesh": 0,
    "source": "float32[4][x]",
    "target_mesh": 1,
    "target": "float32[4][R]",
    "strategy": "naive",
    "seconds": 1e-5,
    "steps": ["tile 0 on 0 [0:2]", "send 1 = 0 to 2", "tile 2 on 1 [2:4]", "send 3 = 2 to 2"],
}


def test_a_transfer_is_read_and_written():
    info = ReshardInfo.read(Node(RESHARD, "plan.json"), TensorReader())
    assert len(info.steps) == 4
    assert info.to_json() == RESHARD


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("steps", ["tile 0 on 0 [0:9]"], r"steps\[0\]: got the box \[0:9\], expected one in \[0:4"),
        ("steps", ["tile 0 on 0 []"], r"steps\[0\]: got the box \[\], expected one in \[0:4\]"),
        ("steps", [3], r"steps\[0\]: got 3, expected a string"),
        ("steps", ["send 0 = 1 to 2"], r"plan.json: steps: step 0 .*tile 1 is not there yet"),
        ("target", "float32[5][R]", "target: got .*expected the shape and dtype of"),
        ("seconds", -1, "seconds: got -1, expected a number of at least 0"),
    ],
)
def test_a_malformed_transfer_names_the_field(field, value, error):
    with pytest.raises(errors.PlanFormatError, match=error):
        ReshardInfo.read(Node({**RESHARD, field: value}, "plan.json"), TensorReader())
