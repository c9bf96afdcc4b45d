"""A traced step: StableHLO text, its signature, and how it is called."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .call_form import CallForm
from .compiler import Module
from .leaf import Leaf
from .plan_check import without_locations
from .plan_interface import StaticArgument
from .signature import Input, Output, Signature


@dataclass(frozen=True)
class Traced:
    """A step as the compiler wants it.

    Attributes:
        text: StableHLO module in generic form with locations.
        signature: what its inputs and outputs are.
        in_tree: tree of the tuple of positional arguments, the static ones left out.
        out_tree: tree of the result.
        in_leaves: the flattened arguments, batches at micro-batch size.
        out_leaves: the flattened results.
        static: the static arguments: positions, and values that are names or numbers.
        tagged_equations: number of forward equations that carry a tag; 0 if nothing is
            differentiated or this JAX cannot be tagged.
        whole_only: why the step has one micro-batch only; empty if it may have several, and
            always for steps with gradients.
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
    whole_only: str
    lowered: Any = field(repr=False)

    def as_text(self, debug_info: bool = False) -> str:
        """The module in pretty form, for people."""
        if self.lowered is None:
            return Module(self.text, self.signature.name).as_text(debug_info=debug_info)
        return self.lowered.as_text(debug_info=debug_info)

    @cached_property
    def form(self) -> CallForm:
        """How the step is called."""
        return CallForm(
            self.signature.name,
            self.signature.num_micro_batches,
            self.in_tree,
            self.out_tree,
            self.in_leaves,
            self.out_leaves,
            tuple(item.kind == "batch" for item in self.signature.inputs[: len(self.in_leaves)]),
            self.static,
            is_numbered=len(self.signature.inputs) > len(self.in_leaves),
        )

    @cached_property
    def fingerprint(self) -> str:
        """Tells this step from others: equal computations with equal signatures have equal ones."""
        text = without_locations(self.text) + self.signature.to_json()
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def resized(self, signature: Signature, text: str) -> Traced:
        """The same step at another number of micro-batches, as it was traced before.

        Args:
            signature, text: what that trace gave.
        """
        if signature.num_micro_batches == self.signature.num_micro_batches:
            return self

        def fit(leaves: Sequence[Leaf], forms: Sequence[Input] | Sequence[Output]) -> Any:
            return tuple(
                replace(leaf, shape=(*form.shape[:1], *leaf.shape[1:]), data_shape=form.shape)
                if leaf.shape
                else leaf
                for leaf, form in zip(leaves, forms, strict=False)
            )

        return replace(
            self,
            text=text,
            signature=signature,
            in_leaves=fit(self.in_leaves, signature.inputs),
            out_leaves=fit(self.out_leaves, signature.outputs),
            lowered=None,
        )

    def flatten_args(self, *args: Any) -> list[Any]:
        """Arrays for the module's inputs, batches at full size; keys become their data.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the traced one.
        """
        return self.form.flatten_args(*args)

    def unflatten_results(self, flat: Sequence[Any]) -> Any:
        """The step's result from the module's outputs; key data become keys again."""
        return self.form.unflatten_results(flat)
