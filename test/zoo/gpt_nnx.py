"""The same GPT in flax.nnx: modules as objects, split into a graph and a state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from .base import Model, PyTree, cross_entropy
from .gpt import GPTConfig, make_optimizer, token_batch


class Block(nnx.Module):
    """Pre-norm attention and MLP; [batch, seq, hidden] in and out."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        c = config
        dtype = jnp.dtype(c.dtype)
        self.heads = c.heads
        self.ln_1 = nnx.LayerNorm(c.hidden, dtype=dtype, rngs=rngs)
        self.ln_2 = nnx.LayerNorm(c.hidden, dtype=dtype, rngs=rngs)
        self.qkv = nnx.Linear(c.hidden, 3 * c.hidden, dtype=dtype, rngs=rngs)
        self.proj = nnx.Linear(c.hidden, c.hidden, dtype=dtype, rngs=rngs)
        self.up = nnx.Linear(c.hidden, 4 * c.hidden, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(4 * c.hidden, c.hidden, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, seq, hidden = x.shape
        qkv = self.qkv(self.ln_1(x)).reshape(batch, seq, 3, self.heads, hidden // self.heads)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.reshape(batch, seq, hidden))
        return x + self.down(jax.nn.gelu(self.up(self.ln_2(x))))


class GPT(nnx.Module):
    """Token ids [batch, seq] -> logits [batch, seq, vocab]; untied head."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        c = config
        dtype = jnp.dtype(c.dtype)
        self.config = c
        self.wte = nnx.Embed(c.vocab, c.hidden, dtype=dtype, rngs=rngs)
        self.wpe = nnx.Embed(c.seq, c.hidden, dtype=dtype, rngs=rngs)
        self.ln_f = nnx.LayerNorm(c.hidden, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(c.hidden, c.vocab, use_bias=False, dtype=dtype, rngs=rngs)
        if c.scan:

            @nnx.split_rngs(splits=c.layers)
            @nnx.vmap(in_axes=0, out_axes=0)
            def stack(rngs: nnx.Rngs) -> Block:
                return Block(c, rngs)

            self.blocks = stack(rngs)
        else:
            self.blocks = nnx.List([Block(c, rngs) for _ in range(c.layers)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.wte(tokens) + self.wpe(jnp.arange(tokens.shape[1]))

        def apply(block: Block, x: jax.Array) -> jax.Array:
            return block(x)

        if self.config.remat:
            apply = nnx.remat(apply)
        if self.config.scan:

            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def run(x: jax.Array, block: Block) -> jax.Array:
                return apply(block, x)

            x = run(x, self.blocks)
        else:
            for block in self.blocks:
                x = apply(block, x)
        return self.head(self.ln_f(x))


def make_gpt_nnx(config: GPTConfig, name: str = "gpt_nnx") -> Model:
    """An nnx GPT; its state is the flat `nnx.State` of model and optimizer."""

    def build() -> tuple[GPT, nnx.Optimizer]:
        model = GPT(config, nnx.Rngs(0))
        return model, nnx.Optimizer(model, make_optimizer(config), wrt=nnx.Param)

    def split() -> tuple[nnx.GraphDef, nnx.State]:
        return nnx.split(build())

    # The graph is static data: it is found once, without making any array.
    graph = nnx.graphdef(nnx.eval_shape(build))

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        state = jax.jit(lambda: split()[1])()
        return state, token_batch(jax.random.PRNGKey(1), batch_size, config)

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        model, _ = nnx.merge(graph, state)
        return model(batch["tokens"])

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        model, optimizer = nnx.merge(graph, state)

        def loss_fn(model: GPT) -> jax.Array:
            return cross_entropy(model(batch["tokens"]), batch["targets"])

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), {"loss": loss}

    tags = {"gpt", "nnx", "train", config.dtype}
    tags |= {"scan"} if config.scan else set()
    tags |= {"remat"} if config.remat else set()
    return Model(name, forward, step, init, frozenset(tags))
