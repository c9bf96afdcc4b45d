"""Parts of a model by its own names: module paths of its weights, as flax, equinox or plain trees
have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from alpa_runtime.plan.stage import StageInfo
from alpa_runtime.plan.text import ranges_text


class Plan(Protocol):
    """What is read of an `alpa_runtime.plan.Plan`."""

    @property
    def stages(self) -> tuple[StageInfo, ...]: ...


_TOKEN = re.compile(r"\['([^']*)'\]|\[(\d+)\]|(\w+)")
_MOST = 4

Path = tuple[str, ...]


def _path(name: str) -> Path:
    """`state['layers'][3]['up']` as `state`, `layers`, `[3]`, `up`."""
    return tuple(
        f"[{number}]" if number else key or word
        for key, number, word in (match.groups() for match in _TOKEN.finditer(name))
    )


class Modules:
    """The modules of a model, by the names of all its weights.

    A module is what stands behind the part that all names share, up to the first number: a block of
    layers that repeat, or a part that stands alone.

    Example:
        >>> modules = Modules(["p['emb']['w']", "p['layers'][0]['up']", "p['layers'][1]['up']"])
        >>> modules.of("p['layers'][1]['up']")
        'layers[1]'
        >>> modules.text(["p['layers'][0]['up']", "p['layers'][1]['up']", "p['emb']['w']"])
        'layers[0-1], emb'
    """

    def __init__(self, names: Iterable[str]) -> None:
        paths = [_path(name) for name in names]
        shared = 0
        for parts in zip(*(path[:-1] for path in paths), strict=False):
            if len(set(parts)) > 1:
                break
            shared += 1
        if shared and any(path[shared].startswith("[") for path in paths):
            shared -= 1
        self._shared = shared

    def of(self, name: str) -> str:
        """The module of a weight."""
        path = _path(name)[self._shared :] or (name,)
        end = next((i for i, part in enumerate(path) if re.search(r"\d", part)), 0)
        return "".join(
            part if part.startswith("[") or not i else f".{part}"
            for i, part in enumerate(path[: end + 1])
        )

    def text(self, names: Iterable[str], most: int = _MOST) -> str:
        """The modules of some weights, ranges of numbers as one; of many only the first."""
        numbers: dict[tuple[str, str], set[int]] = {}
        alone: dict[str, None] = {}
        for name in names:
            module = self.of(name)
            match = re.fullmatch(r"(.*?)(\d+)(\]?)", module)
            if match is None:
                alone[module] = None
            else:
                numbers.setdefault((match[1], match[3]), set()).add(int(match[2]))
        parts = [
            f"{before}{ranges_text(run)}{after}"
            for (before, after), found in numbers.items()
            for run in _runs(sorted(found))
        ]
        parts += alone
        left = len(parts) - most
        return ", ".join(parts[:most]) + (f" and {left} more" if left > 0 else "")


def _runs(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [tuple(run) for run in runs]


def modules_of(plan: Plan) -> Modules:
    """The modules of a plan's weights."""
    return Modules(weight.name for stage in plan.stages for weight in stage.weights)


def stage_modules(plan: Plan) -> list[str]:
    """The modules of each stage's weights, in words; empty for a stage without any."""
    modules = modules_of(plan)
    return [modules.text(weight.name for weight in stage.weights) for stage in plan.stages]
