"""Checks JSON against the part of JSON Schema (draft 2020-12) that plan.schema.json uses."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import alpa_runtime.plan

SCHEMA = json.loads(resources.files(alpa_runtime.plan).joinpath("plan.schema.json").read_text())

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "null": type(None),
    "boolean": bool,
}
_KNOWN = {
    "$schema", "$id", "$defs", "$ref", "title", "description", "type", "required", "properties",
    "additionalProperties", "items", "enum", "const", "minimum", "pattern", "anyOf",
}  # fmt: skip


def is_of(value: Any, name: str) -> bool:
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, _TYPES[name])


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "") -> list[str]:
    """What is wrong, each with its place; an unknown keyword is an error of the schema."""
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    found: list[str] = []
    if "$ref" in schema:
        found += problems(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, path)
    if "anyOf" in schema:
        tries = [problems(value, option, root, path) for option in schema["anyOf"]]
        if all(tries):
            found += min(tries, key=len)
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(is_of(value, name) for name in names):
            return [*found, f"{path}: {value!r} is no {' or '.join(names)}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{path}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is none of {schema['enum']}")
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        found.append(f"{path}: {value} is less than {schema['minimum']}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{path}: {value!r} does not match")
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        found += [f"{path}.{k} is missing" for k in schema.get("required", ()) if k not in value]
        for key, item in value.items():
            rest = schema.get("additionalProperties", True)
            if key in fields:
                found += problems(item, fields[key], root, f"{path}.{key}")
            elif rest is False:
                found.append(f"{path}.{key} is unknown")
            elif rest is not True:
                found += problems(item, rest, root, f"{path}.{key}")
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            found += problems(item, schema["items"], root, f"{path}[{i}]")
    return found
