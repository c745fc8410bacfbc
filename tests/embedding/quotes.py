#!/usr/bin/env -S python3 -B
"""C code quoted in docs/embedding.md and engines.md matches its sample line by line, except for indentation."""

import sys
import textwrap

import page


def indented_alike(lines, n):
    """Yields windows of n lines without their common indentation."""
    for start in range(len(lines) - n + 1):
        yield textwrap.dedent("\n".join(lines[start : start + n]))


def main():
    quotes = [(lines, sample) for language, lines, sample in page.blocks() if language == "c"]
    failures = 0
    for lines, sample in quotes:
        source = (page.SAMPLES / sample).read_text(encoding="utf-8").splitlines()
        if "\n".join(lines) not in indented_alike(source, len(lines)):
            print(f"FAILED: samples/c/{sample} has no such lines:\n" + "\n".join(lines), file=sys.stderr)
            failures += 1
    unquoted = {path.name for path in page.SAMPLES.iterdir()} - {sample for _, sample in quotes} - {"embed.c"}
    for sample in sorted(unquoted):
        print(f"FAILED: docs/embedding.md and engines.md quote nothing of samples/c/{sample}", file=sys.stderr)
    if not quotes or failures or unquoted:
        return 1
    print(f"ok: {len(quotes)} quotes are in the samples")
    return 0


if __name__ == "__main__":
    sys.exit(main())
