"""The kvq program inside the wheel."""

from __future__ import annotations

import os
import subprocess
import sys

_NAME = "kvq.exe" if sys.platform == "win32" else "kvq"


def main() -> None:
    """Replace this process with the program."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", _NAME)
    if not os.path.exists(program):
        sys.exit("kvq: this installation of libkvq has no program: %s is missing" % program)
    if sys.platform == "win32":  # whose execv leaves the shell before the program has ended
        sys.exit(subprocess.call([program] + sys.argv[1:]))
    os.execv(program, [program] + sys.argv[1:])
