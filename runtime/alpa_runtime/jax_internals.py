"""The only place that touches private names of JAX.

What tracing uses has a fallback: where JAX moved a name, the function says so by its result and
the caller goes on without it. What puts arrays on devices and compiles has none: JAX offers no
public way. All of it was tried on these versions:

========  ==================================================================
JAX       how
========  ==================================================================
0.10.2    all tests: the lock file of Python 3.11
0.11      saved plans run: `test_newer_jax.py`
0.12      all tests: the lock files of Python 3.12 and 3.13; saved plans run
========  ==================================================================
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

TRIED = "0.10.2 to 0.12"
_ENTRY = "vjp"  # the function that jax.grad and jax.value_and_grad call, in jax._src.api


def _array_type() -> type:
    """The class of arrays on devices: a check of that alone costs a hundredth of `isinstance`."""
    module: Any = importlib.import_module("jax._src.array")
    return getattr(module, "ArrayImpl", _Unknown)


class _Unknown:
    """Of no array: all are looked at more closely."""


ArrayImpl: type = _array_type()


class _Patch:
    """Replaces an attribute while at least one `with` block of any thread is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._undo: list[Callable[[], None]] = []

    def enter(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        with self._lock:
            if self._depth == 0:
                owner = _grad_module()
                if owner is None:
                    return False
                original = getattr(owner, _ENTRY)
                replacement = wrap(original)
                for target in (owner, jax):
                    if getattr(target, _ENTRY, None) is original:
                        setattr(target, _ENTRY, replacement)
                        self._undo.append(lambda target=target: setattr(target, _ENTRY, original))
            self._depth += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                for undo in self._undo:
                    undo()
                self._undo.clear()


_patch = _Patch()


def _grad_module() -> Any | None:
    """The module whose `vjp` global `jax.value_and_grad` calls, or None if JAX changed."""
    try:
        from jax._src import api
    except ImportError:
        return None
    function: Any = getattr(api, "value_and_grad", None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None or not callable(getattr(api, _ENTRY, None)):
        return None
    inner = [c for c in code.co_consts if hasattr(c, "co_names")]
    called = {name for c in (code, *inner) for name in c.co_names}
    return api if _ENTRY in called else None


@contextlib.contextmanager
def intercept_grad(
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Generator[bool]:
    """Route the calls that `jax.grad` makes to `vjp` through `wrap(vjp)` inside the block.

    The replacement is seen by all threads, so `wrap`'s result must look at state of its own
    thread before it acts. Blocks may nest and overlap; the first one's `wrap` is used.

    Yields:
        True if the calls are intercepted, False if this JAX has no such door.
    """
    if not _patch.enter(wrap):
        yield False
        return
    try:
        yield True
    finally:
        _patch.leave()


class _MappedProducts:
    """Replaces JAX's rule while at least one `with` block of any thread is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._undo: Callable[[], None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._undo = _map_ragged_dots()
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._undo is not None:
                self._undo()


_mapped_products = _MappedProducts()


@contextlib.contextmanager
def mapped_products() -> Generator[None]:
    """Let `jax.vmap` map `ragged_dot`s whose weights are the same for all, inside the block."""
    with _mapped_products:
        yield


def _map_ragged_dots() -> Callable[[], None] | None:
    """Map `ragged_dot`s of which not all operands are mapped; gives what takes that back.

    JAX has a rule if all operands are mapped in their first dimension; others are repeated.
    None if JAX changed: such products then have no rule, as before.
    """
    try:
        from jax._src.interpreters import batching
        from jax._src.lax import lax as module

        internals: Any = module
        owner: Any = batching
        primitive = internals.ragged_dot_general_p
        rules: Any = owner.fancy_primitive_batchers
        known: Any = rules[primitive]
    except (ImportError, AttributeError, KeyError):
        return None

    def rule(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
        numpy: Any = jax.numpy
        given = [
            numpy.moveaxis(x, dim, 0)
            if dim is not None
            else numpy.broadcast_to(x, (axis.size, *x.shape))
            for x, dim in zip(args, dims, strict=True)
        ]
        return known(axis, given, (0,) * len(given), **params)

    rules[primitive] = rule

    def undo() -> None:
        rules[primitive] = known

    return undo


_CUDNN = 91002  # Newer than what any check of fused attention asks for.


def plain_lowering(has_ragged_dot: bool = True) -> dict[str, Any]:
    """Arguments of `Traced.lower` for ops that every platform knows.

    Args:
        has_ragged_dot: whether the platform has an op for products of rows with the weights of
            their group. It is written for others nevertheless.

    Cumulative sums in windows: on GPUs JAX writes them as an op of its own from 0.12 on, which XLA
    turns into windows. The largest elements exactly: where JAX asks for approximate ones, all
    platforms but TPUs sort.
    """
    try:
        from jax._src.interpreters import mlir
        from jax._src.lax.ann import approx_top_k_p
        from jax._src.lax.control_flow.loops import cumsum_p

        owner: Any = mlir
        found: Any = owner._lowerings[cumsum_p]
        rules: Any = (
            (cumsum_p, getattr(found, "rule", found)),
            (approx_top_k_p, owner.lower_fun(_exact_top_k, multiple_results=True)),
            *(() if has_ragged_dot else _ragged_dot_of_rows(owner)),
        )
        return {"_private_parameters": mlir.LoweringParameters(override_lowering_rules=rules)}
    except (ImportError, AttributeError, KeyError, TypeError):
        return {}


def _ragged_dot_of_rows(owner: Any) -> tuple[tuple[Any, Any], ...]:
    """JAX's rule of GPUs for `ragged_dot`s of rows; its own rule for others."""
    try:
        from jax._src.lax import lax as module

        internals: Any = module
        primitive = internals.ragged_dot_general_p
        known: Any = owner._lowerings[primitive]
        of_gpus: Any = internals._ragged_dot_general_lower
    except (ImportError, AttributeError, KeyError):
        return ()
    plain = getattr(known, "rule", known)

    def lower(ctx: Any, lhs: Any, rhs: Any, sizes: Any, **params: Any) -> Any:
        numbers = params["ragged_dot_dimension_numbers"]
        (contracting, _), (batch, of_weights) = numbers.dot_dimension_numbers
        count = len(batch)
        is_of_rows = (
            len(ctx.avals_in[0].shape) == count + 2
            and len(ctx.avals_in[2].shape) == count + 1
            and tuple(batch) == tuple(of_weights) == tuple(range(count))
            and len(contracting) == 1
            and tuple(numbers.lhs_ragged_dimensions) == (count,)
            and params.get("group_offset") is None
        )
        if not is_of_rows:
            return plain(ctx, lhs, rhs, sizes, **params)
        return of_gpus(ctx, lhs, rhs, sizes, **params)

    return ((primitive, lower),)


def lowered_function(ctx: Any, name: str, body: Any) -> Any:
    """A function in the module of a lowering, made of a jaxpr without constants."""
    from jax.interpreters import mlir

    owner: Any = mlir
    lower = owner.lower_jaxpr_to_fun
    given: dict[str, Any] = {
        "num_const_args": 0,
        "in_avals": body.in_avals,
        "out_avals": body.out_avals,
    }
    known = inspect.signature(lower).parameters
    given = {key: value for key, value in given.items() if key in known}
    return lower(ctx.module_context, name, body, [], **given).operation


def _exact_top_k(
    operand: Any, *, k: int, reduction_dimension: int, is_max_k: bool, **approximation: Any
) -> list[Any]:
    """What `approx_max_k` and `approx_min_k` give with a recall of 1."""
    del approximation
    lax: Any = jax.lax
    numpy: Any = jax.numpy
    rows = numpy.moveaxis(operand, reduction_dimension, -1)
    values, places = lax.top_k(rows if is_max_k else -rows, k)
    made = (values if is_max_k else -values, places)
    return [numpy.moveaxis(x, -1, reduction_dimension) for x in made]


@contextlib.contextmanager
def described_gpu(compute_capability: str) -> Generator[None, None, None]:
    """Let JAX lower for GPUs that this process does not have.

    JAX asks the first GPU and cuDNN whether fused attention can do what is asked of it, and Pallas
    for which GPU to compile a kernel; within the block a GPU of that compute capability answers.
    """
    described = _version(compute_capability)

    def is_at_least(wanted: str) -> bool:
        return described >= _version(wanted)

    def is_exactly(wanted: str) -> bool:
        return described == _version(wanted)

    answers: dict[str, Callable[..., Any]] = {
        "check_cudnn_version": lambda: _CUDNN,
        "check_compute_capability": is_at_least,
        "is_cuda_compute_capability_equal": is_exactly,
    }
    with _described, contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            from jax._src.cudnn import fused_attention_stablehlo

            stack.enter_context(_answering(fused_attention_stablehlo, answers))
        with contextlib.suppress(ImportError):
            from jax._src.pallas.triton import gpu_info

            kernels: Any = gpu_info

            def info() -> Any:
                return kernels.GpuInfo(
                    gpu_version=None,
                    arch_name=compute_capability,
                    compute_capability=10 * described[0] + described[1],
                )

            stack.enter_context(_answering(kernels, {"get_gpu_info": info}))
        yield


_described = threading.RLock()


@contextlib.contextmanager
def _answering(owner: Any, answers: dict[str, Callable[..., Any]]) -> Generator[None, None, None]:
    """Replaces those functions of a module that it has, inside the block."""
    asked = {name: getattr(owner, name) for name in answers if hasattr(owner, name)}
    for name in asked:
        setattr(owner, name, answers[name])
    try:
        yield
    finally:
        for name, function in asked.items():
            setattr(owner, name, function)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def accept_as_array(kind: type, array_of: Callable[[Any], jax.Array]) -> None:
    """Let functions of JAX take objects of a class, with `shape` and `dtype`, as arrays.

    Where JAX has no such door, they take what `array_of` makes of one.
    """
    try:
        from jax._src import core, dtypes

        owner: Any = core
        mappings, abstract = owner.pytype_aval_mappings, owner.shaped_abstractify
        owner = dtypes
        register = owner.register_canonicalize_value_handler
    except (ImportError, AttributeError):
        return

    def aval(x: Any) -> Any:
        return abstract(jax.ShapeDtypeStruct(x.shape, x.dtype))

    mappings[kind] = aval
    register(kind, array_of)


def params_of(eqn: Any) -> dict[str, Any]:
    """The parameters of an equation.

    Those of an op that is an object (`call_hi_primitive`) are the object's: from JAX 0.11 on,
    `jax.checkpoint` is one with `jax_remat3`.
    """
    return getattr(eqn.params.get("_prim"), "params", eqn.params)


def expanded(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Results of an op that is an object, by the ops that it stands for."""
    op = eqn.params["_prim"]
    tree: Any = jax.tree
    return list(tree.leaves(op.expand(*tree.unflatten(op.in_tree, operands))))


def attention_lowering(eqn: Any) -> Callable[..., Sequence[Any]] | None:
    """How JAX writes cuDNN's fused attention, or its gradient, into the module of a lowering: a
    function of the lowering's context and of the equation's operands there. Nothing where JAX has
    it elsewhere."""
    try:
        module: Any = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
        part = "bwd" if "_bwd" in eqn.primitive.name else "fwd"
        lower = getattr(module, f"_dot_product_attention_{part}_cuda_lowering")
    except (ImportError, AttributeError):
        return None
    known = inspect.signature(lower).parameters
    given: dict[str, Any] = {name: None for name in known if name.startswith("score_mod_")}
    given.pop("score_mod_args", None)
    given |= {name: value for name, value in eqn.params.items() if name in known}
    return partial(lower, **given)


def is_interpreted(eqn: Any) -> bool:
    """Whether it is a kernel of Pallas that JAX runs by other ops (`interpret=True`)."""
    return eqn.primitive.name == "pallas_call" and eqn.params.get("interpret") is True


def interpreted(eqn: Any) -> Any:
    """The ops that JAX runs for a kernel of Pallas, as its lowering has them: a closed jaxpr, of
    the mesh that the kernel was traced under."""
    module: Any = importlib.import_module("jax._src.pallas.hlo_interpreter")
    of_call = ("interpret", "backend")
    params = {name: value for name, value in eqn.params.items() if name not in of_call}
    api: Any = jax
    with eqn.ctx.manager:
        trace = api.make_jaxpr(partial(module.pallas_call_hlo_interpret, **params))
        return trace(*(v.aval for v in eqn.invars))


def scan_operands(eqn: Any) -> tuple[int, int]:
    """Of a scan's operands, how many are the same in all iterations, and how many are carried,
    which come next. From JAX 0.12 on, trees say so."""
    trees = eqn.params.get("ft_in")
    if trees is None:
        return int(eqn.params["num_consts"]), int(eqn.params["num_carry"])
    same, carried, _ = trees.unpack()
    return len(same), len(carried)


def same_trace(value: Any, other: Any) -> bool:
    """Whether two values belong to one transformation in progress, such as one `jax.vmap`."""
    trace = getattr(other, "_trace", None)
    return trace is not None and getattr(value, "_trace", None) is trace


def varying_axes(aval: Any) -> frozenset[str]:
    """Manual mesh axes over which a value in a `shard_map` may differ, as its type says."""
    of_type = getattr(aval, "mat", None)
    return frozenset(getattr(aval, "vma", ()) if of_type is None else of_type.varying)


def as_any(value: Any) -> Any:
    """The same object, of which a type checker believes everything."""
    return value


def pxla() -> Any:
    """Where arrays are put on devices."""
    from jax._src.interpreters import pxla

    return pxla


def fault_of_rule(rule: str, reduction: Sequence[str], need_replication: Sequence[str]) -> str:
    """What is wrong with a sharding rule in the notation of `custom_partitioning`; empty if nothing
    is, or if JAX's reader has moved. Sizes of factors are not looked at."""
    try:
        module: Any = importlib.import_module("jax._src.custom_partitioning_sharding_rule")
        read = module.str_to_sdy_sharding_rule
    except (ImportError, AttributeError):
        return "" if "->" in rule else "it has no '->'"
    depth = 0
    for letter in rule:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth not in (0, 1):
            break
    if depth:
        return "brackets are not balanced, or within each other"
    try:
        # Without brackets it asks for no sizes.
        found = read(
            rule.replace("(", " ").replace(")", " "),
            reduction_factors=tuple(reduction),
            need_replication_factors=tuple(need_replication),
        )
    except (ValueError, TypeError) as error:
        return str(error)
    for dims in (*found.operand_mappings, *found.result_mappings):
        for name in dims:
            if dims.count(name) > 1:
                return f"factor {name} is in two dimensions of one array"
    return ""


def mlir_ir() -> Any:
    """MLIR's classes, for modules that JAX lowers to."""
    from jax._src.lib import mlir

    return as_any(mlir).ir


def xla_client() -> Any:
    """jaxlib's client: devices, shardings, compile options."""
    from jax._src import lib

    return as_any(lib).xla_client


def c_api_topology(platform: str, options: dict[str, str]) -> Any:
    """The topology of devices that need not be here, of a platform whose plugin is loaded."""
    from jax._src import lib

    return as_any(lib)._jax.get_default_c_api_topology(platform, "", options)


def backends_are_up() -> bool:
    """Whether this process has made its JAX devices already."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def without_context_mesh() -> contextlib.AbstractContextManager[Any]:
    """Hides the mesh that the caller has set by `jax.set_mesh`.

    JAX refuses arrays of other devices than that mesh's, even as arguments of functions that never
    name it; a plan's arrays lie on the plan's devices.

    Example:
        >>> with without_context_mesh():
        ...     jax.sharding.get_abstract_mesh().empty
        True
    """
    if jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    try:
        return jax.set_mesh(Mesh(np.empty((), object), ()))
    except ValueError:  # Within a trace, which nothing of a plan can be part of.
        return contextlib.nullcontext()


def lowering_platform(device: Any) -> str:
    """JAX's name of a device's platform where it lowers programs: `cpu`, `cuda`, `rocm`."""
    client = device.client
    return str(getattr(client, "_raw_platform", client.platform))


def meet_at(address: str) -> None:
    """Let CPU devices of the other processes of this world reach those of this one at an address.

    By itself XLA takes what the host's name stands for: often 127.0.0.1, which is good on one host
    only, or nothing. To be called after `jax.distributed.initialize`, before the devices are made.
    """
    from jax._src import distributed, lib, xla_bridge

    bridge, world = as_any(xla_bridge), as_any(distributed).global_state
    collectives = as_any(lib)._jax.make_gloo_tcp_collectives(world.client, hostname=address)
    make = partial(bridge.make_cpu_client, collectives=collectives)
    bridge.register_backend_factory("cpu", make, priority=0, fail_quietly=False)


def hlo_sharding(proto: Any) -> Any:
    """XLA's sharding object of its protocol form."""
    return xla_client().HloSharding.from_proto(proto)


def same_shards(actual: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> bool:
    """Whether every device holds the same part, however the two shardings are written."""
    from jax._src import op_shardings

    tools: Any = op_shardings
    found = hlo_sharding(actual)
    wanted = as_any(sharding)._to_xla_hlo_sharding(len(shape))
    if tools.are_hlo_shardings_equal(found, wanted):
        return True
    parts = [tools.op_sharding_to_indices(x, shape, sharding.num_devices) for x in (found, wanted)]
    return parts[0] == parts[1]


def array_of_capsule(capsule: Any, device: Any) -> jax.Array:
    """An array on one device with the memory of a DLPack capsule that lies there."""
    from jax._src import lib

    return as_any(lib)._jax.dlpack_managed_tensor_to_buffer(capsule, device, None, None)


def shards_of(x: jax.Array) -> list[jax.Array]:
    """What each device holds of an array, in the order of its mesh; a list of its own."""
    return list(as_any(x)._arrays)


def with_weak_type(x: Any) -> Any:
    """The same array of the same memory, whose type gives way to others as that of a Python number
    does; of workers, an array that says so."""
    if isinstance(x, jax.Array) and type(x) is ArrayImpl:
        owner: Any = x
        aval = owner.aval.update(weak_type=True)
        make: Any = ArrayImpl
        made = make(aval, x.sharding, owner._arrays, committed=True, _skip_checks=True)
        if are_own([x]):
            mark_own([made])
        return made
    as_any(x).weak_type = True
    return x


def alone(x: Any) -> Any:
    """What the first device holds of an array that all of its devices hold whole, as an array that
    functions of JAX take with those of any other devices. No memory of its own."""
    owner: Any = x
    make: Any = ArrayImpl
    part = owner._arrays[0]
    (device,) = part.devices()
    sharding = jax.sharding.SingleDeviceSharding(device)
    return make(owner.aval.update(sharding=part.aval.sharding), sharding, [part], False, True)


#: `x.sharding` and `x.is_deleted()` of arrays of JAX, without a call of Python: steps ask of
#: hundreds.
sharding_of: Callable[[Any], Any] = attrgetter("_sharding")
is_deleted: Callable[[Any], bool] = as_any(ArrayImpl).is_deleted


_is_own: Callable[[Any], bool] = attrgetter("_alpa_own")


def mark_own(arrays: Iterable[Any]) -> None:
    """Say of arrays of JAX that nobody but the step made them, and that the next one may use them
    up. Their sharding does not say it: what a user makes of them has the same."""
    for x in arrays:
        if type(x) is ArrayImpl:
            x._alpa_own = True


def are_own(arrays: Iterable[Any]) -> bool:
    """Whether all of them were marked so."""
    try:
        return all(map(_is_own, arrays))
    except AttributeError:
        return False


def refuse_readers(arrays: Iterable[jax.Array], refuse: Callable[[], None]) -> None:
    """Of arrays whose memory is gone: let who reads one, or waits for it, get the error that
    `refuse` raises, in place of JAX's, which does not say how it went. JAX asks by the first name
    before it reads. Of several arrays at once jaxlib reads and waits without asking."""
    found: Iterable[Any] = arrays
    for x in found:
        x._check_if_deleted = x.block_until_ready = refuse


def is_transformed() -> bool:
    """Whether JAX is tracing now: for `jax.jit`, `jax.grad`, `jax.vmap` or the like."""
    from jax._src import core

    return not core.trace_state_clean()


def with_auto_axes(x: Any) -> Any:
    """The same array where its type says nothing of a mesh: functions of it go by values alone.
    Rows of an array with explicit axes are split only by what those axes divide."""
    sharding = getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return x
    mesh: Any = sharding.mesh
    types: Any = getattr(mesh, "axis_types", None) or ()
    if jax.sharding.AxisType.Explicit not in types:
        return x
    auto, api = Mesh(mesh.devices, mesh.axis_names), as_any(jax)
    return api.device_put(x, NamedSharding(auto, sharding.spec, memory_kind=sharding.memory_kind))
