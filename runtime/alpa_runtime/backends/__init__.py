"""Compilers of a plan's stages: XLA, and IREE for stages on one device."""
