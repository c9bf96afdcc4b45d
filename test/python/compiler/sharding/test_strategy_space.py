"""What strategies there are: even pieces only, and a case of the catalogue for every op."""

from __future__ import annotations

import re
from math import prod

import op_catalogue
import strategy_programs
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_programs import parse_spec

SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16])
MESHES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)


@st.composite
def modules(draw: st.DrawFn) -> str:
    """One op of dimensions that divide by this and that."""
    b, i, j, k = (draw(SIZES) for _ in range(4))
    if draw(st.booleans()):
        i *= k  # So that reshapes and groups have something to share.
    kinds = {
        "dot": (
            [f"{b}x{i}x{k}", f"{b}x{k}x{j}"],
            f"{b}x{i}x{j}",
            "stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1]",
        ),
        "merge": ([f"{b}x{i}x{j}"], f"{b * i}x{j}", "stablehlo.reshape %0"),
        "split": ([f"{b}x{i * j}"], f"{b}x{i}x{j}", "stablehlo.reshape %0"),
        "regroup": ([f"{i}x{j}"], f"{j}x{i}", "stablehlo.reshape %0"),
        "transpose": ([f"{b}x{i}x{j}"], f"{j}x{b}x{i}", "stablehlo.transpose %0, dims = [2, 0, 1]"),
        "broadcast": ([f"{i}x1"], f"{b}x{i}x{j}", "stablehlo.broadcast_in_dim %0, dims = [1, 2]"),
        "conv": (
            [f"{b}x{i * j}x8x8", f"{i * k}x{j}x2x2"],
            f"{b}x{i * k}x4x4",
            "stablehlo.convolution(%0, %1) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], "
            f"window = {{stride = [2, 2]}} {{batch_group_count = 1 : i64, "
            f"feature_group_count = {i} : i64}}",
        ),
    }
    operands, result, op = kinds[draw(st.sampled_from(sorted(kinds)))]
    arguments = ", ".join(f"%{n}: tensor<{type_}xf32>" for n, type_ in enumerate(operands))
    types = ", ".join(f"tensor<{type_}xf32>" for type_ in operands)
    return (
        f"func.func @main({arguments}) -> tensor<{result}xf32> {{\n"
        f"%r = {op} : ({types}) -> tensor<{result}xf32>\nreturn %r : tensor<{result}xf32>\n}}"
    )


@settings(max_examples=150, deadline=None)
@given(text=modules(), mesh=MESHES)
def test_pieces_are_even(text: str, mesh: list[int]) -> None:
    shape = ",".join(str(size) for size in mesh)
    applied = strategy_programs.opt(text, f"--alpa-test-apply-strategies=mesh-shape={shape}")
    heads = [line for line in applied.splitlines() if "func.func" in line]
    assert heads
    tensor = r"tensor<((?:\d+x)+)f32> \{alpa\.sharding = (#alpa\.sharding<[^>]*>)\}"
    for head in heads:
        found = re.findall(tensor, head)
        assert len(found) == head.count("tensor<")
        for sizes, sharding in found:
            spec = parse_spec(sharding)
            axes = [axis for dim in spec for axis in dim]
            assert len(set(axes)) == len(axes), head
            assert all(mesh[axis] > 1 for axis in axes), head
            for size, dim in zip(sizes.split("x")[:-1], spec, strict=True):
                assert int(size) % prod(mesh[axis] for axis in dim) == 0, head


def test_every_op_is_in_the_catalogue() -> None:
    """Of StableHLO and CHLO all that have a rule, but for those without tensors to compare."""
    listed = strategy_programs.opt(
        "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n"
        "%0 = chlo.square %x : tensor<f32> -> tensor<f32>\n"
        "%1 = stablehlo.negate %0 : tensor<f32>\nreturn %1 : tensor<f32>\n}",
        "--alpa-test-sharding-rule=coverage=true",
        "-o=/dev/null",
    )
    ruled = {
        name for kind, name in map(str.split, listed.splitlines()) if kind in ("split", "whole")
    }
    cases = [case for family in op_catalogue.FAMILIES for case in op_catalogue.load(family)]
    tested = {
        name for case in cases for name in re.findall(r"\b(?:stablehlo|chlo)\.\w+", case.text)
    }
    assert ruled - tested == {
        "stablehlo.after_all",
        "stablehlo.composite",
        "stablehlo.create_token",
        "stablehlo.get_tuple_element",
        "stablehlo.rng",
        "stablehlo.tuple",
    }
