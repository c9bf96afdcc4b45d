"""The command `alpa-mlir`; every subcommand is a module here, over the Python API.

A subcommand is a line of `COMMANDS` and a module of its name with

    DESCRIPTION: str                # what `--help` says first
    EXAMPLES: str                   # command lines, each on a line of its own; may have comments
    def add_arguments(parser: argparse.ArgumentParser) -> None
    def run(options: argparse.Namespace) -> Answer

A module is imported when its subcommand is used. None imports JAX at its top, so that help and
completion are quick and a subcommand can set the process up first.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO, cast

from alpa_runtime.version import VERSION

from alpa_mlir.cli._command import Answer, did_you_mean, error_fields, failure_of, interrupted

__all__ = ["COMMANDS", "main", "parser"]

#: Every subcommand, and what the list of `alpa-mlir --help` says about it.
COMMANDS = {
    "plan": "find the best plan for a step on a cluster",
    "explain": "say why a plan is as it is, what came second, and what limits it",
    "report": "write a report of a plan as one HTML file",
    "run": "run an entry point, or a saved plan with random inputs",
    "launch": "start a training program over several hosts, without Ray",
    "export": "write a saved plan in the form of another program",
    "diff": "list what two saved plans decide otherwise",
    "simulate": "execute a saved plan on a described cluster, without devices",
    "measure": "compile and time the stages of saved plans on the devices of this host",
    "compile": "compile the stages of a saved plan ahead of time, without its devices",
    "profile": "measure dots, memory and collectives of the devices of this host",
    "clusters": "list, show and check descriptions of clusters",
    "doctor": "check the installation, devices, solvers and their licences, Ray",
    "completion": "print a script that completes this command in bash, zsh or fish",
}

EXIT_CODES = """\
exit codes:
  0    done
  1    an error, which says what, where and what to do
  2    wrong usage
  130  interrupted
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Fills descriptions and help to the width of the terminal, and keeps names with hyphens in one
    piece; examples stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(
            text, width, initial_indent=indent, subsequent_indent=indent, **_WHOLE_NAMES
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, **_WHOLE_NAMES)


_WHOLE_NAMES: Any = {"break_on_hyphens": False, "break_long_words": False}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name what was meant, and are one JSON document if they are asked for
    so."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '?(.*?)'? \(choose from (.*)\)$", message)
        if wrong is not None:
            message = _hinted(message, [wrong[1]], re.findall(r"[^\s,']+", wrong[2]))
        if not self.as_json:
            super().error(message)
        fix = f"see `{self.prog} --help`"
        fields = error_fields("UsageError", "usage", message, self.prog, fix)
        print(_document({"error": fields}))
        self.exit(2)


def _hinted(message: str, words: Sequence[str], known: Sequence[str]) -> str:
    meant = did_you_mean(words, known)
    return f"{message}; {meant}" if meant else message


def parser(*, only: str | None = None, as_json: bool = False) -> argparse.ArgumentParser:
    """The parser of the command line.

    Args:
        only: fill in the arguments of this subcommand only; the others are named.
        as_json: errors are JSON, on standard output.
    """
    kind = type("_JsonParser", (_Parser,), {"as_json": as_json})
    result: argparse.ArgumentParser = kind(
        prog="alpa-mlir",
        description="Plans and runs JAX training steps on GPU clusters.",
        epilog=EXIT_CODES,
        formatter_class=_Formatter,
    )
    result.add_argument("--version", action="version", version=f"alpa-mlir {VERSION}")
    commands: Any = result.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name, summary in COMMANDS.items():
        if only not in (None, name):
            commands.add_parser(name, help=summary)
            continue
        module = importlib.import_module(f"alpa_mlir.cli.{name.replace('-', '_')}")
        command: argparse.ArgumentParser = commands.add_parser(
            name,
            help=summary,
            description=module.DESCRIPTION,
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=_Formatter,
        )
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="one JSON document on the output")
        command.add_argument("-q", "--quiet", action="store_true", help="no progress bars")
        command.set_defaults(run=module.run, error=command.error, usage=command.format_help)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, 1 after an error, 130 if interrupted. Wrong usage exits with 2.

    Example:
        >>> main(["profile", "--output", "measured.yaml"])  # doctest: +SKIP
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    own = words[: words.index("--")] if "--" in words else words
    # No option of the command itself takes a value: the first other word is the subcommand.
    name = next((word for word in words if not word.startswith("-")), None)
    as_json = "--json" in own
    if not words:
        return 0 if _print(parser(only="").format_help().rstrip(), sys.stdout) else 1
    options, unknown = parser(only=name or "", as_json=as_json).parse_known_args(words)
    if unknown:
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        known = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", options.usage())
        options.error(_hinted(f"unrecognized arguments: {' '.join(unknown)}", flags, known))
    output = sys.stdout
    try:
        # What user code prints must not end up in the document.
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            answer: Answer = options.run(options)
    except KeyboardInterrupt:
        failure, status = interrupted(), 130
    except Exception as error:
        failure, status = failure_of(error), 1
    else:
        text = _document(answer.fields) if as_json else answer.text
        return answer.status if _print(text, output) else 1
    if as_json:
        _print(_document({"error": failure.fields}), output)
    else:
        _print(failure.text, sys.stderr)
    return status


def _document(fields: Any) -> str:
    """JSON, which has no name for what is no finite number: null stands there."""

    def finite(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(k): finite(v) for k, v in cast("Mapping[Any, Any]", value).items()}
        if isinstance(value, list | tuple):
            return [finite(item) for item in cast("list[Any]", value)]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(fields), indent=1, allow_nan=False)


#: Names of a plan's values may come from anywhere; a terminal would take these for commands.
_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def _print(text: str, output: TextIO) -> bool:
    """Print, and whether that was possible; a reader that stopped reading, such as `head`, is no
    error."""
    try:
        if text:
            print(text.translate(_CONTROL), file=output, flush=True)
    except OSError as error:
        # Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if isinstance(error, BrokenPipeError):
            return True
        if output is not sys.stderr:
            _print(f"alpa-mlir: error: cannot write the output: {error.strerror}", sys.stderr)
        return False
    return True
