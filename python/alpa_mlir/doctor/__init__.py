"""What works on this machine, and what to do about what does not: `alpa-mlir doctor`."""

from alpa_mlir.doctor.checks import Diagnosis, Finding, diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
