"""Automatic parallelization of JAX training steps."""
