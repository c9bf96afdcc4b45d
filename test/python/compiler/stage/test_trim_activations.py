"""Stages keep less between the phases where gradients compute cheap activations again.

That results stay those of `jax.jit` is what every test that runs a plan shows.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import zoo
from alpa_mlir import Cluster, PipeshardParallel
from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace

CLUSTER = Cluster.load("cpu-test")


def activation_bytes(name: str, trimmed: bool, folder: Any) -> list[int]:
    """Of each stage, for one micro-batch."""
    model = zoo.get(name)
    traced = trace(model.step, *model.init(8))
    module = Module(traced.text).annotate(traced.signature.to_json())
    method = PipeshardParallel(
        submeshes=[(1, 2)] * 2,
        num_micro_batches=2,
        micro_batch_semantics="relaxed",  # wide_resnet has statistics of its batch.
        schedule="1f1b",
    )
    passes = f"{method.import_passes(CLUSTER)},{method.layer_passes(2)}"
    assert passes.endswith(",alpa-trim-activations")
    module.run(passes if trimmed else passes.removesuffix(",alpa-trim-activations"))
    CLUSTER.save(folder / "cluster.yaml")
    module.run(method.search_passes(CLUSTER, str(folder / "cluster.yaml"), 2))
    return [int(size) for size in re.findall(r"activation_bytes = (\d+)", module.as_text())]


@pytest.mark.parametrize("name", ["gpt", "vit", "wide_resnet"])
def test_less_is_kept(name: str, tmp_path: Any) -> None:
    before = activation_bytes(name, False, tmp_path)
    after = activation_bytes(name, True, tmp_path)
    assert len(before) == len(after) == 2
    assert np.all(np.array(after) <= before)
    assert sum(after) < 0.8 * sum(before)
