"""Code blocks and commands of the documentation, and how they are checked without being run."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README", "CONTRIBUTING", "CHANGELOG")  # Pages of the repository, no part of the site.
RUN = ("python", "console", "sh")
PARSED = ("yaml", "json")
SHOWN = ("text", "mlir", "math", "toml", "cpp", "tablegen")
MARKS = ("slow", "fails", "not run", "file", "setup")
# Named, not run: CI's own commands, and what would change the environment that tests run in.
NAMED = ("make", "pip")
# Commands that are not of this project: of them only the shell's syntax is checked.
SYSTEM = ("apt-get", "cat", "cd", "cp", "curl", "echo", "export", "git", "grep", "head", "ls")
SYSTEM += ("lit", "mkdir", "pyright", "pytest", "ray", "rm", "scp", "source", "srun", "ssh", "sudo")


class BlockError(Exception):
    """A block or command of a page is wrong; says which and why."""


@dataclass(frozen=True)
class Block:
    """A fence of a page, or the code of a `setup` comment.

    Attributes:
        line: of its first line of code, from 1.
        marks: by name, with what follows the name.
    """

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    found = sorted((ROOT / "docs").rglob("*.md"))
    top = (ROOT / f"{name}.md" for name in TOP)
    return [*top, *(p for p in found if "generated" not in p.parts)]


_FENCE = re.compile(r"^( *)(`{3,}|:{3,})(.*)$")
_MARK = re.compile(r"<!--\s*docs:\s*(.*?)\s*-->", re.S)


def blocks(page: Path) -> list[Block]:
    """All fences of a page in order, and setup comments.

    Raises:
        BlockError: a fence has no known language, or a mark is unknown or stands nowhere.
    """
    lines = page.read_text().splitlines()
    result: list[Block] = []
    marks: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if re.match(r"\s*<!--\s*docs:", line):
            begin = at
            while "-->" not in lines[at]:
                at += 1
            comment = "\n".join(lines[begin : at + 1])
            match = _MARK.search(comment)
            place = f"{page.relative_to(ROOT)}:{begin + 1}"
            name, text = _mark(match[1] if match else "", place)
            if name == "setup":
                result.append(Block(page, begin + 2, "python", text, {"setup": ""}))
            else:
                marks[name] = text
        elif fence := _FENCE.match(line):
            indent, ticks, info = fence.groups()
            end = at + 1
            while not re.match(rf"^ *{ticks[0]}{{{len(ticks)},}}\s*$", lines[end]):
                end += 1
            language = info.strip().split(" ")[0]
            body = "\n".join(x.removeprefix(indent) for x in lines[at + 1 : end])
            block = Block(page, at + 2, language, body, marks)
            if not language.startswith("{"):  # directives of the site: tables of contents, notes
                if language not in (*RUN, *PARSED, *SHOWN):
                    raise BlockError(f"{block.place}: a fence of language {language!r}; say one")
                result.append(block)
            at, marks = end, {}
        elif line.strip() and marks:
            raise BlockError(f"{page.relative_to(ROOT)}:{at + 1}: a mark without a fence below it")
        at += 1
    return result


def _mark(text: str, place: str) -> tuple[str, str]:
    for name in MARKS:
        if text == name or re.match(rf"{name}[:\s]", text):
            rest = text[len(name) :].removeprefix(":")
            if name in ("not run", "file") and not rest.strip():
                raise BlockError(
                    f"{place}: `{name}` needs a {'reason' if name != 'file' else name}"
                )
            return name, rest.strip("\n") if name == "setup" else rest.strip()
    raise BlockError(f"{place}: mark {text.split(chr(10))[0]!r}, expected one of {MARKS}")


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Commands of a `console` block, each with the output shown below it."""
    result: list[tuple[str, list[str]]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = f"{command}\n{next(lines)}"
            result.append((command, []))
        elif line.strip() and result:
            result[-1][1].append(line.rstrip())
        elif line.strip():
            raise BlockError(f"output {line!r} before the first command")
    return result


def shell_lines(text: str) -> list[str]:
    """Commands of an `sh` block."""
    joined = re.sub(r"\\\n", "\\\n\0", text)
    found = [c.replace("\0", "").strip() for c in re.split(r"\n(?!\0)", joined)]
    return [c for c in found if c and not c.startswith("#")]


def all_commands(block: Block) -> list[tuple[str, list[str]]]:
    if block.language == "console":
        return commands(block.text)
    return [(command, []) for command in shell_lines(block.text)]


def words_of(command: str) -> list[str]:
    """A command's words, without variables before it, `python` and the like."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words = words[1:]
    if words and re.fullmatch(r"(.*/)?python[0-9.]*", words[0]):
        words = words[1:]
        if words[:1] == ["-m"]:
            words = words[1:]
            words[0] = {"alpa_mlir": "alpa-mlir"}.get(words[0], words[0])
    if words:
        words[0] = words[0].removeprefix("build/bin/").removeprefix(".venv/bin/")
    return words


def is_named(command: str) -> bool:
    words = words_of(command)
    return bool(words) and words[0] in NAMED


def check_command(command: str, place: str) -> None:
    """What can be said of a command without running it: names, options, targets.

    Raises:
        BlockError: it cannot be right.
    """
    done = subprocess.run(
        ["bash", "-n"], input=command, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise BlockError(f"{place}: {done.stderr.strip()}")
    for part in re.split(r"\s(?:&&|\|\||\||;|>|>>|2>&1|&)(?=\s|$)", _without_files(command)):
        words = words_of(part)
        if words:
            _check_words(words, f"{place}: `{part.strip()}`")


def _without_files(command: str) -> str:
    return re.sub(r"\s[<>]+\s*\S+", " ", command.replace("\\\n", " "))


def _check_words(words: list[str], place: str) -> None:
    name, rest = words[0], words[1:]
    if name == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        for word in rest:
            if "=" not in word and not word.startswith("-") and word not in targets:
                raise BlockError(f"{place}: no target {word!r}")
    elif name == "pip":
        _check_pip(rest, place)
    elif name == "alpa-mlir":
        _check_alpa_mlir(rest, place)
    elif name in ("alpa-opt", "alpa-solve"):
        _check_options(name, rest, place)
    elif name.endswith(".py"):
        _check_script(name, rest, place)
    elif name not in SYSTEM and not (ROOT / name).exists():
        raise BlockError(f"{place}: nothing is known of {name!r}")


def _check_pip(words: list[str], place: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words:
        if match := re.search(r"(?:alpa-mlir|^\.|\.whl)\[(.*)\]", word):
            missing = set(match[1].split(",")) - set(project["optional-dependencies"])
            if missing:
                raise BlockError(f"{place}: no extras {sorted(missing)}")


def _check_alpa_mlir(words: list[str], place: str) -> None:
    import contextlib
    import io

    from alpa_mlir import cli

    if len(words) == 1 and words[0] in cli.COMMANDS:
        return
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
            cli.parser().parse_args(words)
    except SystemExit as stop:
        if stop.code:
            raise BlockError(f"{place}: {complaint.getvalue().strip()}") from None


@functools.cache
def program_help(program: str) -> str:
    path = ROOT / "build" / "bin" / program
    done = subprocess.run([path, "--help"], capture_output=True, text=True, check=True)
    return done.stdout


def _check_options(program: str, words: list[str], place: str) -> None:
    text = program_help(program)
    for word in words:
        if not re.match(r"--?[a-z]", word):
            continue
        name, _, value = word.lstrip("-").partition("=")
        match = re.search(rf"^( *)--?{re.escape(name)}(?![\w-])", text, re.M)
        if match is None and word.startswith("--") is False and len(name) == 1:
            match = re.search(rf"-{name}\b", text)
        if match is None:
            raise BlockError(f"{place}: {program} has no option {name!r}")
        if name.startswith("alpa-") and value:
            inner = text[match.end() :]
            end = re.search(rf"^ {{0,{len(match[1])}}}--", inner, re.M)
            inner = inner[: end.start()] if end else inner
            for option in re.findall(r"([a-z][\w-]*)=", value):
                if not re.search(rf"--{option}(?![\w-])", inner):
                    raise BlockError(f"{place}: {name} has no option {option!r}")


def _check_script(name: str, words: list[str], place: str) -> None:
    path = ROOT / name
    if "/" not in name:  # a reader's own program
        return
    if not path.exists():
        raise BlockError(f"{place}: there is no {name}")
    source = path.read_text()
    for module in re.findall(r"^(?:from|import) (\w+)", source, re.M):
        beside = path.parent / f"{module}.py"
        source += beside.read_text() if beside.exists() else ""
    for word in words:
        option = word.split("=")[0]
        if re.match(r"--[a-z]", option) and f'"{option}"' not in source:
            raise BlockError(f"{place}: {name} has no option {option}")


def check_python(block: Block) -> None:
    """A Python block that is not run: it compiles, and names of the package exist.

    Raises:
        BlockError: it cannot be right.
    """
    try:
        tree = ast.parse(block.text)
    except SyntaxError as error:
        raise BlockError(f"{block.place}: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.fullmatch(r"alpa_(mlir|runtime)(\.\w+)+", name):
                _check_name(name, block.place)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("alpa_mlir", "alpa_runtime")
        ):
            for alias in node.names:
                _check_name(f"{node.module}.{alias.name}", block.place)


def _check_name(name: str, place: str) -> None:
    package, *parts = name.split(".")
    value = importlib.import_module(package)
    for i, part in enumerate(parts, 1):
        if not hasattr(value, part) and importlib.util.find_spec(".".join([package, *parts[:i]])):
            importlib.import_module(".".join([package, *parts[:i]]))
        if not hasattr(value, part):
            raise BlockError(f"{place}: there is no {name}")
        value = getattr(value, part)


_INLINE = re.compile(
    r"`((?:python (?:benchmark|examples)/|make [a-z]|pip install |alpa-mlir [a-z]|alpa-opt -"
    r"|alpa-solve [a-z-]|build/bin/)[^`]*)`"
)


_FENCED = re.compile(r"^ *(```+).*?^ *\1", re.S | re.M)


def inline_commands(page: Path) -> list[tuple[str, str]]:
    """Commands in the running text, with their places."""
    text = _FENCED.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
    place = page.relative_to(ROOT)
    return [
        (" ".join(match[1].split()), f"{place}:{text.count(chr(10), 0, match.start()) + 1}")
        for match in _INLINE.finditer(text)
    ]
