"""Solve a problem with each of some time limits; fail where one is not kept.

On a machine with other work, seconds pass in which the solver does not run, so that processor
seconds of its one thread are counted, which are no more. A constant is left for reading the
problem and for what an answer takes to be evaluated.
"""

import os
import subprocess
import sys

CONSTANT_SECONDS = 0.3


def main():
    program, problem, *limits = sys.argv[1:]
    for limit in map(float, limits):
        command = [program, problem, f"--time-limit={limit}", "--threads=1", "--json"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        busy = usage.ru_utime + usage.ru_stime
        if process.returncode not in (0, 3) or busy > 1.02 * limit + CONSTANT_SECONDS:
            sys.exit(f"limit {limit} s: code {process.returncode} after {busy:.2f} s")


if __name__ == "__main__":
    main()
