"""The whole table of styles, and which of its rows a fast run of the tests takes."""

from __future__ import annotations

import pytest

from exactness import (
    draws,
    evaluation,
    frameworks,
    language,
    layouts,
    losses,
    metrics,
    moe,
    optimizers,
    unusual,
    vision_and_contrastive,
)
from exactness.harness import STYLES, Style

MODULES = (
    losses,
    metrics,
    draws,
    optimizers,
    language,
    vision_and_contrastive,
    moe,
    frameworks,
    evaluation,
    layouts,
    unusual,
)


slow = pytest.mark.slow


def fast_count(style: Style) -> int:
    return max(count for count in style.counts if count <= 4)


def rows(make):
    """Parameters of all styles: `make` gives (value, whether it is fast) of a style's number."""
    return [
        pytest.param(name, value, marks=() if is_fast else slow, id=f"{name}-{value}")
        for number, (name, style) in enumerate(STYLES.items())
        for value, is_fast in make(number, style)
    ]
