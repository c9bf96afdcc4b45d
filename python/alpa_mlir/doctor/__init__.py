"""What works on this machine, and what to do about what does not: `alpa-mlir doctor`."""

from alpa_mlir.doctor.diagnose import diagnose
from alpa_mlir.doctor.diagnosis import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
