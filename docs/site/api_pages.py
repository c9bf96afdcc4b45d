"""Pages of the Python reference: every public name, with its docstring."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path

import alpa_mlir

# Pages, and the modules whose names of `alpa_mlir.__all__` they hold; others go to "Further".
PAGES = {
    "planning": (
        "Planning",
        ("api", "stages", "cluster", "compiler", "trace"),
    ),
    "methods": (
        "Methods",
        ("methods", "follow_parallel", "compat"),
    ),
    "steps": ("Steps and plans", ("loading", "parallel_step", "plan", "aot")),
    "running": (
        "Where and how steps run",
        (
            *("devices", "execution", "worker_group", "hosts", "data_loader", "session"),
            *("arrays", "step_arguments"),
        ),
    ),
    "checkpoints": ("Checkpoints", ("checkpoint",)),
    "insight": ("Looking inside", ("simulator", "solver", "report")),
    "errors": ("Errors", ("errors",)),
    "further": ("Further", ()),
}
# Modules that are used as such, beside the package's own names.
MODULES = (
    "alpa_mlir.training",
    "alpa_runtime.worker_group",
    "alpa_runtime.transport.interface",
    "alpa_mlir.cluster.profiling",
    "alpa_mlir.search.autotune",
    "alpa_mlir.report",
    "alpa_mlir.doctor",
    "alpa_runtime.execution.reshard_steps",
    "alpa_mlir.simulator.transfer_network",
    "alpa_mlir.compiler",
)


def pages() -> dict[str, list[str]]:
    """Names of the package by page."""
    found: dict[str, list[str]] = {page: [] for page in PAGES}
    for name in alpa_mlir.__all__:
        home = getattr(getattr(alpa_mlir, name), "__module__", "")
        home = home.partition(".")[2]
        page = next(
            (
                page
                for page, (_, modules) in PAGES.items()
                if any(home == m or home.startswith(m + ".") for m in modules)
            ),
            "further",
        )
        found[page].append(name)
    return {page: names for page, names in found.items() if names}


def write(folder: Path) -> None:
    """Write an index, the pages of names, and a page for each of `MODULES`."""
    made = {f"{page}.rst": _names(PAGES[page][0], names) for page, names in pages().items()}
    modules = [m for m in MODULES if importlib.util.find_spec(m) is not None]
    made |= {f"module-{m}.rst": _module(m) for m in modules}
    listed = "\n".join(f"   {name.removesuffix('.rst')}" for name in made)
    title = _title("Python API")
    made["index.rst"] = f"{title}\n{_INDEX}\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}\n"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


_INDEX = """Made of docstrings. Names of the package come first, then modules that are used as such;
everything else is internal."""


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n"


def _names(title: str, names: list[str]) -> str:
    entries: list[str] = []
    for name in names:
        value = getattr(alpa_mlir, name)
        kind = "data"
        if inspect.isclass(value):
            kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        elif inspect.isroutine(value):
            kind = "autofunction"
        if kind == "data":
            kind = "autodata"
        members = "   :members:\n" if kind == "autoclass" else ""
        entries.append(f".. {kind}:: alpa_mlir.{name}\n{members}")
    return _title(title) + "\n" + "\n".join(entries)


def _module(name: str) -> str:
    module = importlib.import_module(name)
    own = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and (key in getattr(module, "__all__", ()) or value.__module__ == module.__name__)
        and key not in alpa_mlir.__all__
    ]
    members = ", ".join(own)
    return (
        _title(name) + f"\n.. automodule:: {name}\n   :members: {members}\n   :imported-members:\n"
    )
