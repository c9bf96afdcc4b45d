"""Colours for MLIR text."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Text


class MlirLexer(RegexLexer):
    """Enough of MLIR's syntax to tell values, symbols, types, ops and comments apart."""

    name = "MLIR"
    aliases: ClassVar = ["mlir"]
    tokens: ClassVar = {
        "root": [
            (r"//.*?$", Comment.Single),
            (r'"(\\.|[^"\\])*"', String),
            (r"[%^][\w$.#:-]*\w", Name.Variable),
            (r"@[\w$.-]+(::@[\w$.-]+)*", Name.Function),
            (r"[#!][A-Za-z_][\w.]*", Name.Class),
            (r"\b(tensor|memref|vector|tuple|index|none|[su]?i\d+|f\d+\w*|bf16)\b", Keyword.Type),
            (r"\b[a-z_]\w*(\.[a-z_]\w*)+", Name.Builtin),
            (r"\b(func|module|return|to|from|on|at|of|among|tag|by|true|false)\b", Keyword),
            (r"-?\b\d+(\.\d*)?([eE][-+]?\d+)?", Number),
            (r"->|=", Operator),
            (r"\s+|\w+|.", Text),
        ]
    }
