"""Turn a user's training step into StableHLO text and a signature.

The step is traced at micro-batch shape: every batch leaf has its dimension 0 divided by the
number of micro-batches. Every op's location carries JAX's name stack, in which the ops of a
differentiated function are tagged with their forward equation (see tagging.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from . import carry, jaxpr_facts, lowering, micro_batch, trees
from .call_form import static_arguments
from .errors import TraceError
from .forward_only import ForwardStep
from .leaf import MICRO_BATCH, Leaf, make_leaf
from .lowering import Example
from .signature import Input, Output, Signature
from .traced import Traced


def trace(
    fn: Callable[..., Any],
    *args: Any,
    num_micro_batches: int = 1,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    gradient_reduction: Literal["mean", "sum"] = "mean",
    carried: Mapping[int, int | None] | None = None,
    hook: bool = True,
    platform: str | None = None,
) -> Traced:
    """Trace `fn(*args)` at micro-batch shape.

    Args:
        fn: the step, `(state..., batch) -> result`; jitted or not. Plain `jax.value_and_grad`
            inside gives exact forward/backward pairing.
        args: example arguments: arrays or `jax.ShapeDtypeStruct`; a batch has its full size.
        num_micro_batches: parts of every batch leaf along dimension 0.
        batch_argnums: the arguments that are batches; by default the last one that is not
            static. All others are state.
        static_argnums: arguments that are Python values, not arrays.
        gradient_reduction: whether gradients, and results of real dtype whose shape does not
            grow with the batch, are averaged or summed over micro-batches. Results of integer
            dtype that depend on the batch are counts and always summed. A step without gradients
            needs no such choice: its results are those of the whole batch.
        carried: by number of a state argument, the index of the result that is its next
            value, or None for an argument that is never replaced. By default found from the
            trees (see carry.py).
        hook: tag equations under plain `jax.grad` too, not only under `alpa_mlir.grad`.
        platform: `"cpu"`, `"cuda"`, ...: what to lower for; the default backend if None.

    Raises:
        MicroBatchError: a batch leaf cannot be split into `num_micro_batches`.
        TraceError: bad options, a step that fails at micro-batch shape, a result whose
            micro-batches cannot be combined, or an ambiguous state.

    Example:
        >>> traced = trace(step, state, batch, num_micro_batches=4)
        >>> print(traced.as_text())
    """
    if gradient_reduction not in ("mean", "sum"):
        raise TraceError(
            f"got {gradient_reduction!r}", where="gradient_reduction", fix="use 'mean' or 'sum'"
        )
    static, dynamic, batches = _kinds(fn, args, static_argnums, batch_argnums)
    for number in carried or {}:
        if number not in dynamic or number in batches:
            raise TraceError(f"argument {number} is not a state argument", where="carried")
    names = micro_batch.argument_names(fn, len(args))
    full = micro_batch.abstract(args, dynamic, names)
    micro = micro_batch.split_batches(full, batches, names, num_micro_batches)
    example = Example(fn, static, dynamic, batches, micro, full, num_micro_batches)
    # Whether the step needs the micro-batch's number is known for sure once it is traced.
    step = lowering.lower(example, example.may_draw(), hook, platform)
    forward: ForwardStep | None = None
    if step.lowered is None:
        plain = example.jitted.trace(*micro) if step.numbered else step.traced
        forward = lowering.forward_step(example, plain)
        tagged = forward.function(example.name, dynamic, trees.structure(step.traced.out_info))
        again = replace(example, fn=tagged)
        step = lowering.lower(again, step.numbered, hook, platform, is_tagged=True)
    lowering.check_single_examples(example)

    in_paths, in_tree = trees.flatten_with_path(tuple(micro[i] for i in dynamic))
    owners: list[int] = [dynamic[path[0].idx] for path, _ in in_paths]
    in_leaves = tuple(
        make_leaf(names[owner] + trees.text(path[1:]), aval)
        for owner, (path, aval) in zip(owners, in_paths, strict=True)
    )
    out_paths, out_tree = trees.flatten_with_path(step.traced.out_info)
    out_leaves = tuple(make_leaf("result" + trees.text(path), aval) for path, aval in out_paths)

    facts = jaxpr_facts.result_facts(step.traced.jaxpr)
    if forward is not None and forward.why_whole:  # Any result may be the next value of a state.
        facts = [replace(f, phase="update" if f.phase == "forward" else f.phase) for f in facts]
    states: list[carry.Subtree] = []
    in_avals = [(leaf.shape, str(leaf.dtype)) for leaf in in_leaves]
    for number in dynamic:
        if number not in batches:
            states.append(
                carry.subtree(
                    micro[number], names[number], in_avals, _first(owners, number), number
                )
            )
    out_avals = [(leaf.shape, str(leaf.dtype)) for leaf in out_leaves]
    result = carry.subtree(step.traced.out_info, "result", out_avals, 0)
    pairs = carry.match_state(states, result, facts, carried)

    batch_bits = sum(1 << i for i, owner in enumerate(owners) if owner in batches)
    if step.numbered:
        number_bit = 1 << len(in_leaves)
        _check_carried_keys(in_leaves, pairs, facts, number_bit)
        batch_bits |= number_bit
    carried_results = set(pairs.values())
    if forward is not None:
        reductions = forward.check(out_leaves, carried_results)
        gradient_reduction = "sum"  # What the update reads of a batch are sums.
    else:
        reductions = micro_batch.find_reductions(
            out_leaves,
            facts,
            carried_results,
            batch_bits,
            num_micro_batches,
            gradient_reduction,
            example.result_shapes,
        )
    inputs = tuple(
        Input(
            leaf.name,
            leaf.data_shape,
            leaf.data_dtype,
            "batch" if owner in batches else "state",
            pairs.get(i),
        )
        for i, (leaf, owner) in enumerate(zip(in_leaves, owners, strict=True))
    )
    if step.numbered:
        inputs += (Input(MICRO_BATCH, (1,), "uint32", "batch", per_micro_batch=True),)
    outputs = tuple(
        Output(leaf.name, leaf.data_shape, leaf.data_dtype, reduction)
        for leaf, reduction in zip(out_leaves, reductions, strict=True)
    )
    module = step.lowered.compiler_ir("stablehlo").operation
    _check_main(module, len(inputs), len(outputs), example.name)
    return Traced(
        module.get_asm(print_generic_op_form=True, enable_debug_info=True),
        Signature(example.name, num_micro_batches, gradient_reduction, inputs, outputs),
        in_tree,
        out_tree,
        in_leaves,
        out_leaves,
        static_arguments(args, static),
        step.session.equations,
        "" if forward is None else forward.why_whole,
        step.lowered,
    )


def _kinds(
    fn: Callable[..., Any],
    args: Sequence[Any],
    static_argnums: int | Sequence[int],
    batch_argnums: int | Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Numbers of the arguments that are Python values, of the others, and of the batches."""
    static = micro_batch.positions(static_argnums, len(args), "static_argnums")
    dynamic = tuple(i for i in range(len(args)) if i not in static)
    if not dynamic:
        where = lowering.name_of(fn)
        raise TraceError("no example argument holds arrays", where=where, fix="pass a batch")
    default = dynamic[-1] if batch_argnums is None else batch_argnums
    batches = micro_batch.positions(default, len(args), "batch_argnums")
    if set(batches) & set(static):
        raise TraceError("a batch argument is also in static_argnums", where="batch_argnums")
    return static, dynamic, batches


def _check_carried_keys(
    in_leaves: Sequence[Leaf],
    pairs: Mapping[int, int],
    facts: Sequence[jaxpr_facts.ResultFacts],
    number_bit: int,
) -> None:
    """The next key is the unmodified step's, which knows no micro-batches."""
    for i, leaf in enumerate(in_leaves):
        is_key = leaf.key_impl is not None or leaf.data_dtype == "uint32"
        if is_key and i in pairs and facts[pairs[i]].depends & number_bit:
            raise TraceError(
                "the next value of this random key comes from inside of the loss function, mixed "
                "with what depends on the micro-batch",
                where=leaf.name,
                fix="split the key outside of the loss function, or use one micro-batch",
            )


def _first(owners: Sequence[int], number: int) -> int:
    """Number of the first leaf of an argument; any number will do for one without leaves."""
    return owners.index(number) if number in owners else 0


def _check_main(module: Any, inputs: int, outputs: int, name: str) -> None:
    """Lowering must neither drop an argument nor add one."""
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main":
            kind = op.attributes["function_type"].value
            if (len(kind.inputs), len(kind.results)) == (inputs, outputs):
                return
            raise TraceError(
                f"lowering made {len(kind.inputs)} inputs and {len(kind.results)} results of the "
                f"step's {inputs} and {outputs}",
                where=name,
                fix="pass large arrays as arguments instead of closing over them",
            )
    raise TraceError("lowering made no function @main", where=name)
