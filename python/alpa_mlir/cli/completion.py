"""`alpa-mlir completion`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import Any

from alpa_mlir.cli._command import Answer, add_force, file_in_folder, refuse_existing

SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = (
    "Prints a script with which a shell completes subcommands, options, their choices, the names "
    "of clusters, and files. The script holds all that it needs: completing starts no Python."
)
EXAMPLES = """\
  alpa-mlir completion bash  # the script; for bash-completion it goes into
                             # ~/.local/share/bash-completion/completions/alpa-mlir
  alpa-mlir completion zsh -o _alpa-mlir  # in a folder of fpath, before compinit
  alpa-mlir completion fish -o alpa-mlir.fish  # in ~/.config/fish/completions
"""
# What arguments name, by what they are called in the help.
_FOLDERS = ("PLAN", "OTHER", "FOLDER")
_FILES = ("FILE", "STEP", "ENTRY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    parser.add_argument(
        "-o",
        "--output",
        type=file_in_folder,
        metavar="FILE",
        help="where to write it, not printing it",
    )
    add_force(parser)


def run(options: argparse.Namespace) -> Answer:
    refuse_existing(options, "output")
    from alpa_mlir.cli import parser as make_parser
    from alpa_mlir.compiler import cluster_presets

    shtab: Any = importlib.import_module("shtab")
    parser = make_parser()
    clusters = _clusters(sorted(cluster_presets()))
    for action in _actions(parser):
        if action.dest == "cluster":
            action.complete = clusters
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY
        elif action.metavar in _FILES:
            action.complete = shtab.FILE
    script = str(shtab.complete(parser, options.shell)).rstrip("\n")
    if options.output is None:
        return Answer(script, {"shell": options.shell, "script": script})
    options.output.write_text(f"{script}\n")
    text = f"wrote {options.output}"
    return Answer(text, {"shell": options.shell, "output": str(options.output)})


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """The arguments of all subcommands."""
    from alpa_mlir.cli import COMMANDS

    actions: list[Any] = parser._actions  # pyright: ignore[reportPrivateUsage]
    for action in actions:
        yield action
        if action.dest == "command":
            for name, command in action.choices.items():
                command.description = COMMANDS[name]  # Shells show it beside the name.
                yield from _actions(command)


def _clusters(presets: list[str]) -> dict[str, Any]:
    """How each shell completes a preset or a file."""
    name, words = "_alpa_mlir_clusters", " ".join(presets)
    return {
        "bash": name,
        "zsh": name,
        "fish": f"({name})",
        "preamble": {
            "bash": f'{name}() {{ compgen -W "{words}" -- $1; compgen -f -- $1; }}',
            "zsh": f"{name}() {{ _alternative 'presets:preset:({words})' 'files:file:_files' }}",
            "fish": f"function {name}\n    printf '%s\\n' {words}\n"
            "    __fish_complete_path (commandline -ct)\nend",
        },
    }
