"""Runs plans inside this process; needs JAX and the plan, nothing of the compiler."""

from alpa_mlir.runtime.devices import use_virtual_devices
from alpa_mlir.runtime.executable import LoadedPlan, load

__all__ = ["LoadedPlan", "load", "use_virtual_devices"]
