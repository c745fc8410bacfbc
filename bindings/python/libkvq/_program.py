"""The kvq program inside the wheel."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Replace this process with the program."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "kvq")
    if not os.path.exists(program):
        sys.exit("kvq: this installation of libkvq has no program: %s is missing" % program)
    os.execv(program, [program] + sys.argv[1:])
