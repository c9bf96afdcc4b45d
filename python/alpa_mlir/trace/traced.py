"""A traced step: StableHLO text, its signature, and how it is called."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from alpa_runtime.aval import Leaf
from alpa_runtime.calling_convention import CallForm
from alpa_runtime.plan.check import without_locations
from alpa_runtime.plan.interface import InputInfo, StaticArgument

from alpa_mlir.compiler import Module
from alpa_mlir.trace.signature import Signature


@dataclass(frozen=True)
class Traced:
    """A step as the compiler wants it.

    Attributes:
        text: StableHLO module in generic form with locations.
        signature: what its inputs and outputs are.
        in_tree: tree of the tuple of positional arguments, the static ones left out.
        out_tree: tree of the result.
        in_leaves: the flattened arguments.
        out_leaves: the flattened results.
        static: the static arguments: positions, and values that are names or numbers.
        tagged_equations: number of forward equations that carry a tag; 0 if nothing is
            differentiated or this JAX cannot be tagged.
        lowered: JAX's own stage, for `as_text` and for comparison with plain JAX; None if the
            text was kept from an earlier trace.
    """

    text: str = field(repr=False)
    signature: Signature
    in_tree: Any
    out_tree: Any
    in_leaves: tuple[Leaf, ...] = field(repr=False)
    out_leaves: tuple[Leaf, ...] = field(repr=False)
    static: tuple[StaticArgument, ...]
    tagged_equations: int
    lowered: Any = field(repr=False)

    def as_text(self, debug_info: bool = False) -> str:
        """The module in pretty form, for people."""
        if self.lowered is None:
            return Module(self.text, self.signature.name).as_text(debug_info=debug_info)
        return self.lowered.as_text(debug_info=debug_info)

    @cached_property
    def form(self) -> CallForm:
        """How the step is called."""
        return self.form_for(1)

    def form_for(self, count: int, added: tuple[InputInfo, ...] = ()) -> CallForm:
        """How a plan of the step is called.

        Args:
            count: its number of micro-batches.
            added: its inputs that callers do not give.
        """
        is_batch = tuple(item.kind == "batch" for item in self.signature.inputs)

        def part(leaf: Leaf) -> Leaf:
            shapes = [(x[0] // count, *x[1:]) for x in (leaf.shape, leaf.data_shape)]
            return replace(leaf, shape=shapes[0], data_shape=shapes[1])

        return CallForm(
            self.signature.name,
            count,
            self.in_tree,
            self.out_tree,
            tuple(
                part(leaf) if batch else leaf
                for leaf, batch in zip(self.in_leaves, is_batch, strict=True)
            ),
            self.out_leaves,
            is_batch,
            self.static,
            added=added,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Tells this step from others: equal computations with equal signatures have equal ones."""
        text = without_locations(self.text) + self.signature.to_json()
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def flatten_args(self, *args: Any) -> list[Any]:
        """Arrays for the module's inputs, batches at full size; keys become their data.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the traced one.
        """
        return self.form.flatten_args(*args)

    def unflatten_results(self, flat: Sequence[Any]) -> Any:
        """The step's result from the module's outputs; key data become keys again."""
        return self.form.unflatten_results(flat)
