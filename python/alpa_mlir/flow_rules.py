"""What one equation does to the examples of a batch: rules by primitive.

Every rule looks at an equation twice, at the size of a micro-batch and at that of the whole
batch, and either says what the results are or raises `NoFlowError`. A primitive without a rule is
not known to keep examples apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from .flow import Flow, NoFlowError, Pair, no_rows, part

Rule = Callable[[Pair, Sequence[Flow]], list[Flow]]


def elementwise(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    """Each element of a result is made of the operands' elements at its place."""
    pair.all_equal()
    result: list[Flow] = []
    for place in range(len(pair.micro.outvars)):
        dim = pair.growth(place)
        if any(f.kind == "part" and f.dim != dim for f in flows):
            raise NoFlowError("it pairs examples of the batch with one another")
        result.append(part(dim, flows))
    return _row_numbers(pair, flows, result)


def _row_numbers(pair: Pair, flows: Sequence[Flow], result: list[Flow]) -> list[Flow]:
    """Numbers of rows are not negative; to normalize them as indices changes nothing."""
    dim = result[0].dim
    if pair.name == "convert_element_type" and flows[0].rows:
        return [replace(flows[0], dim=dim)]
    if pair.name == "lt" and flows[0].rows == (-1,) and flows[1].is_zero:
        return [Flow("part", dim, is_false=True)]
    if pair.name == "select_n" and flows[0].is_false:
        return [flows[1] if flows[1].kind == "part" else part(dim)]
    no_rows(flows)
    return result


def broadcast(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    flow, dims, dim = flows[0], pair.equal("broadcast_dimensions"), pair.growth()
    if flow.kind == "part" and dims[flow.dim] != dim:
        raise NoFlowError("it pairs examples of the batch with one another")
    if flow.rows and flow.rows != (-1,):
        no_rows(flows)
    if dim < 0:
        return [replace(flow, rows=())]
    return [Flow("part", dim, rows=flow.rows, is_false=flow.is_false)]


def reshape(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    flow, dim = flows[0], pair.growth()
    if pair.micro.params["dimensions"] is not None:
        raise NoFlowError("it moves dimensions")
    shape, out = pair.shapes(0)[0], pair.micro.outvars[0].aval.shape
    if flow.kind == "part" and prod(shape[: flow.dim]) != prod(out[:dim]):
        raise NoFlowError("it mixes the batch with a dimension before it")
    if flow.rows and (flow.rows != (-1,) or shape[flow.dim] != out[dim]):
        no_rows(flows)
    return [replace(flow, dim=dim)]


def squeeze(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    flow, gone = flows[0], [d % len(pair.shapes(0)[0]) for d in pair.equal("dimensions")]
    if flow.rows and flow.rows != (-1,):
        no_rows(flows)
    if flow.kind != "part":
        return [flow]
    if flow.dim in gone:  # A micro-batch of one example; the whole batch has no such equation.
        raise NoFlowError("it drops the dimension of the batch")
    return [replace(flow, dim=flow.dim - sum(d < flow.dim for d in gone))]


def transpose(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    order = list(pair.equal("permutation"))
    flow = flows[0]
    return [replace(flow, dim=order.index(flow.dim)) if flow.kind == "part" else flow]


def copy(_pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    """Results are the operands."""
    return list(flows)


def along(*keys: str) -> Rule:
    """The equation works along the dimensions that its parameters name, and on no other."""

    def rule(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
        no_rows(flows)
        pair.all_equal("sizes")
        rank = len(pair.shapes(0)[0])
        dims: list[int] = []
        for key in keys:
            value = pair.equal(key)
            dims += [value] if isinstance(value, int) else list(value)
        batch = {f.dim for f in flows if f.kind == "part"}
        if len(batch) > 1:
            raise NoFlowError("it pairs examples of the batch with one another")
        if batch & {d % rank for d in dims}:
            raise NoFlowError("it works on several examples of the batch at once")
        kept = [pair.growth(i) for i in range(len(pair.micro.outvars))]
        drops = len(pair.micro.outvars[0].aval.shape) < rank
        for dim in batch:
            moved = dim - sum(d % rank < dim for d in dims) if drops else dim
            if any(k != moved for k in kept):
                raise NoFlowError("it mixes the batch with another dimension")
        return [part(k, flows) for k in kept]

    return rule


def reduce_sum(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    if flows[0].kind == "part" and flows[0].dim in pair.equal("axes"):
        return [Flow("sum")]
    return along("axes")(pair, flows)


def concatenate(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    dim = pair.growth()
    axis: int = pair.equal("dimension")
    if any(f.kind == "part" and f.dim != dim for f in flows) or (dim >= 0 and dim == axis):
        raise NoFlowError("it joins arrays along the batch")
    rows: tuple[int, ...] = ()
    rank, at = len(pair.micro.outvars[0].aval.shape), 0
    for place, flow in enumerate(flows):
        size = pair.shapes(place)[0][axis]
        if flow.rows:
            if flow.rows != (-1,) or axis != rank - 1:
                no_rows(flows)
            rows += tuple(range(at, at + size))
        at += size
    result = part(dim, flows)
    return [replace(result, rows=rows)] if rows else [result]


def slices(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    """`slice`, `dynamic_slice` and `dynamic_update_slice`: the batch's dimension stays whole."""
    no_rows(flows)
    flow, dim = flows[0], pair.growth()
    if any(f.kind == "part" for f in flows[2 if pair.name == "dynamic_update_slice" else 1 :]):
        raise NoFlowError("its indices depend on the batch")
    if pair.name == "slice":
        pair_starts, strides = pair.equal("start_indices"), pair.equal("strides")
        if dim >= 0 and (pair_starts[dim] != 0 or (strides is not None and strides[dim] != 1)):
            raise NoFlowError("it takes some of the examples")
    # What is as long as the batch at both sizes is all of it.
    sizes = [*pair.shapes(0), pair.micro.outvars[0].aval.shape, pair.full.outvars[0].aval.shape]
    if pair.name == "dynamic_update_slice":
        sizes += pair.shapes(1)
    for f in flows[: 2 if pair.name == "dynamic_update_slice" else 1]:
        if f.kind == "part" and f.dim != dim:
            raise NoFlowError("it takes some of the examples")
    if dim >= 0:
        if pair.name != "dynamic_update_slice" and flow.kind != "part":
            raise NoFlowError("it takes as many rows as the batch has")
        if len({shape[dim] for shape in sizes[0::2]}) > 1 or len({s[dim] for s in sizes[1::2]}) > 1:
            raise NoFlowError("it takes some of the examples")
    return [part(dim, flows)]


def pad(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    config = pair.equal("padding_config")
    if flows[0].kind == "part" and tuple(config[flows[0].dim]) != (0, 0, 0):
        raise NoFlowError("it pads the batch")
    return [part(pair.growth(), flows)]


def tile(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    dim = pair.growth()
    micro: Sequence[int]
    full: Sequence[int]
    (micro, full) = pair.params("reps")
    if flows[0].kind == "part" and (flows[0].dim != dim or micro[dim] != 1 or full[dim] != 1):
        raise NoFlowError("it repeats the examples of the batch")
    if any(a != b for i, (a, b) in enumerate(zip(micro, full, strict=True)) if i != dim):
        raise NoFlowError("it is another operation for another batch")
    return [part(dim, flows)]


def stack(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    axis, dim = pair.equal("axis"), pair.growth()
    if any(f.kind == "part" and f.dim + (f.dim >= axis) != dim for f in flows):
        raise NoFlowError("it joins arrays along the batch")
    return [part(dim, flows)]


def fft(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    pair.all_equal()
    dim = pair.growth()
    if dim >= len(pair.shapes(0)[0]) - len(pair.params("fft_lengths")[0]):
        raise NoFlowError("it works on several examples of the batch at once")
    return [part(dim, flows)]


def dot_general(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    pair.all_equal()
    contract, batch = pair.equal("dimension_numbers")
    dims = [f.dim if f.kind == "part" else -1 for f in flows]
    both = [list(zip(*lists, strict=True)) for lists in (contract, batch)]
    if min(dims) >= 0:
        if tuple(dims) in both[0]:
            return [Flow("sum")]
        if tuple(dims) not in both[1]:
            raise NoFlowError("it pairs examples of the batch with one another")
    # A contracted or paired dimension is as long in the other operand, which would grow too.
    return [part(pair.growth(), flows)]


def convolution(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    pair.all_equal("lhs_shape", "rhs_shape")
    numbers, dim = pair.equal("dimension_numbers"), pair.growth()
    if flows[1].kind == "part" or pair.equal("batch_group_count") != 1:
        raise NoFlowError("its kernel depends on the batch")
    if flows[0].kind == "part" and (flows[0].dim, dim) != (
        numbers.lhs_spec[0],
        numbers.out_spec[0],
    ):
        raise NoFlowError("it works on several examples of the batch at once")
    return [part(dim, flows)]


def window(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    """Reductions over windows that are one example wide."""
    no_rows(flows)
    pair.all_equal()
    sizes, dim = pair.equal("window_dimensions"), pair.growth()
    for flow in flows:
        if flow.kind != "part":
            continue
        alone = sizes[dim] == 1 and pair.micro.params["window_strides"][dim] == 1
        if flow.dim != dim or not alone or tuple(pair.micro.params["padding"][dim]) != (0, 0):
            raise NoFlowError("it works on several examples of the batch at once")
    return [part(dim, flows)]


def iota(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    dim = pair.growth()
    if dim >= 0 and dim == pair.equal("dimension"):
        return [Flow("part", dim, rows=(-1,))]
    return [part(dim, flows)]


def gather(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    pair.all_equal("slice_sizes")
    numbers, dim = pair.equal("dimension_numbers"), pair.growth()
    operand, indices = flows[0], flows[1]
    sizes: tuple[Sequence[int], Sequence[int]] = pair.params("slice_sizes")
    vector = len(pair.shapes(1)[0]) - 1
    if indices.kind == "part" and indices.dim == vector:
        raise NoFlowError("it takes an index of each example")
    if operand.kind == "part":
        at = operand.dim
        if at in numbers.operand_batching_dims:
            place = numbers.operand_batching_dims.index(at)
            if indices.kind != "part" or indices.dim != numbers.start_indices_batching_dims[place]:
                raise NoFlowError("it pairs examples of the batch with one another")
        elif at in numbers.start_index_map:
            columns = indices.rows
            own = (
                numbers.start_index_map.index(at) in columns and at in numbers.collapsed_slice_dims
            )
            if not own or len(columns) != 1:
                raise NoFlowError("it picks examples of the batch")
            indices = replace(indices, rows=())
        elif indices.kind == "part":
            raise NoFlowError("it pairs examples of the batch with one another")
        elif any(s[at] != shape[at] for s, shape in zip(sizes, pair.shapes(0), strict=True)):
            raise NoFlowError("it takes some of the examples")
    no_rows([operand, indices])
    if dim >= 0 and operand.kind != "part" and indices.kind != "part":
        raise NoFlowError("it takes as many rows as the batch has")
    return [part(dim, flows)]


def scatter(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    no_rows(flows)
    pair.all_equal()
    dim = pair.growth()
    numbers = pair.equal("dimension_numbers")
    operand, indices, updates = flows
    vector = len(pair.shapes(1)[0]) - 1
    if indices.kind == "part" and indices.dim == vector:
        raise NoFlowError("it takes an index of each example")
    outer = [
        d for d in range(len(pair.shapes(2)[0])) if d not in numbers.update_window_dims
    ]  # Of updates, in the order of the indices' dimensions.
    if dim < 0:
        if updates.kind != "part" and indices.kind != "part":
            return [part(dim, flows)]
        in_order = updates.kind == indices.kind == "part" and outer[indices.dim] == updates.dim
        if pair.name == "scatter-add" and operand.is_zero and in_order:
            return [Flow("sum")]  # A histogram.
        raise NoFlowError("it adds examples of the batch to an array")
    if operand.kind == "part" and operand.dim != dim:
        raise NoFlowError("it pairs examples of the batch with one another")
    if dim in numbers.operand_batching_dims:
        place = numbers.operand_batching_dims.index(dim)
        at = numbers.scatter_indices_batching_dims[place]
        if all(f.kind == "part" for f in flows) and (indices.dim, updates.dim) == (at, outer[at]):
            return [Flow("part", dim)]
        raise NoFlowError("it pairs examples of the batch with one another")
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(len(pair.shapes(0)[0])) if d not in gone]
    if dim not in kept or dim in numbers.scatter_dims_to_operand_dims or indices.kind == "part":
        raise NoFlowError("it writes to examples of the batch")
    at: int = numbers.update_window_dims[kept.index(dim)]
    written, rows = pair.shapes(2), pair.shapes(0)
    whole = written[0][at] == rows[0][dim] and written[1][at] == rows[1][dim]
    if not whole or (updates.kind == "part" and updates.dim != at):
        raise NoFlowError("it writes to some of the examples")
    return [Flow("part", dim)]


_ELEMENTWISE = (
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e "
    "bitcast_convert_type cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos "
    "cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag "
    "integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min mul mulhi ne neg "
    "nextafter not or polygamma population_count pow real reduce_precision "
    "regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta"
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), elementwise),
    **dict.fromkeys(
        ("reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"),
        along("axes"),
    ),
    **dict.fromkeys(("argmax", "argmin"), along("axes")),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), along("axis")),
    **dict.fromkeys(("slice", "dynamic_slice", "dynamic_update_slice"), slices),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), window),
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"), scatter
    ),
    "broadcast_in_dim": broadcast,
    "concatenate": concatenate,
    "conv_general_dilated": convolution,
    "dot_general": dot_general,
    "fft": fft,
    "gather": gather,
    "iota": iota,
    "optimization_barrier": copy,
    "pad": pad,
    "reduce_sum": reduce_sum,
    "reshape": reshape,
    "rev": along("dimensions"),
    "sort": along("dimension"),
    "split": along("axis"),
    "squeeze": squeeze,
    "stack": stack,
    "tile": tile,
    "top_k": along("axis"),
    "transpose": transpose,
    "unstack": along("axis"),
}
