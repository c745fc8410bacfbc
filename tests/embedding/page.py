"""Reads docs/embedding.md and engines.md: code blocks and their samples. A block belongs to the last sample named before it."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples" / "c"
PAGES = [ROOT / "docs" / name for name in ("embedding.md", "engines.md")]


def blocks():
    """Yields language, lines and sample name of each block."""
    for path in PAGES:
        sample, language, lines = None, None, []
        for line in path.read_text(encoding="utf-8").splitlines():
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
