"""What blocks of the documentation find: names, files, folders and commands."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import alpa_mlir
import docs_step
import jax
import jax.numpy as jnp
import numpy as np
import optax
from alpa_mlir import compiler
from docs_blocks import ROOT
from jax.sharding import PartitionSpec

FOLDERS = ("benchmark", "examples", "build")


def names() -> dict[str, Any]:
    """The names that a page's Python begins with; state is fresh, since steps use it up."""
    return {
        "__name__": "page",
        "alpa_mlir": alpa_mlir,
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "optax": optax,
        "PartitionSpec": PartitionSpec,
        "train_step": docs_step.train_step,
        "create_state": docs_step.create_state,
        "predict": docs_step.predict,
        "state": docs_step.create_state(jax.random.key(0)),
        "batch": next(docs_step.batches()),
        "batches": list(itertools.islice(docs_step.batches(), 4)),
    }


@cache
def _parallel() -> alpa_mlir.ParallelFunction:
    cluster = ROOT / "examples" / "cluster_2x4.yaml"
    return alpa_mlir.parallelize(docs_step.train_step, cluster=str(cluster))


@cache
def _planned() -> alpa_mlir.PlannedStep:
    values = names()
    return _parallel().plan(values["state"], values["batch"])


@cache
def _module() -> str:
    values = names()
    traced = _parallel().trace(values["state"], values["batch"]).traced
    module = compiler.Module(traced.text).annotate(traced.signature.to_json())
    return module.as_text(debug_info=True)


def _cluster(path: Path) -> None:
    shutil.copy(ROOT / "examples" / "cluster_2x4.yaml", path)


FILES: dict[str, Callable[[Path], object]] = {
    "cluster.yaml": _cluster,
    "step.py": lambda path: shutil.copy(docs_step.__file__, path),
    "my_plan": lambda path: _planned().save(path),
    "model.mlir": lambda path: path.write_text(_module()),
}


def set_up(folder: Path, text: str) -> dict[str, str]:
    """Make in `folder` what `text` names and does not write itself; its commands' environment."""
    for name in FOLDERS:
        (folder / name).symlink_to(ROOT / name)
    for name, make in FILES.items():
        if name in text and not re.search(rf"(-o|--output) {name}", text):
            make(folder / name)
    programs = folder / ".programs"
    programs.mkdir()
    for name, module in (("python", ""), ("alpa-mlir", " -m alpa_mlir")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
        path.chmod(0o755)
    path = [str(programs), str(ROOT / "build" / "bin"), os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "runtime"), str(folder)]),
    }
