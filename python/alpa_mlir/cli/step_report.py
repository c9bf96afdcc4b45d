"""What a run shows of its steps: a bar, seconds, and results that are numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 10


@dataclass
class StepReport:
    """Seconds and results of the steps, with a bar."""

    first: int
    steps: int
    quiet: bool
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    begin: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.bar: Any = None
        if not self.quiet:
            from tqdm import tqdm

            self.bar = tqdm(total=self.steps, initial=self.first, desc="running", unit="step")

    def add(self, number: int, results: dict[str, Any]) -> None:
        """A step whose results are on the host."""
        now = time.perf_counter()
        found = _scalars(results)
        self.rows.append({"step": number, "seconds": now - self.begin, "results": found})
        self.begin = now
        if self.bar is not None:
            self.bar.set_postfix_str(_results_text(found), refresh=False)
            self.bar.update(number + 1 - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    @property
    def step_seconds(self) -> float | None:
        """Of a step; the first one does what is done once."""
        later = sorted(row["seconds"] for row in self.rows[1:])
        return later[len(later) // 2] if later else None

    def as_text(self) -> str:
        from alpa_runtime.plan.text import seconds_text

        size = len(self.rows)
        chosen = sorted({round(i * (size - 1) / max(1, _SHOWN - 1)) for i in range(_SHOWN)})
        lines = [
            f"step {row['step']}: {_results_text(row['results'])}, {seconds_text(row['seconds'])}"
            for row in (self.rows[i] for i in chosen if i < size)
        ]
        if self.step_seconds is not None:
            lines.append(f"a step takes {seconds_text(self.step_seconds)} (median)")
        return "\n".join(lines)


def _scalars(results: dict[str, Any]) -> dict[str, float]:
    """The results that are one real number, by what tells them apart."""
    import numpy as np

    found = {
        name: float(value)
        for name, value in results.items()
        if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiub"
    }
    short = {name: _short(name) for name in found}
    is_clear = len(set(short.values())) == len(short)
    return {short[name] if is_clear else name: value for name, value in found.items()}


def _short(name: str) -> str:
    """`loss` of `result[1]['loss']`, if the name ends so."""
    last = name.rpartition("[")[2].strip("]'\"")
    return last if last.isidentifier() else name.rpartition(".")[2]


def _results_text(results: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in results.items()) or "done"
