"""Lowered programs of one device, run on every device, equal the whole program.

Shardings are written short: `@A[S0, R]` on an argument or result, `@S[S0, R]` on an op
(several results: `@S[S0] [S1]`), and `@S[S0, R] <- [S0, S1] [S1, R]` with what the op
wants of its operands.
"""

# ruff: noqa: E501 (ops in their textual form are long lines)

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import per_device
import pytest
from alpa_mlir.compiler import Module
from alpa_runtime.backends.xla import compile_text
from alpa_runtime.execution.compilation import split_functions

_SPEC = r"\[(?:[RS]\d*(?:, [RS]\d*)*)?\]"
_MARK = re.compile(rf"( attributes)? ?@([AS])({_SPEC}(?: {_SPEC})*)(?: <- ({_SPEC}(?: {_SPEC})*))?")


def _attributes(match: re.Match[str]) -> str:
    def specs(text: str) -> str:
        return ", ".join(f"#alpa.sharding<{spec}>" for spec in re.findall(_SPEC, text))

    if match[2] == "A":
        return f" {{alpa.sharding = {specs(match[3])}}}"
    uses = f", alpa.use_shardings = [{specs(match[4])}]" if match[4] else ""
    return f"{match[1] or ''} {{alpa.shardings = [{specs(match[3])}]{uses}}}"


def _arguments(function: str) -> list[np.ndarray]:
    """Random arrays of the argument types; integers may lie out of bounds."""
    rng = np.random.default_rng(0)
    arrays: list[np.ndarray] = []
    for shape, dtype in re.findall(r"tensor<((?:\d+x)*)(\w+)>", function.split("->")[0]):
        dims = [int(n) for n in shape.split("x") if n]
        if dtype.startswith("f"):
            arrays.append(rng.standard_normal(dims).astype(f"float{dtype[1:]}"))
        elif dtype == "i1":
            arrays.append(rng.integers(0, 2, dims).astype(bool))
        elif dtype[0] == "u":
            arrays.append(rng.integers(0, 12, dims).astype(f"uint{dtype[2:]}"))
        else:
            arrays.append(rng.integers(-3, 12, dims).astype(f"int{dtype[1:]}"))
    return arrays


def _sharded(function: str, mesh: tuple[int, ...], cluster: str = "") -> str:
    devices = ", ".join(str(i) for i in range(int(np.prod(mesh))))
    head = f"alpa.mesh = #alpa.mesh<shape = {list(mesh)}, devices = [{devices}]>"
    if cluster:
        head += f", alpa.cluster = {json.dumps(cluster)}"
    return f"module attributes {{{head}}} {{\n{_MARK.sub(_attributes, function)}\n}}"


def check(
    function: str,
    mesh: tuple[int, ...],
    *collectives: str,
    passes: str = per_device.LOWERING,
    cluster: str = "",
) -> str:
    """Lowered and whole program agree; the lowered one has just these collectives."""
    lowered = Module(_sharded(function, mesh, cluster)).run(passes).as_text()
    found = re.findall(r"stablehlo\.(all_\w+|reduce_scatter|collective_permute)", lowered)
    assert sorted(found) == sorted(collectives), lowered
    arguments = _arguments(function)
    got = per_device.execute(lowered, mesh, arguments)
    (whole,) = split_functions(f"module {{\n{_MARK.sub('', function)}\n}}", {}, "whole").values()
    program = compile_text(whole.text, per_device.mesh_of((1, 1)))
    shards = program.execute_sharded(
        [per_device.put_whole(x) for x in arguments]
    ).disassemble_into_single_device_arrays()
    for want, have in zip(shards, got, strict=True):
        np.testing.assert_allclose(have, np.asarray(want[0]), rtol=1e-5, atol=1e-5)
    return lowered


def test_dots_in_one_chain() -> None:
    """Megatron's way: columns, then rows, with one all-reduce."""
    check(
        """func.func public @main(%x: tensor<8x16xf32> @A[S0, R], %v: tensor<16x32xf32> @A[R, S1],
             %w: tensor<32x16xf32> @A[S1, R]) -> tensor<8x16xf32> {
           %0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] @S[S0, S1] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
           %1 = stablehlo.tanh %0 @S[S0, S1] : tensor<8x32xf32>
           %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] @S[S0, R] : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
           return %2 : tensor<8x16xf32>
         }""",
        (2, 2),
        "all_reduce",
    )


def test_scattered_sum() -> None:
    check(
        """func.func public @main(%x: tensor<8x16xf32> @A[R, S01], %w: tensor<16x32xf32> @A[S01, R]) -> tensor<8x32xf32> {
           %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] @S[S0, S1] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
           return %0 : tensor<8x32xf32>
         }""",
        (2, 2),
        "reduce_scatter",
        "reduce_scatter",
    )


# Devices whose links are so slow that pieces pay.
PIECES = """
device_types:
  d: {memory_bytes: 1GiB, memory_bandwidth: 1e12, peak_flops: {float32: 1e9}, overlap_slowdown: 0.1,
      collective_matmul: true}
hosts: {devices: 8, device_type: d}
links: {intra_host: {bandwidth: 1e6, latency: 0}, inter_host: {bandwidth: 1e6, latency: 0}}
"""


@pytest.mark.parametrize("mesh", [(2, 4), (4, 2), (1, 8)])
def test_gathers_beside_dots(mesh: tuple[int, ...]) -> None:
    """One ring for both dots; the third contracts what is gathered and takes it whole."""
    check(
        """func.func public @main(%x: tensor<4x16x8xf32> @A[S0, S1, R], %v: tensor<8x16xf32> @A[R, S1], %w: tensor<24x8xf32> @A[S1, R])
             -> (tensor<4x16x16xf32>, tensor<4x16x24xf32>, tensor<8x16xf32>) {
           %0 = stablehlo.dot_general %x, %v, contracting_dims = [2] x [0] @S[S0, R, S1] <- [S0, R, R] [R, S1] : (tensor<4x16x8xf32>, tensor<8x16xf32>) -> tensor<4x16x16xf32>
           %1 = stablehlo.dot_general %x, %0, contracting_dims = [0, 1] x [0, 1] @S[R, S1] <- [S0, R, R] [S0, R, S1] : (tensor<4x16x8xf32>, tensor<4x16x16xf32>) -> tensor<8x16xf32>
           %2 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [1] @S[S0, R, S1] <- [S0, R, R] [S1, R] : (tensor<4x16x8xf32>, tensor<24x8xf32>) -> tensor<4x16x24xf32>
           return %0, %2, %1 : tensor<4x16x16xf32>, tensor<4x16x24xf32>, tensor<8x16xf32>
         }""",
        mesh,
        *["collective_permute"] * (mesh[1] - 1),
        *["all_reduce"] * (mesh[0] > 1),
        cluster=PIECES,
    )


@pytest.mark.parametrize(("dim", "mesh"), [(0, (2, 4)), (1, (2, 4)), (1, (4, 2)), (0, (1, 8))])
def test_scatters_beside_dots(dim: int, mesh: tuple[int, ...]) -> None:
    """Rows or columns of the result; also what is gathered on the right."""
    result = ["S1, R", "R, S1"][dim]
    check(
        f"""func.func public @main(%x: tensor<16x32xf32> @A[R, S1], %w: tensor<32x8xf32> @A[S1, R], %y: tensor<8x16xf32> @A[S0, R]) -> (tensor<16x8xf32>, tensor<8x32xf32>) {{
           %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] @S[{result}] : (tensor<16x32xf32>, tensor<32x8xf32>) -> tensor<16x8xf32>
           %1 = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0] @S[S0, R] <- [S0, R] [R, R] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
           return %0, %1 : tensor<16x8xf32>, tensor<8x32xf32>
         }}""",
        mesh,
        *["collective_permute"] * (2 * (mesh[1] - 1)),
        cluster=PIECES,
    )


def test_dots_of_each_other_share_no_ring() -> None:
    """The second dot multiplies what the first gives with what both gather."""
    check(
        """func.func public @main(%x: tensor<8x8xf32> @A[S0, R], %v: tensor<8x8xf32> @A[R, R]) -> (tensor<8x8xf32>) {
           %0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] @S[R, R] <- [R, R] [R, R] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
           %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] @S[R, R] <- [R, R] [R, R] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
           %2 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] @S[R, R] <- [R, R] [R, R] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
           %3 = stablehlo.add %1, %2 @S[R, R] : tensor<8x8xf32>
           return %3 : tensor<8x8xf32>
         }""",
        (4,),
        *["collective_permute"] * 3,
        cluster=PIECES,
    )


@pytest.mark.parametrize("mesh", [(2, 2), (1, 4), (2, 4), (2, 2, 2)])
@pytest.mark.parametrize("body", ["add", "multiply", "maximum", "minimum"])
def test_initial_value_counts_once(mesh: tuple[int, ...], body: str) -> None:
    spec = "[S01, R]" if len(mesh) == 2 else "[S02, S1]"
    summed = 2 if len(mesh) == 2 and mesh[0] > 1 else len(mesh) if len(mesh) == 3 else 1
    result = "[R]" if len(mesh) == 2 else "[S1]"
    check(
        f"""func.func public @main(%x: tensor<8x4xf32> @A{spec}, %c: tensor<f32>) -> tensor<4xf32> {{
           %0 = stablehlo.reduce(%x init: %c) applies stablehlo.{body} across dimensions = [0] @S{result} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
           return %0 : tensor<4xf32>
         }}""",
        mesh,
        *["all_reduce"] * (summed if len(mesh) == 2 else 2),
    )


def test_iota_and_constant_know_their_part() -> None:
    check(
        """func.func public @main() -> (tensor<8x4xi32>, tensor<8x2xf32>) {
           %0 = stablehlo.iota dim = 0 @S[S10, R] : tensor<8x4xi32>
           %1 = stablehlo.constant @S[S01, R] dense<[[1., 2.], [3., 4.], [5., 6.], [7., 8.], [9., 10.], [11., 12.], [13., 14.], [15., 16.]]> : tensor<8x2xf32>
           return %0, %1 : tensor<8x4xi32>, tensor<8x2xf32>
         }""",
        (2, 2),
    )


def test_gather_from_split_rows() -> None:
    """Rows that a device lacks are zero in its sum; indices out of bounds are clamped."""
    check(
        """func.func public @main(%t: tensor<8x4xf32> @A[S0, R], %i: tensor<6x1xi32> @A[S1, R]) -> tensor<6x4xf32> {
           %0 = "stablehlo.gather"(%t, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> @S[S1, R] : (tensor<8x4xf32>, tensor<6x1xi32>) -> tensor<6x4xf32>
           return %0 : tensor<6x4xf32>
         }""",
        (4, 2),
        "all_reduce",
    )


@pytest.mark.parametrize("index", ["i32", "ui32", "i8", "ui8"])
def test_gather_along_two_split_dimensions(index: str) -> None:
    check(
        f"""func.func public @main(%t: tensor<8x4x6xf32> @A[S0, S1, R], %i: tensor<5x2x{index}>) -> tensor<5x6xf32> {{
           %0 = "stablehlo.gather"(%t, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [1, 0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 6>}}> @S[R, R] : (tensor<8x4x6xf32>, tensor<5x2x{index}>) -> tensor<5x6xf32>
           return %0 : tensor<5x6xf32>
         }}""",
        (2, 2),
        "all_reduce",
        "all_reduce",
    )


def _scatter(out: str, table: str, indices: str, updates: str) -> str:
    return f"""func.func public @main(%t: tensor<8x4xf32> @A{table}, %i: tensor<6x1xi32> @A{indices}, %u: tensor<6x4xf32> @A{updates}) -> tensor<8x4xf32> {{
           %0 = "stablehlo.scatter"(%t, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
           ^bb0(%a: tensor<f32>, %b: tensor<f32>):
             %s = stablehlo.add %a, %b : tensor<f32>
             stablehlo.return %s : tensor<f32>
           }}) @S{out} : (tensor<8x4xf32>, tensor<6x1xi32>, tensor<6x4xf32>) -> tensor<8x4xf32>
           return %0 : tensor<8x4xf32>
         }}"""


def test_scatter_into_split_rows() -> None:
    check(_scatter("[S0, S1]", "[S0, S1]", "[R, R]", "[R, S1]"), (2, 2))


def test_scatter_of_split_updates_adds_the_input_once() -> None:
    check(_scatter("[R, S1]", "[R, S1]", "[S0, R]", "[S0, S1]"), (2, 2), "all_reduce")


def test_loop_over_split_values() -> None:
    """The body is split as its carried values are; its sums are completed inside."""
    check(
        """func.func public @main(%x: tensor<8x16xf32> @A[S0, S1], %w: tensor<16x16xf32> @A[S1, R]) -> tensor<8x16xf32> {
           %c = stablehlo.constant dense<0> : tensor<i32>
           %0:3 = stablehlo.while(%i = %c, %a = %x, %b = %w) : tensor<i32>, tensor<8x16xf32>, tensor<16x16xf32> attributes @S[] [S0, R] [R, R] <- [] [S0, R] [R, R]
            cond {
             %n = stablehlo.constant dense<3> : tensor<i32>
             %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %p : tensor<i1>
           } do {
             %k = stablehlo.iota dim = 0 : tensor<8x16xf32>
             %d = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
             %e = stablehlo.add %d, %k : tensor<8x16xf32>
             %t = stablehlo.tanh %e : tensor<8x16xf32>
             %o = stablehlo.constant dense<1> : tensor<i32>
             %j = stablehlo.add %i, %o : tensor<i32>
             stablehlo.return %j, %t, %b : tensor<i32>, tensor<8x16xf32>, tensor<16x16xf32>
           }
           return %0#1 : tensor<8x16xf32>
         }""",
        (2, 2),
        "all_gather",
        "all_gather",
    )


_OPTIMIZED = per_device.LOWERING.replace("reshards,", "reshards,alpa-optimize-collectives,")


@pytest.mark.parametrize(
    ("passes", "collectives"),
    [(per_device.LOWERING, ["all_reduce"]), (_OPTIMIZED, ["reduce_scatter", "all_gather"])],
)
def test_update_of_split_state(passes: str, collectives: list[str]) -> None:
    """Scattered gradients, momentum held in parts and gathered parameters change no number."""
    check(
        """func.func public @main(%w: tensor<8x16xf32> {alpa.carried_by = 0 : i64}, %m: tensor<8x16xf32> {alpa.carried_by = 1 : i64}, %x: tensor<4x8xf32> @A[S0, R]) -> (tensor<8x16xf32>, tensor<8x16xf32>) {
           %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] @S[S0, R] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
           %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] @S[R, R] : (tensor<4x8xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
           %0 = stablehlo.add %m, %g @S[R, R] : tensor<8x16xf32>
           %1 = stablehlo.subtract %w, %0 @S[R, R] : tensor<8x16xf32>
           return %1, %0 : tensor<8x16xf32>, tensor<8x16xf32>
         }""",
        (4,),
        *collectives,
        passes=passes,
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("mesh", [(2, 2), (4, 2), (2, 2, 2)])
def test_all_reshards(mesh: tuple[int, ...]) -> None:
    """From every spec of a matrix to every other, with the steps that the path lists."""
    axes = range(len(mesh))
    specs = {
        "[" + ", ".join("S" + "".join(map(str, d)) if d else "R" for d in dims) + "]"
        for places in itertools.product((None, 0, 1), repeat=len(mesh))
        for dims in [[[a for a in axes if places[a] == dim] for dim in (0, 1)]]
    }
    listed = sorted(specs)
    for source in listed:
        results = ", ".join(f"tensor<8x16xf32> @A{spec}" for spec in listed)
        types = ", ".join("tensor<8x16xf32>" for _ in listed)
        values = ", ".join("%x" for _ in listed)
        function = f"""func.func public @main(%x: tensor<8x16xf32> @A{source}) -> ({results}) {{
           return {values} : {types}
         }}"""
        explicit = Module(_sharded(function, mesh)).run("alpa-insert-reshards").as_text()
        check(function, mesh, *_collectives_of(explicit))


def _collectives_of(text: str) -> list[str]:
    """One for each step of each reshard that is more than a slice."""
    found: list[str] = []
    for attributes in re.findall(r"alpa\.reshard .*", text):
        now, *through = [
            [re.findall(r"\d", dim) for dim in spec.strip("[]").split(", ")]
            for spec in _in_order(attributes)
        ]
        for after in through:
            left = [sorted(a for dim in spec for a in dim) for spec in (now, after)]
            pieces = [[len(dim) for dim in spec] for spec in (now, after)]
            if len(left[0]) > len(left[1]):
                found.append("all_gather")
            elif len(left[0]) == len(left[1]):
                moved = left[0] == left[1] and pieces[0] != pieces[1]
                found.append("all_to_all" if moved else "collective_permute")
            now = after
    return found


def _in_order(attributes: str) -> list[str]:
    first = re.findall(rf"from = #alpa.sharding<({_SPEC})>", attributes)
    inner = re.findall(r"through = \[(.*?)>\]", attributes)
    middle = re.findall(rf"<({_SPEC})", inner[0]) if inner else []
    return first + middle + re.findall(rf" to = #alpa.sharding<({_SPEC})>", attributes)
