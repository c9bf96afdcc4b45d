"""docs/cli.md says what the parsers say."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import pytest
from alpa_mlir import cli

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("cli_page", ROOT / "docs/site/cli_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_parsers(maker):
    fix = "run `python docs/site/cli_page.py`"
    assert maker.PAGE.read_text() == maker.written(), fix


def test_the_page_has_every_subcommand_and_option(maker):
    text = maker.reference()
    for name, parser in maker._parsers().items():
        assert f"### {name}\n" in text
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:
                continue
            for option in set(action.option_strings) - {"-h", "-q", *maker.EVERYWHERE}:
                assert f"{option}" in text, (name, option)
    assert set(maker._parsers()) == set(cli.COMMANDS)
