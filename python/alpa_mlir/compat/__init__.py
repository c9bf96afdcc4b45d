"""Alpa's names: methods made of a few numbers or of a plan, and hints at other names."""
