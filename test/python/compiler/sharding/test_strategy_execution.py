"""Every strategy that the compiler can choose for an op computes what the whole op computes.

Each op of the catalogue is split by every assignment of mesh axes that its sharding rule
allows, and by every scattered sum. The program that the compiler makes for one device, and the
annotated one of which XLA's partitioner makes it, run on every device of the mesh, and what each
device gets is compared with its part of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import op_catalogue
import pytest
import strategy_programs
from op_catalogue import Case
from strategy_programs import Program

PER_BATCH = 48  # Programs that are compiled as one.


def whole_results(cases: Sequence[Case]) -> list[list[np.ndarray]]:
    """Of the unsplit ops, on one device."""
    batch: list[Program] = []
    for case in cases:
        text = case.text
        if "alpa." in text or "custom_call" in text:  # Without the module around.
            text = "\n".join(
                strategy_programs.opt(text, *strategy_programs.EXPAND).strip().splitlines()[1:-1]
            )
        text = text.replace("func.func @main", "func.func private @NAME")
        batch.append(Program(case.name, text, *case.types(), (), ()))
    inputs = [[[array] for array in case.inputs()] for case in cases]
    out = strategy_programs.execute(batch, inputs, 1)
    return [[parts[0] for parts in results] for results in out]


def differences(
    case: Case,
    program: Program,
    got: list[list[np.ndarray]],
    want: list[np.ndarray],
    mesh: Sequence[int],
) -> list[str]:
    found: list[str] = []
    where = f"{case.name}, {program.label}: {program.arg_specs} -> {program.result_specs}"
    for i, (parts, whole, spec) in enumerate(zip(got, want, program.result_specs, strict=True)):
        for part, place in zip(parts, strategy_programs.coordinates(mesh), strict=True):
            expected = strategy_programs.piece(whole, spec, mesh, place)
            problem = ""
            if part.shape != expected.shape:
                problem = f"has shape {part.shape}"
            elif not same(part, expected, case.rtol):
                problem = f"is wrong, first {first_difference(part, expected)}"
            if problem:
                found.append(f"{where}: result {i} at {place} {problem}")
                break
    return found


def first_difference(got: np.ndarray, want: np.ndarray) -> str:
    at = np.unravel_index(np.argmax(got != want), want.shape)
    return f"{got[at]} for {want[at]} at {[int(i) for i in at]}"


def same(got: np.ndarray, want: np.ndarray, rtol: float) -> bool:
    if not np.issubdtype(want.dtype, np.inexact) and want.dtype.kind != "V":
        return np.array_equal(got, want)
    wide = np.complex128 if np.issubdtype(want.dtype, np.complexfloating) else np.float64
    got, want = got.astype(wide), want.astype(wide)
    scale = np.max(np.abs(want), initial=0, where=np.isfinite(want))
    return np.allclose(got, want, rtol=rtol, atol=rtol * float(scale), equal_nan=True)


def check(
    cases: Sequence[Case],
    mesh: Sequence[int],
    every: int = 1,
    passes: Sequence[str] = strategy_programs.COLLECTIVES,
) -> int:
    """Runs every `every`-th strategy of each case; returns how many ran."""
    shape = ",".join(str(size) for size in mesh)
    todo: list[tuple[Case, Program, list[np.ndarray], list[np.ndarray]]] = []
    for number, (case, want) in enumerate(zip(cases, whole_results(cases), strict=True)):
        text = strategy_programs.opt(case.text, f"--alpa-test-apply-strategies=mesh-shape={shape}")
        found = strategy_programs.programs(text, passes)
        inputs = case.inputs()
        # Another start for each case, so that cases alike are split in all ways together.
        todo += [(case, item, inputs, want) for item in found[number % every :: every]]
    problems: list[str] = []
    for start in range(0, len(todo), PER_BATCH):
        batch = todo[start : start + PER_BATCH]
        found = check_batch(batch, mesh)
        # A wrong rule is wrong again. XLA for CPUs sorts a column of pairs wrongly now and then,
        # of whole tensors and of parts, so that what was expected is computed again, too.
        for _ in range(4):
            if found:
                wants = whole_results([case for case, *_ in batch])
                batch = [(*given, want) for (*given, _), want in zip(batch, wants, strict=True)]
                again = check_batch(batch, mesh)
                found = [problem for problem in found if problem in again]
        problems += found
    assert not problems, f"{len(problems)} of {len(todo)}:\n" + "\n".join(problems[:20])
    return len(todo)


def check_batch(
    batch: Sequence[tuple[Case, Program, list[np.ndarray], list[np.ndarray]]], mesh: Sequence[int]
) -> list[str]:
    places = strategy_programs.coordinates(mesh)
    cut = [
        [
            [strategy_programs.piece(array, spec, mesh, place) for place in places]
            for array, spec in zip(inputs, item.arg_specs, strict=True)
        ]
        for _, item, inputs, _ in batch
    ]
    out = strategy_programs.execute([item for _, item, _, _ in batch], cut, len(places))
    problems: list[str] = []
    for (case, item, _, want), got in zip(batch, out, strict=True):
        problems += differences(case, item, got, want, mesh)
    return problems


# The many elementwise ops have one rule.
SAMPLED = {"elementwise": 4}


@pytest.mark.parametrize("family", op_catalogue.FAMILIES)
def test_strategies_on_2x2(family: str) -> None:
    assert check(op_catalogue.load(family), (2, 2), SAMPLED.get(family, 1)) > 0


@pytest.mark.parametrize("family", op_catalogue.FAMILIES)
def test_some_strategies_on_2x4(family: str) -> None:
    assert check(op_catalogue.load(family), (2, 4), 12) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 2), (2, 4), (2, 2, 2)])
@pytest.mark.parametrize("family", op_catalogue.FAMILIES)
def test_all_strategies(family: str, mesh: tuple[int, ...]) -> None:
    assert check(op_catalogue.load(family), mesh) > 0


# XLA's importer of annotated programs lacks the op; and what a CPU has no kernels for is expanded
# before ops are split.
NOT_ANNOTATED = {"mulhi", "te_quantize"}


def annotated(family: str) -> list[Case]:
    return [case for case in op_catalogue.load(family) if case.name not in NOT_ANNOTATED]


@pytest.mark.parametrize("family", op_catalogue.FAMILIES)
def test_partitioner_on_2x2(family: str) -> None:
    every = 3 * SAMPLED.get(family, 1)
    assert check(annotated(family), (2, 2), every, strategy_programs.SHARDY) > 0


@pytest.mark.parametrize("family", op_catalogue.FAMILIES)
def test_partitioner_on_2x4(family: str) -> None:
    assert check(annotated(family), (2, 4), 12, strategy_programs.SHARDY) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 2), (2, 4), (2, 2, 2)])
@pytest.mark.parametrize("family", op_catalogue.FAMILIES)
def test_all_strategies_by_the_partitioner(family: str, mesh: tuple[int, ...]) -> None:
    assert check(annotated(family), mesh, passes=strategy_programs.SHARDY) > 0


def test_random_numbers_are_the_same_on_every_device() -> None:
    """Numbers of a hidden state, of which every device has its own."""
    text = """func.func @main(%a: tensor<f32>, %b: tensor<f32>, %s: tensor<2xi64>)
        -> tensor<8x8xf32> {
      %0 = stablehlo.rng %a, %b, %s, distribution = UNIFORM
          : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }"""
    (program,) = strategy_programs.programs(
        strategy_programs.opt(text, "--alpa-test-apply-strategies=mesh-shape=2,2")
    )
    arguments = (np.float32(1), np.float32(2), np.array([8, 8], np.int64))
    ((parts,),) = strategy_programs.execute([program], [[[x] * 4 for x in arguments]], 4)
    for part in parts:
        np.testing.assert_array_equal(part, parts[0])
    assert np.all((parts[0] >= 1) & (parts[0] < 2))
    assert len(np.unique(parts[0])) > 32
