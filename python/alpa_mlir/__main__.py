"""`python -m alpa_mlir` is the command `alpa-mlir`."""

import sys

from alpa_mlir.cli import main

sys.exit(main())
