"""Long runs of the damaged inputs that test/fuzz/parsers.test tries a few of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jax
import pytest
import zoo
from alpa_mlir.compiler import Module
from alpa_mlir.errors import PassError
from alpa_mlir.trace.tracing import trace
from source_paths import BUILD, ROOT

CLUSTERS = [ROOT / "examples/cluster_2x4.yaml", ROOT / "test/sharding/Inputs/cluster.yaml"]
PROBLEMS = [ROOT / "test/fuzz/Inputs/problem.json"]
MODULES = sorted((ROOT / "test").glob("*/*.mlir"))
ZOO = ("mlp", "embedding", "sort_top_k", "while_cond", "kv_cache", "cumsum", "dropout", "moe")


def write_training_steps(folder: Path) -> list[Path]:
    """Steps of the zoo, as the tracer hands them over and after import."""
    files: list[Path] = []
    for name in ZOO:
        model = zoo.get(name)
        traced = trace(model.step, *jax.eval_shape(model.init))
        module = Module(traced.text, name).annotate(traced.signature.to_json())
        for stage in ("traced", "imported"):
            if stage == "imported":
                module.run("alpa-import")
            files.append(folder / f"{name}.{stage}.mlir")
            files[-1].write_text(module.as_text())
    return files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "files", "runs"),
    [
        ("problem", PROBLEMS, 300_000),
        ("solution", PROBLEMS, 200_000),
        ("cluster", CLUSTERS, 150_000),
        ("profile", [ROOT / "test/fuzz/Inputs/profile.yaml"], 150_000),
        ("module", MODULES, 150_000),
        ("module", [], 5000),
    ],
)
def test_no_damaged_input_ends_the_process(
    kind: str, files: list[Path], runs: int, tmp_path: Path
) -> None:
    files = files or write_training_steps(tmp_path)
    done = subprocess.run(
        [
            BUILD / "bin" / "parser-fuzz",
            f"--kind={kind}",
            f"--runs={runs}",
            "--first=1000000",
            f"--keep={tmp_path}",
            *files,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" 0 findings\n")


def test_deep_json_of_a_signature_is_refused() -> None:
    module = Module("func.func @main() { return }")
    with pytest.raises(PassError, match="nested more than 1000 deep"):
        module.annotate("[" * 1_000_000)
