"""Styles of steps whose results have to be those of `jax.jit` on the whole batch."""
