"""docs/embedding.md: its blocks, and the sample that each is from, which is the one named last before it."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples" / "c"


def blocks():
    """Of each block its language, its lines, and the name of its sample."""
    sample, language, lines = None, None, []
    for line in (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if language is None:
                language, lines = line[3:], []
            else:
                yield language, lines, sample
                language = None
        elif language is not None:
            lines.append(line)
        else:
            named = re.findall(r"\(\.\./samples/c/(\w+\.[ch])\)", line)
            sample = named[-1] if named else sample
