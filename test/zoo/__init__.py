"""Model zoo: every kind of program that the compiler must read, at the smallest useful size.

Entries are made on demand, so that importing the zoo costs nothing but the import.

Example:
  >>> import zoo
  >>> for name in zoo.names("gpt"):
  ...     model = zoo.get(name)
  ...     state, batch = model.init()
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import optax

from . import features, gpt, gpt_nnx, moe, sequence, stacked, training, vision
from .base import Model
from .gpt import GPTConfig, make_gpt
from .gpt_nnx import make_gpt_nnx

__all__ = ["GPTConfig", "Model", "get", "make_gpt", "make_gpt_nnx", "names"]


def _gpt_entries() -> dict[str, Callable[[str], Model]]:
    entries: dict[str, Callable[[str], Model]] = {}
    variants = {
        "": {},
        "_remat": {"remat": True},
        "_scan": {"scan": True},
        "_scan_remat": {"scan": True, "remat": True},
        "_bf16": {"dtype": "bfloat16"},
        "_scan_remat_bf16": {"scan": True, "remat": True, "dtype": "bfloat16"},
    }
    for suffix, options in variants.items():
        config = GPTConfig(**options)
        entries[f"gpt{suffix}"] = functools.partial(gpt.make_gpt, config)
        entries[f"gpt_nnx{suffix}"] = functools.partial(gpt_nnx.make_gpt_nnx, config)
    return entries


_ENTRIES: dict[str, Callable[[str], Model]] = {
    **_gpt_entries(),
    "moe": moe.make_moe,
    "moe_scan": functools.partial(moe.make_moe, scan=True),
    "layer_stack": stacked.make_layer_stack,
    "wide_resnet": vision.make_wide_resnet,
    "vit": vision.make_vit,
    "unet": vision.make_unet,
    "mlp": sequence.make_mlp,
    "lstm": sequence.make_lstm,
    "embedding": sequence.make_embedding,
    "dropout": features.make_dropout,
    "dropout_typed_key": functools.partial(features.make_dropout, typed_key=True),
    "nnx_dropout": features.make_nnx_dropout,
    "random_bits": features.make_random_bits,
    "sort_top_k": features.make_sort,
    "cumsum": features.make_cumsum,
    "fft": features.make_fft,
    "kv_cache": features.make_kv_cache,
    "while_cond": features.make_while_cond,
    "custom_vjp": features.make_custom_vjp,
    "checkpoint": features.make_checkpoint,
    "deep_supervision": training.make_deep_supervision,
    "two_losses": training.make_two_losses,
    "optimizer_chain": training.make_optimizer_chain,
    "adamw": lambda name: features.make_optimizer_entry(name, optax.adamw(1e-3)),
    "sgd": lambda name: features.make_optimizer_entry(name, optax.sgd(0.05, momentum=0.9)),
}


@functools.cache
def get(name: str) -> Model:
    """The entry `name`; raises `KeyError` that lists the known names."""
    if name not in _ENTRIES:
        raise KeyError(f"no zoo model {name!r}; known: {', '.join(sorted(_ENTRIES))}")
    return _ENTRIES[name](name)


def names(tag: str | None = None) -> list[str]:
    """Names of all entries, or of those that carry `tag`."""
    return [n for n in _ENTRIES if tag is None or tag in get(n).tags]
