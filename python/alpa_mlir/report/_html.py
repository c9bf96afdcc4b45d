"""The report as one HTML file: data, style and scripts are in it, and nothing else is loaded."""

from __future__ import annotations

import html
import json
from dataclasses import asdict
from importlib import resources
from typing import Any, cast

from alpa_mlir.report._model import ReportData

_SCRIPTS = (
    "base.js",
    "charts.js",
    "summary.js",
    "comparison.js",
    "time.js",
    "cluster.js",
    "boxes.js",
    "layers.js",
    "tensors.js",
    "timeline.js",
    "memory.js",
    "traffic.js",
    "alternatives.js",
    "main.js",
)

# What would end the element, begin a comment in it, or end a line in old JavaScript.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

# No address may be asked for anything, whatever the file holds.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def to_html(data: ReportData) -> str:
    """The whole page.

    Example:
        >>> page = to_html(collect(plan))                # doctest: +SKIP
    """
    style = _asset("report.css")
    scripts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="alpa_mlir {html.escape(data.header.version)}">
<link rel="icon" href="data:,">
<title>{html.escape(data.header.name)} - plan report</title>
<style>
{style}</style>
</head>
<body>
{_asset("body.html")}
<script type="application/json" id="data">{to_json(data)}</script>
<script>
"use strict";
(() => {{
{scripts}}})();
</script>
</body>
</html>
"""


def to_json(data: ReportData) -> str:
    """The data as JSON that may stand in a script element; numbers have nine figures."""
    text = json.dumps(_short(asdict(data)), separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in cast("list[Any]", value)]
    return value


def _asset(name: str) -> str:
    return resources.files("alpa_mlir.report").joinpath("static", name).read_text(encoding="utf-8")
