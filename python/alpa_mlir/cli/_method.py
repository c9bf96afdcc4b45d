"""Options of the command line that say how to plan."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import fields as all_fields
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from alpa_mlir.cli._command import count, did_you_mean, fraction, number, positive
from alpa_mlir.errors import MethodError

if TYPE_CHECKING:
    from alpa_mlir.methods.method import Method

METHODS = ("auto", "shard", "pipeshard")
#: Value of `--micro-batches` without a number, where a subcommand has an answer to that.
ASKED = ()
# What `--layer-loops` says.
_LAYER_LOOPS = {"scans": True, "all": "all", "none": False}


class _Names:
    """Names from one of the compiler's tables, read when they are first wanted."""

    def __init__(self, table: str, *more: str) -> None:
        self.table = table
        self.more = more

    def __iter__(self) -> Iterator[str]:
        from alpa_mlir import compiler

        return iter((*self.more, *getattr(compiler, self.table)()))

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)


def add_method(parser: argparse.ArgumentParser, *, asks_about_micro_batches: bool = False) -> None:
    """Options named like the fields of the Python API's methods; docs/methods.md.

    Args:
        asks_about_micro_batches: `--micro-batches` may stand alone, and is `ASKED` then.
    """
    group = parser.add_argument_group(
        "how to plan", "as the classes of alpa_mlir.methods.automatic say it (docs/methods.md)"
    )
    add: Callable[..., Any] = group.add_argument
    add(
        "--method",
        choices=METHODS,
        help="auto searches stages, meshes and micro-batches too, shard takes one mesh and no "
        "pipeline, pipeshard the given submeshes (default: what the step comes with, else auto)",
    )
    add(
        "--shardings",
        choices=_Names("sharding_methods"),
        metavar="NAME",
        help="which shardings may be chosen (zero-3 is FSDP): %(choices)s",
    )
    add(
        "--sharding-constraints",
        choices=("keep", "ignore"),
        help="what jax.lax.with_sharding_constraint in the step means; keep: values are held so "
        "wherever a mesh has such axes, ignore: the solver decides (default: keep)",
    )
    add(
        "--padding",
        choices=("auto", "none", "batch", "little", "all"),
        help="which dimensions that the devices do not divide are made longer; batch: its "
        "examples alone, little: all by at most 2%%, all: by more where devices share them better "
        "then, auto: as is fastest (default: auto)",
    )
    add(
        "--prepare-weights",
        choices=("auto", "none", "converted", "gathered"),
        help="what several micro-batches do with weights once a step; converted: what the step "
        "makes of them, such as bfloat16 of float32, gathered: gathers as well, where that pays, "
        "auto: as is fastest (default: auto)",
    )
    add(
        "--offload",
        choices=("auto", "none", "optimizer", "activations", "all"),
        help="what lies in the memory of the devices' hosts while nobody needs it; optimizer: the "
        "state that the update alone reads, activations: what gradients read of the forward phase, "
        "auto: as is fastest where no plan fits without, or where layers would be computed again "
        "(default: auto)",
    )
    add(
        "--pipeline",
        choices=_Names("pipeline_methods"),
        metavar="NAME",
        help="with auto, which stages may be chosen (intra-only is no pipeline): %(choices)s",
    )
    add(
        "--keep-stages",
        metavar="PLAN",
        help="a plan's folder: keep its layers of each stage and its meshes, and as far as nothing "
        "else is said its micro-batches, and choose the rest anew",
    )
    add(
        "--max-devices",
        type=count,
        metavar="N",
        help="with auto, how many devices the plan may take; the others stay idle",
    )
    add(
        "--max-stages",
        type=count,
        metavar="N",
        help="with auto, how many stages the plan may have; 1 is no pipeline",
    )
    counts = "parts of the batch; several or `any` to choose from (default: any with auto, else 1)"
    if asks_about_micro_batches:
        add(
            "--micro-batches",
            nargs="?",
            const=ASKED,
            type=_counts,
            metavar="N[,N..]",
            help=f"{counts}; without a number: say what those of the plan compute",
        )
    else:
        add("--micro-batches", type=_counts, metavar="N[,N..]", help=counts)
    add(
        "--micro-batch-semantics",
        choices=("exact", "relaxed", "independent"),
        help="what several micro-batches compute; exact: the results of the whole batch, relaxed: "
        "values that couple examples within each micro-batch, independent: the mean over "
        "micro-batches that are batches of their own (default: exact)",
    )
    add(
        "--schedule",
        choices=_Names("schedules", "auto"),
        metavar="NAME",
        help="of the pipeline: %(choices)s",
    )
    add("--virtual-stages", type=count, metavar="N", help="stages on each mesh, where it can")
    add("--layers", type=count, metavar="N", help="layers that stages are made from")
    add("--max-layers", type=count, metavar="N", help="most layers, where they are not given")
    add(
        "--layer-balance",
        choices=("communication", "operators"),
        help="what layers are cut by",
    )
    add(
        "--remat",
        type=_remat,
        metavar="WHICH",
        help="layers that are computed again for their gradients: none, all, auto, or numbers",
    )
    add(
        "--remat-keeps",
        choices=("auto", "nothing", "products"),
        help="what of such layers is kept all the same; products: but for scores of attention and "
        "their like, auto: as is fastest where --remat is auto, else nothing (default: auto)",
    )
    add(
        "--memory-fraction",
        type=fraction,
        metavar="PART",
        help="part of a device's memory that a plan may use (default: 0.9)",
    )
    add(
        "--time-limit",
        type=positive,
        metavar="SECONDS",
        help="for the shardings of a stage, an outer bound: work ends their search (default: 600)",
    )
    add("--num-mesh-axes", type=int, choices=(2, 3), help="most axes of a mesh (default: 2)")
    add(
        "--export",
        choices=("shardy", "collectives"),
        help="whole programs that XLA partitions, or those of one device (default: shardy)",
    )
    add(
        "--layer-loops",
        choices=tuple(_LAYER_LOOPS),
        help="which equal layers of a stage become a loop; scans: those of scans, all: those that "
        "are written out, too (default: scans)",
    )
    add(
        "--finalists",
        type=count,
        metavar="K",
        help="measure the K best plans on the devices of this process",
    )
    add("--mesh-shape", type=_shape, metavar="AxB", help="with shard: sizes of the mesh's axes")
    add("--device-type", metavar="NAME", help="with shard: hosts of this type only")
    add(
        "--submeshes",
        type=_submeshes,
        metavar="HxD[@TYPE],..",
        help="with pipeshard: hosts and devices of each host, of each mesh",
    )
    add(
        "--mesh-shapes",
        type=_shapes,
        metavar="AxB,..",
        help="with pipeshard: sizes of the axes of each mesh",
    )
    add(
        "--layer-ranges",
        type=_ranges,
        metavar="LO-END,..",
        help="layers of each stage, such as 0-2,2-4; with auto the meshes are searched",
    )


# Options of all methods: their destination, and the field that they set.
_FIELDS = {
    "shardings": "method",
    "sharding_constraints": "sharding_constraints",
    "padding": "padding",
    "prepare_weights": "prepare_weights",
    "offload": "offload",
    "micro_batches": "num_micro_batches",
    "micro_batch_semantics": "micro_batch_semantics",
    "schedule": "schedule",
    "virtual_stages": "virtual_stages",
    "layers": "layers",
    "max_layers": "max_layers",
    "layer_balance": "layer_balance",
    "remat": "remat",
    "remat_keeps": "remat_keeps",
    "memory_fraction": "memory_fraction",
    "time_limit": "time_limit_seconds",
    "num_mesh_axes": "num_mesh_axes",
    "export": "export",
    "layer_loops": "layer_loops",
    "finalists": "finalists",
}
# Those of one method.
_OWN = {
    "auto": ("pipeline", "max_devices", "max_stages", "layer_ranges"),
    "shard": ("mesh_shape", "device_type"),
    "pipeshard": ("submeshes", "mesh_shapes", "layer_ranges"),
}
OPTIONS: tuple[str, ...] = (
    "method",
    "keep_stages",
    *_FIELDS,
    *dict.fromkeys(name for names in _OWN.values() for name in names),
)


def method_of(options: argparse.Namespace, default: Method | None) -> Method:
    """The method that was asked for; what was not given is as in the default.

    Args:
        default: of the step, if it came with one.

    Raises:
        MethodError: options that do not go together.
    """
    from alpa_runtime.plan import Plan

    from alpa_mlir.methods.automatic import AutoParallel, OneMesh, ShardParallel
    from alpa_mlir.methods.kept_stages import keep_stages
    from alpa_mlir.methods.pipeshard import PipeshardParallel

    kinds: dict[str, type[Method]] = {
        "auto": AutoParallel,
        "shard": ShardParallel,
        "pipeshard": PipeshardParallel,
    }
    base = AutoParallel() if default is None else default
    if options.keep_stages is not None:
        own = ["method", "layers", "max_layers", "virtual_stages"]
        own += [name for names in _OWN.values() for name in names]
        for option in own:
            if getattr(options, option) is not None:
                flag = "--" + option.replace("_", "-")
                raise MethodError(
                    f"{flag} with --keep-stages, which decides that",
                    where="plan",
                    fix=f"leave one of them out: {flag} or --keep-stages",
                )
        base = keep_stages(Plan.load(options.keep_stages), base)
    if isinstance(base, OneMesh):  # DataParallel and the like, whose shardings may be replaced.
        base = ShardParallel(**{item.name: getattr(base, item.name) for item in all_fields(base)})
    name = options.method or next(n for n, kind in kinds.items() if type(base) is kind)
    fields = {
        field: getattr(options, option)
        for option, field in _FIELDS.items()
        if getattr(options, option) is not None
    }
    if fields.get("num_micro_batches") == "any":
        fields["num_micro_batches"] = None
    if "layer_loops" in fields:
        fields["layer_loops"] = _LAYER_LOOPS[fields["layer_loops"]]
    for option in dict.fromkeys(option for own in _OWN.values() for option in own):
        value = getattr(options, option)
        if value is None:
            continue
        if option not in _OWN[name]:
            flag = "--" + option.replace("_", "-")
            owners = " or ".join(f"--method {owner}" for owner in _OWN if option in _OWN[owner])
            raise MethodError(f"{flag} with method {name!r}", where="plan", fix=f"use {owners}")
        fields[option] = value
    if type(base) is kinds[name]:
        return replace(base, **fields)
    return kinds[name](**fields)


def _counts(text: str) -> Any:
    if text == "any":
        return text
    counts = [count(item) for item in text.split(",")]
    return counts[0] if len(counts) == 1 else tuple(counts)


def _remat(text: str) -> Any:
    words = ("none", "all", "auto")
    if text in words:
        return text
    if not text[:1].isdecimal():
        meant = did_you_mean([text], words)
        wrong = f"{text!r} is none of none, all, auto, or numbers"
        raise argparse.ArgumentTypeError(f"{wrong}; {meant}" if meant else wrong)
    return tuple(number(item) for item in text.split(","))


def _shape(text: str) -> tuple[int, ...]:
    return tuple(count(item) for item in text.split("x"))


def _shapes(text: str) -> list[tuple[int, ...]]:
    return [_shape(item) for item in text.split(",")]


def _submeshes(text: str) -> list[tuple[Any, ...]]:
    result: list[tuple[Any, ...]] = []
    for item in text.split(","):
        sizes, at, name = item.partition("@")
        shape = _shape(sizes)
        if len(shape) != 2 or (at and not name):
            raise argparse.ArgumentTypeError(f"{item!r} is no submesh such as 1x4 or 1x4@a100")
        result.append((*shape, name) if at else shape)
    return result


def _ranges(text: str) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for item in text.split(","):
        first, dash, end = item.partition("-")
        if not dash:
            raise argparse.ArgumentTypeError(f"{item!r} is no range such as 0-2")
        result.append((number(first), number(end)))
    return result
