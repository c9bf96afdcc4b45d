"""Text goes from jaxlib through `alpa-opt` and back: the same module, pretty and generic."""

from __future__ import annotations

import re
import subprocess

import jax
import pytest
import zoo
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from source_paths import BUILD


def _alpa_opt(text: str, *flags: str) -> str:
    done = subprocess.run(
        [BUILD / "bin" / "alpa-opt", *flags],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def _canonical(text: str, *, generic: bool) -> str:
    """What jaxlib prints for `text`; locations are left out."""
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        return module.operation.get_asm(print_generic_op_form=generic)


def _without_empty(generic: str) -> str:
    """Without lists of empty dictionaries, which MLIR drops whenever it prints the pretty form."""
    return re.sub(r"(arg|res)_attrs = \[\{\}(, \{\})*\], ", "", generic)


@pytest.mark.parametrize("part", ["forward", "step"])
@pytest.mark.parametrize("name", zoo.names())
def test_round_trip(name, part):
    model = zoo.get(name)
    lowered = jax.jit(getattr(model, part)).lower(*jax.eval_shape(lambda: model.init()))
    pretty = lowered.as_text()
    generic = lowered.compiler_ir("stablehlo").operation.get_asm(print_generic_op_form=True)

    ours = _alpa_opt(pretty)
    assert ours.strip() == pretty.strip()
    assert _canonical(ours, generic=True) == _canonical(pretty, generic=True)

    ours = _alpa_opt(generic, "-mlir-print-op-generic")
    assert _without_empty(_canonical(ours, generic=True)) == _without_empty(
        _canonical(generic, generic=True)
    )
    # From one form to the other.
    assert _canonical(_alpa_opt(generic), generic=False) == _canonical(generic, generic=False)
    across = _alpa_opt(pretty, "-mlir-print-op-generic")
    assert _without_empty(_canonical(across, generic=True)) == _without_empty(
        _canonical(pretty, generic=True)
    )


@pytest.mark.parametrize("name", ["mlp", "gpt_scan_remat", "while_cond"])
def test_round_trip_with_locations(name):
    model = zoo.get(name)
    text = jax.jit(model.step).lower(*jax.eval_shape(lambda: model.init())).as_text(debug_info=True)
    ours = _alpa_opt(text, "-mlir-print-debuginfo")
    with jax_mlir.make_ir_context():
        want = ir.Module.parse(text).operation.get_asm(enable_debug_info=True)
        got = ir.Module.parse(ours).operation.get_asm(enable_debug_info=True)
    assert got == want
