"""Pages on passes and ops, made of their TableGen descriptions by mlir-tblgen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

# Rooms in the order in which a step goes through them.
ROOMS = ("Import", "Stage", "Sharding", "Spmd", "Schedule", "Reshard", "Export")
DIALECTS = {
    "alpa": ("dialects/Alpa/AlpaOps.td", "The Alpa dialect"),
    "stablehlo": ("dialects/StableHLO/StableHLOOps.td", "StableHLO"),
    "chlo": ("dialects/Chlo/ChloOps.td", "CHLO"),
    "sdy": ("dialects/Sdy/SdyOps.td", "Shardy"),
}
SPECIFICATIONS = {
    "stablehlo": "https://openxla.org/stablehlo/spec",
    "chlo": "https://openxla.org/stablehlo/generated/chlo",
    "sdy": "https://openxla.org/shardy/sdy_dialect",
}
NAMES = ("mlir-tblgen-22", "mlir-tblgen")


def write(folder: Path, root: Path) -> None:
    """Write passes.md and one page for each dialect; a pass file that no room names is an error."""
    found = {path.parent.name for path in root.glob("compiler/*/Passes.td")}
    if found != set(ROOMS):
        raise SystemExit(f"compiler/*/Passes.td are {sorted(found)}, expected {sorted(ROOMS)}")
    passes = ["# Passes", _PASSES]
    for room in ROOMS:
        passes += [f"## {room}", _tblgen(root, f"compiler/{room}/Passes.td", "-gen-pass-doc")]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "passes.md", "\n\n".join(passes))
    for name, (path, title) in DIALECTS.items():
        text = _tblgen(root, path, "-gen-dialect-doc", f"-dialect={name}")
        text = re.sub(r"^# .*$", f"# {title}", text, count=1, flags=re.M)
        if name in SPECIFICATIONS:
            text += f"\n\nThe public specification: <{SPECIFICATIONS[name]}>."
        _write(folder / f"ops-{name}.md", text)


_PASSES = """Every pass runs by itself: `alpa-opt FILE --NAME="option=value ..."`. Made of the
`Passes.td` of each room; [architecture](../architecture.md) says in which order they run."""


def _tblgen(root: Path, path: str, *arguments: str) -> str:
    program = next((p for p in map(shutil.which, NAMES) if p), None)
    if program is None:
        raise SystemExit("mlir-tblgen-22 not found; `make setup` installs it")
    include = Path(program).resolve().parents[1] / "include"
    done = subprocess.run(
        [program, *arguments, path, "-I", str(include), "-I", "."],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{program} {path}: {done.stderr}")
    return _as_page(done.stdout)


def _as_page(text: str) -> str:
    """TableGen's Markdown without what only its own site knows."""
    text = re.sub(r"<!--.*?-->\s*|^\[TOC\]\n", "", text, flags=re.S | re.M)
    text = re.sub(r"^(#+ `[^`]*`) \(.*\)$", r"\1", text, flags=re.M)  # C++ classes of ops
    text = re.sub(r"^(#+) `-(alpa-[^`]*)`$", r"\1 `\2`", text, flags=re.M)
    text = re.sub(r"^(#{4,} .*?):$", r"\1", text, flags=re.M)
    inside = False
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("```"):
            if not inside and line.strip() == "```":
                line += "text"
            inside = not inside
        lines.append(line)
    return "\n".join(lines).strip()


def _write(path: Path, text: str) -> None:
    """Leave files alone that stay the same, so that only changed pages are made again."""
    if not path.exists() or path.read_text() != text + "\n":
        path.write_text(text + "\n")
