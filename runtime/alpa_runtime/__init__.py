"""Runs plans: what a worker needs, and no compiler.

Needs Python, JAX and NumPy. Modules are imported by name; importing the package alone imports
nothing, so that a process can set its environment first.
"""
