"""Long runs of the comparisons with enumeration that the compiler's tests make shorter."""

from __future__ import annotations

import subprocess

import pytest
from source_paths import BUILD

PROGRAM = BUILD / "bin" / "solver-oracle-test"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "problems", "kind"),
    [
        ("built-in", 500_000, "--falling=0"),
        ("built-in", 500_000, "--falling"),
        ("highs", 4000, "--falling=0"),
    ],
)
def test_many_small_problems_equal_enumeration(method: str, problems: int, kind: str) -> None:
    if method == "highs":
        pytest.importorskip("highspy")
    done = subprocess.run(
        [PROGRAM, f"--method={method}", f"--problems={problems}", kind, "--seed=1000000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{problems} problems equal enumeration")
