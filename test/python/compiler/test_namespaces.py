"""Each room of compiler/ has a namespace of its own, and its headers open no other one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

COMPILER = Path(__file__).parents[3] / "compiler"
WORDS = {"CostModel": "cost", "Export": "exporter", "Import": "importer"}
HEADERS = sorted(path.relative_to(COMPILER) for path in COMPILER.glob("*/**/*.h"))
# Names of attributes are the dialect's, whichever room they are for.
SHARED = {"alpa::attr"}


def test_headers_are_found():
    assert {"Solver", "CostModel", "Stage"} <= {path.parts[0] for path in HEADERS}


@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_a_header_declares_in_the_namespace_of_its_room(header):
    text = (COMPILER / header).read_text()
    room = header.parts[0]
    opened = set(re.findall(r"^ *(?:inline )?namespace ([\w:]+) \{", text, re.MULTILINE))
    assert opened - SHARED <= {f"alpa::{WORDS.get(room, room.lower())}"}
    assert not re.search(r"\busing namespace\b", text)
