"""Element types of arrays: NumPy's names (with those of ml_dtypes), and MLIR's."""

from __future__ import annotations

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
