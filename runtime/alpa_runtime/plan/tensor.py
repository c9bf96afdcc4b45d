"""Tensors on meshes: element types, and their text in plans: `float32[8,64][x*y,R]`, with `@host`
in the memory of the devices' hosts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from alpa_runtime.plan.text import Node, spec_text

_WIDTHS = (2, 4, 8, 16, 32, 64)
_SMALL_FLOATS = (
    *("4_e2m1fn", "6_e2m3fn", "6_e3m2fn", "8_e3m4", "8_e4m3", "8_e4m3b11fnuz", "8_e4m3fn"),
    *("8_e4m3fnuz", "8_e5m2", "8_e5m2fnuz", "8_e8m0fnu"),
)
_MLIR_NAMES = {
    "bool": "i1",
    **{f"int{width}": f"i{width}" for width in _WIDTHS},
    **{f"uint{width}": f"ui{width}" for width in _WIDTHS},
    "bfloat16": "bf16",
    **{f"float{width}": f"f{width}" for width in (16, 32, 64)},
    **{f"float{form}": f"f{form.upper().replace('_', '')}" for form in _SMALL_FLOATS},
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}
_NUMPY_NAMES = {
    **{mlir: name for name, mlir in _MLIR_NAMES.items()},
    **{f"si{width}": f"int{width}" for width in _WIDTHS},
}


def mlir_name(dtype: str) -> str | None:
    """MLIR's name of an element type, None if there is none.

    Example:
        >>> [mlir_name(name) for name in ("float32", "uint8", "float8_e4m3fn", "object")]
        ['f32', 'ui8', 'f8E4M3FN', None]
    """
    return _MLIR_NAMES.get(dtype)


def numpy_name(element: str) -> str | None:
    """NumPy's name of an element type of MLIR, None if there is none.

    Example:
        >>> [numpy_name(name) for name in ("f32", "ui8", "f8E4M3FN", "tuple<>")]
        ['float32', 'uint8', 'float8_e4m3fn', None]
    """
    return _NUMPY_NAMES.get(element)


Spec = tuple[tuple[str, ...], ...]

_DIM = r"[0-9]+"
_AXES = r"(?:R|[a-z][a-z0-9_]*(?:\*[a-z][a-z0-9_]*)*)"
_ON_HOST = "@host"
TENSOR_PATTERN = (
    rf"[a-z][a-z0-9_]*\[(?:{_DIM}(?:,{_DIM})*)?\]\[(?:{_AXES}(?:,{_AXES})*)?\](?:{_ON_HOST})?"
)
_TENSOR = re.compile(TENSOR_PATTERN)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor on a mesh: its whole shape, NumPy dtype name and the axes that split it.

    Attributes:
        on_host: each device's part lies in the memory of its host.

    Example:
        >>> TensorSpec.parse("float32[8,64][x*y,R]").spec
        (('x', 'y'), ())
        >>> TensorSpec.parse("float32[8][x]@host").on_host
        True
    """

    shape: tuple[int, ...]
    dtype: str
    spec: Spec
    on_host: bool = False

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """The inverse of `to_text`.

        Raises:
            ValueError: says what is wrong.
        """
        if not _TENSOR.fullmatch(text):
            raise ValueError(
                f"got {text[:200]!r}, expected a tensor such as 'float32[8,64][x*y,R]'"
            )
        held = text.removesuffix(_ON_HOST)
        dtype, shape, spec = held.replace("]", "").split("[")
        dims = tuple(map(int, shape.split(","))) if shape else ()
        axes = tuple(() if a == "R" else tuple(a.split("*")) for a in spec.split(",") if spec)
        if len(dims) != len(axes):
            raise ValueError(
                f"got {text!r}, which has {len(axes)} entries for {len(dims)} dimensions"
            )
        if dtype not in _MLIR_NAMES:
            raise ValueError(f"got {text!r}, whose element type is unknown")
        if math.prod(dims) >= 1 << 63:
            raise ValueError(f"got {text[:200]!r}, expected fewer than 2**63 elements")
        return cls(dims, dtype, axes, held != text)

    def to_text(self) -> str:
        """The tensor as plan.json has it."""
        axes = ",".join("*".join(names) or "R" for names in self.spec)
        where = _ON_HOST if self.on_host else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}][{axes}]{where}"

    def as_text(self) -> str:
        """The tensor for people."""
        dims = "x".join(map(str, self.shape)) or "scalar"
        where = " in the host's memory" if self.on_host else ""
        return f"{self.dtype}[{dims}] {spec_text(self.spec)}{where}"


class TensorReader:
    """Reads tensors, equal ones as one object: a plan names few tensors many times."""

    def __init__(self) -> None:
        self._known: dict[str, TensorSpec] = {}

    def parse(self, text: str) -> TensorSpec:
        """The tensor of a text; `ValueError` as `TensorSpec.parse`."""
        tensor = self._known.get(text)
        if tensor is None:
            tensor = self._known[text] = TensorSpec.parse(text)
        return tensor

    def read(self, node: Node) -> TensorSpec:
        """The tensor of a field; `PlanFormatError` names the field."""
        value: object = node.value
        try:
            return self._known[value]  # type: ignore[index]
        except (KeyError, TypeError):
            pass
        try:
            return self.parse(node.string())
        except ValueError as error:
            raise node.error_text(str(error)) from None
