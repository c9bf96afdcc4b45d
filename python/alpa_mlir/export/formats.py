"""What plans can be written as for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Exported:
    """A plan in the form of another program.

    Attributes:
        text: the file.
        notes: what the plan says and the file does not, each in one line.
    """

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """A form.

    Attributes:
        summary: what the file is.
        suffix: of its name.
        module: the one of `alpa_mlir.export` whose `export` makes it.
        no_stages: why it cannot say pipeline stages; empty if it can.
    """

    summary: str
    suffix: str
    module: str
    no_stages: str = ""


#: Every format, by the name that `--to` takes.
FORMATS = MappingProxyType(
    {
        "jax": Format(
            "a Python module of shardings, for `jax.jit`",
            ".py",
            "jax_module",
            no_stages="jax.jit runs one mesh",
        ),
        "mpmd": Format("Shardy's MPMD dialect", ".mlir", "mpmd"),
        "maxtext": Format("a configuration file of MaxText", ".yml", "maxtext"),
        "levanter": Format(
            "the trainer's section of Levanter's configuration",
            ".yml",
            "levanter",
            no_stages="Levanter has none",
        ),
    }
)

#: Forms that are not written, by name, and why.
NOT_WRITTEN = MappingProxyType(
    {
        "jaxpp": "JaxPP is on no package index, and runs with CUDA and JAX of at most 0.6 only, so "
        "that no file of it could be checked by its own reader",
    }
)
