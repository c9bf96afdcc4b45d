"""Portable artifacts of StableHLO (VHLO) as text.

MLIR's reader of bytecode ends its process on some damaged files, so it runs in one of its own.

Run: python -m alpa_mlir.trace.portable < ARTIFACT > TEXT
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
from jax.interpreters import mlir

import alpa_mlir
from alpa_mlir.errors import ModuleSyntaxError

_mlir: Any = mlir
_SECONDS = 600.0
BYTECODE = b"ML\xefR"


def text_of(data: bytes, where: str) -> str:
    """An artifact, of whatever version this JAX still reads, as StableHLO text with locations.

    Args:
        where: names it in errors.

    Raises:
        ModuleSyntaxError: it is damaged, too new or too old, or no artifact of StableHLO.
    """
    roots = [str(Path(str(package.__file__)).parents[1]) for package in (alpa_mlir, jax)]
    path = os.pathsep.join(dict.fromkeys([*roots, *sys.path]))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "alpa_mlir.trace.portable"],
            input=data,
            capture_output=True,
            env=environment,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        reason = f"MLIR does not get through it in {_SECONDS:g} s"
    else:
        if done.returncode == 0:
            return done.stdout.decode()
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines and done.returncode > 0 else "MLIR's reader crashes"
    raise ModuleSyntaxError(
        f"is no portable artifact that JAX can read: {reason}",
        where=where,
        fix="write it anew with a version of StableHLO that this JAX knows, or as text",
    )


def main() -> int:
    with _mlir.make_ir_context() as context:
        try:
            data = sys.stdin.buffer.read()
            dialect: Any = importlib.import_module("jaxlib.mlir.dialects.stablehlo")
            module = dialect.deserialize_portable_artifact(context, data)
            text = str(module.operation.get_asm(enable_debug_info=True))
        except Exception as error:
            print(" ".join(str(error).split())[:500], file=sys.stderr)
            return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
