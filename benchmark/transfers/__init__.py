"""Transfers between meshes that benchmarks and tests plan: random ones, and published ones."""
