"""Expert parallelism and ZeRO are found by the solver, unasked, on models of published sizes."""

from __future__ import annotations

import re
from typing import Any

import models
import pytest
from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace
from paper.models import figure8_moe

_SPEC = r"#alpa.sharding<\[([^]]*)\]>"


def _solved(model: Any, cluster: str, mesh: str) -> str:
    """The model's step as one stage, planned; text in pretty form."""
    traced = trace(model.step, model.state, model.batch)
    module = Module(traced.text, "step").annotate(traced.signature.to_json())
    module.run(f"alpa-import,alpa-solve-sharding{{cluster={cluster} mesh-shape={mesh}}}")
    return module.as_text()


def _arguments(text: str) -> dict[str, list[str]]:
    """Spec of every state argument of rank 2 or more, by name."""
    found = re.findall(rf'alpa\.name = "([^"]*)", alpa\.sharding = {_SPEC}', text)
    specs = {name: spec.split(", ") for name, spec in found}
    return {
        name: spec for name, spec in specs.items() if len(spec) >= 2 and name.startswith("state")
    }


def _ops(text: str) -> list[tuple[str, list[str], list[list[str]], list[list[str]], str]]:
    """Ops with one result: line, operands, how it uses them if otherwise than held, and makes."""
    ops = []
    for line in text.splitlines():
        match = re.match(r"\s*(%\w+) = (\S+) ([^{(]*)", line)
        if match is None or "alpa.shardings" not in line:
            continue
        uses = re.search(r"alpa\.use_shardings = \[(.*?\>)\]", line)
        made = re.search(r"alpa\.shardings = \[(.*?\>)\]", line)
        assert made is not None

        def specs(part: str) -> list[list[str]]:
            return [spec.split(", ") for spec in re.findall(_SPEC, part)]

        operands = re.findall(r"%\w+", match[3])
        ops.append((line, operands, specs(uses[1] if uses else ""), specs(made[1]), match[1]))
    return ops


def test_experts_are_split_and_tokens_sent_to_them() -> None:
    """MoE of figure 8 for 8 GPUs: every expert weight by experts, tokens by all-to-all."""
    text = _solved(figure8_moe(8), "p3.16xlarge", "1,8")
    specs = _arguments(text).items()
    weights = {name: spec for name, spec in specs if name.endswith(("['up']", "['down']"))}
    assert len(weights) == 16  # Two in each of four layers, and their masters.
    assert all(spec == ["S1", "R", "R"] for spec in weights.values()), weights

    held = {name: made[0] for _, _, _, made, name in _ops(text)}
    exchanges = 0
    for line, operands, uses, _, _ in _ops(text):
        for name, wanted in zip(operands, uses, strict=False):
            before = held.get(name, [])
            if "S1" in before and "S1" in wanted and before.index("S1") != wanted.index("S1"):
                exchanges += "dot_general" in line
    # To the experts and back, forward, recomputed and backward, in four layers.
    assert exchanges >= 8


@pytest.mark.parametrize("mesh", ["1,8"])
def test_optimizer_state_is_split_where_the_batch_is(mesh: str) -> None:
    """A GPT of 500 million parameters with much batch: weights whole, moments and sums split."""
    model = models.gpt(8, hidden=2048, heads=16, vocab=51200, seq=1024, batch_size=64, remat=True)
    text = _solved(model, "p3.16xlarge", mesh)
    specs = _arguments(text)
    layers = {name: spec for name, spec in specs.items() if "['kernel']" in name}
    weights = [spec for name, spec in layers.items() if "opt_state" not in name]
    moments = [spec for name, spec in layers.items() if "opt_state" in name]
    assert len(weights) == 32
    assert len(moments) == 64
    assert all(spec == ["R", "R"] for spec in weights)
    assert all("S1" in spec for spec in moments)
    # Gradients are sums over the batch that are scattered, not repeated: half the bytes.
    gradients = [
        made[0]
        for line, _, _, made, _ in _ops(text)
        if "dot_general" in line and '"backward"' in line and len(made[0]) == 2
    ]
    assert len(gradients) >= 32
    assert all("S1" in spec for spec in gradients)
