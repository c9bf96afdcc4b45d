"""The part of docs/cli.md that is made of the command line's parsers.

Run: python docs/site/cli_page.py        writes it anew; a test compares it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from alpa_mlir import cli

PAGE = Path(__file__).resolve().parents[1] / "cli.md"
BEGIN = "<!-- Made by docs/site/cli_page.py of the parsers; do not edit below. -->\n"
EVERYWHERE = ("--help", "--json", "--quiet")
# Subcommands that take a step, and plan it if it is no plan yet.
PLANNING = ("plan", "explain", "report", "run")


def reference() -> str:
    """Every subcommand with its arguments, what it says of itself, and its examples."""
    parsers = _parsers()
    shared = set.intersection(*({_name(a) for a in _actions(parsers[n])} for n in PLANNING))
    shared = {name for name in shared if name.startswith("-")}
    lines = [BEGIN, "## Subcommands"]
    for name, parser in parsers.items():
        own = [a for a in _actions(parser) if name not in PLANNING or _name(a) not in shared]
        lines += ["", f"### {name}", str(parser.description), ""]
        lines += _table(parser, own)
        if name in PLANNING:
            lines += ["", "Planning takes [more options](#how-to-plan)."]
        lines += ["", "<!-- docs: not run: files of your own -->", "```sh"]
        examples = str(parser.epilog).partition("examples:\n")[2]
        lines += [line.strip() for line in examples.splitlines() if line.strip()]
        lines += ["```"]
    plan = parsers["plan"]
    lines += ["", "## How to plan"]
    lines += [f"Options of {', '.join(f'`{name}`' for name in PLANNING)}.", ""]
    lines += _table(plan, [a for a in _actions(plan) if _name(a) in shared])
    return "\n".join(lines) + "\n"


def _parsers() -> dict[str, argparse.ArgumentParser]:
    actions: Any = cli.parser()._subparsers
    return dict(actions._group_actions[0].choices)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        a
        for a in parser._actions
        if not set(a.option_strings) & set(EVERYWHERE) and a.help != argparse.SUPPRESS
    ]


def _name(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


def _table(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> list[str]:
    formatter = parser._get_formatter()
    rows = [
        (_invocation(action), formatter._expand_help(action) if action.help else "")
        for action in actions
    ]
    cells = [f"| `{first}` | {text} |" for first, text in rows]
    return ["| argument | what it is |", "|---|---|", *(cell for cell in cells)]


def _invocation(action: argparse.Action) -> str:
    """`-o, --output FOLDER`."""
    names = ", ".join(action.option_strings)
    value = action.metavar
    if value is None and action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if action.nargs == 0:
        return names
    value = str(value or action.dest.upper())
    if action.nargs == "+":
        value += " .."
    if action.nargs == "?":
        value = f"[{value}]"
    return f"{names} {value}".strip().replace("|", "\\|")


def written() -> str:
    """The page as it should be."""
    return PAGE.read_text().partition(BEGIN)[0] + reference()


if __name__ == "__main__":
    PAGE.write_text(written())
