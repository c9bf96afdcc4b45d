"""Configuration of the lit tests under test/: run them with `make lit`, or `lit test/FOLDER`.

The build folder is `build`, or the environment's ALPA_BUILD.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import lit.formats

root = Path(__file__).resolve().parent
build = Path(os.environ.get("ALPA_BUILD", root / "build")).resolve()
llvm_bin = "/usr/lib/llvm-22/bin"
python = os.environ.get("ALPA_PYTHON") or shutil.which("python3")

config.name = "alpa_mlir"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir", ".test"]  # noqa: F821
config.excludes = ["Inputs"]  # noqa: F821
config.test_source_root = str(root)  # noqa: F821
config.test_exec_root = str(build / "lit")  # noqa: F821
config.environment["PATH"] = os.pathsep.join(  # noqa: F821
    [str(build / "bin"), llvm_bin, os.environ["PATH"]]
)
# Of sanitizers (`make sanitize`): LLVM's containers come from libraries without them, and what a
# program holds at its end is no leak to it.
# LLVM's own libraries do not say which memory of theirs is in use.
asan = "detect_leaks=0:detect_container_overflow=0:allow_user_poisoning=0"
config.environment["ASAN_OPTIONS"] = asan  # noqa: F821
config.environment["UBSAN_OPTIONS"] = "print_stacktrace=1"  # noqa: F821
config.environment["FILECHECK_OPTS"] = "-enable-var-scope"  # noqa: F821
config.substitutions.append(("%python", python))  # noqa: F821
config.substitutions.append(("%root", str(root)))  # noqa: F821
config.substitutions.append(("%build", str(build)))  # noqa: F821

# Optional back ends of the solver: a test that needs one says so (REQUIRES: highs).
trivial = (
    '{"problem": {"nodes": {"intervals": [[]], "costs": [[1, 2]], "usages": [[]]},'
    ' "edges": {"nodes": [], "costs": []}}}'
)
with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    file.write(trivial)
    file.flush()
    command = [str(build / "bin" / "alpa-solve"), file.name, "--method", "highs"]
    with contextlib.suppress(OSError):  # Not built; every test of it will say so.
        if subprocess.run(command, env=config.environment, capture_output=True).returncode == 0:  # noqa: F821
            config.available_features.add("highs")  # noqa: F821
