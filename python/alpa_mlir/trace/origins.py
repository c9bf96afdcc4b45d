"""What values in a loss are made of: weights, of which its gradient is taken, or data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from alpa_runtime import jax_internals

from alpa_mlir.trace.jaxprs import Values, is_literal


class Origin(NamedTuple):
    """What a value in a loss is made of.

    Attributes:
        is_weights: of weights alone, or of nothing.
        has_weights: of weights, whatever else.
    """

    is_weights: bool
    has_weights: bool


DATA = Origin(is_weights=False, has_weights=False)
WEIGHTS = Origin(is_weights=True, has_weights=True)
MIXED = Origin(is_weights=False, has_weights=True)
NOTHING = Origin(is_weights=True, has_weights=False)


def origins(eqn: Any, made: Values) -> list[Origin]:
    """Those of an equation's operands."""
    found = zip(eqn.invars, made.read(eqn.invars), strict=True)
    return [NOTHING if is_literal(v) else origin for v, origin in found]


def joined(sources: Sequence[Origin]) -> Origin:
    """That of what is made of others."""
    return Origin(all(x.is_weights for x in sources), any(x.has_weights for x in sources))


def is_over_layers(scan: Any, sources: Sequence[Origin]) -> bool:
    """Whether a scan takes other matrices that are made of weights alone in each iteration."""
    rows = sum(jax_internals.scan_operands(scan))
    taken = zip(scan.invars[rows:], sources[rows:], strict=True)
    return any(origin.is_weights and len(operand.aval.shape) > 2 for operand, origin in taken)
