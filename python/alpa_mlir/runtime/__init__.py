"""Runs plans, in this process or as one of several workers; needs JAX and the plan, nothing of the
compiler."""

from alpa_mlir.runtime.devices import use_virtual_devices
from alpa_mlir.runtime.executable import LoadedPlan, load
from alpa_mlir.runtime.placement import Placement

__all__ = ["LoadedPlan", "Placement", "load", "use_virtual_devices"]
