"""Write the zoo's modules to files, to try passes on them by hand.

Run from test/: `python -m zoo.dump FOLDER [names ...]`. Writes for each training step
`<name>.mlir` (generic form with locations, as the tracer hands it over, still
without signature attributes), `<name>.pretty.mlir` and `<name>.json` (the signature).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
from alpa_mlir.errors import TraceError
from alpa_mlir.trace.tracing import trace

from . import get, names


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace the wanted entries and write their files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=names(), metavar="name")
    parser.add_argument("--micro-batches", type=int, default=4)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        model = get(name)
        state, batch = jax.eval_shape(model.init)
        try:
            traced = trace(model.step, state, batch, num_micro_batches=options.micro_batches)
        except TraceError:  # state of single examples
            traced = trace(model.step, state, batch)
        stem = options.folder / name
        stem.with_suffix(".mlir").write_text(traced.text)
        stem.with_suffix(".pretty.mlir").write_text(traced.as_text())
        stem.with_suffix(".json").write_text(traced.signature.to_json())
        print(f"{name}: {traced.signature.num_micro_batches} micro-batches, {len(traced.text)} B")


if __name__ == "__main__":
    main()
