"""One-op StableHLO modules: every op that can be split, in the forms its attributes give it.

They stand in `support/Inputs/ops/*.mlir`, each behind a line `// CASE name rtol=.. arg0=..`, where
`arg<i>` says how argument `i` is drawn, if not at random. Sizes divide by eight where splitting
is the point, so that both axes of a 2x4 mesh fit one dimension; others make uneven pieces.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from source_paths import SUPPORT

FOLDER = SUPPORT / "Inputs" / "ops"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.mlir"))
DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "i1": np.bool_,
    "i8": np.int8,
    "i32": np.int32,
    "ui8": np.uint8,
    "ui32": np.uint32,
    "ui64": np.uint64,
    "complex<f32>": np.complex64,
}
Draw = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Case:
    """A module whose `@main` ends in the op to split; all other ops of it make constants."""

    name: str
    text: str
    rtol: float = 1e-5
    draws: Mapping[int, str] = field(default_factory=dict)

    def types(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the arguments and of the results."""
        head = next(line for line in self.text.splitlines() if "func.func" in line)
        arguments, _, results = head.partition(" -> ")
        found = [tuple(re.findall(r"tensor<(?:[^<>]|<[^>]*>)*>", s)) for s in (arguments, results)]
        return found[0], found[1]

    def inputs(self) -> list[np.ndarray]:
        """The same numbers on every call: one array for each argument."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        arrays: list[np.ndarray] = []
        for number, type_ in enumerate(self.types()[0]):
            sizes, element = re.fullmatch(r"tensor<((?:\d+x)*)(.*)>", type_).groups()  # pyright: ignore
            shape = tuple(int(size) for size in sizes.split("x")[:-1])
            name, _, rest = self.draws.get(number, "normal").partition("(")
            given = [float(x) for x in rest.rstrip(")").split(",") if x]
            arrays.append(DRAWS[name](rng, shape, DTYPES[element], *given))
        return arrays


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Around zero; small where integers."""
    if dtype is np.bool_:
        return rng.random(shape) < 0.5
    if np.issubdtype(dtype, np.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -9
        return rng.integers(low, 10, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def between(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, low: float, high: float
) -> np.ndarray:
    """From `low` on and below `high`."""
    if np.issubdtype(dtype, np.integer):
        return rng.integers(int(low), int(high), shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def integers(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, low: float, high: float
) -> np.ndarray:
    """Whole numbers, whatever the type."""
    return rng.integers(int(low), int(high), shape).astype(dtype)


def definite(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Well-conditioned symmetric matrices."""
    half = rng.standard_normal(shape).astype(dtype)
    return half @ np.swapaxes(half, -1, -2) + shape[-1] * np.eye(shape[-1], dtype=dtype)


def permuted(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, high: float
) -> np.ndarray:
    """Each number below `high` at most once."""
    return rng.permutation(int(high))[: int(np.prod(shape))].reshape(shape).astype(dtype)


def groups(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, total: float
) -> np.ndarray:
    """Uneven sizes of four groups, one of them empty."""
    assert shape == (4,)
    return np.array([3, 0, int(total) - 5, 2], dtype)


def full(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, value: float) -> np.ndarray:
    return np.full(shape, value, dtype)


DRAWS: dict[str, Draw] = {
    "normal": normal,
    "between": between,
    "integers": integers,
    "definite": definite,
    "permuted": permuted,
    "groups": groups,
    "full": full,
}


def load(family: str) -> list[Case]:
    """The cases of `Inputs/ops/<family>.mlir`."""
    cases: list[Case] = []
    for part in (FOLDER / f"{family}.mlir").read_text().split("// CASE ")[1:]:
        head, _, text = part.partition("\n")
        name, *options = head.split()
        given = dict(option.split("=") for option in options)
        rtol = float(given.pop("rtol", "1e-5"))
        draws = {int(key.removeprefix("arg")): draw for key, draw in given.items()}
        cases.append(Case(name, text, rtol, draws))
    return cases
