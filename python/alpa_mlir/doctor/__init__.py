"""What works on this machine, and what to do about what does not: `alpa-mlir doctor`."""

from alpa_mlir.doctor._diagnosis import Diagnosis, Finding
from alpa_mlir.doctor.diagnose import diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
