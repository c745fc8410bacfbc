#!/usr/bin/env -S python3 -B
"""Links between the repository's Markdown files, and from its other sources to docs: files and headings exist. READMEs that
packages contain link to nothing outside of the package."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
# READMEs that are read without the repository, and the folder whose files are beside them then; None: no files.
PACKAGED = {"bindings/rust/README.md": "bindings/rust/kvq", "bindings/go/README.md": "bindings/go",
            "bindings/csharp/README.md": None}
MENTION = re.compile(r"\bdocs/[\w/.-]+\.(?:md|yaml|svg)\b")


def files(*patterns):
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", *patterns], check=True,
                            stdout=subprocess.PIPE, text=True).stdout
    paths = [ROOT / name for name in listed.splitlines()]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def prose(path):
    """The file without its blocks of code."""
    return re.sub(r"^( *)```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(path):
    """Names by which headings are linked to, as GitHub derives them, and explicit ones."""
    text = prose(path)
    found = set(re.findall(r'<a (?:name|id)="([^"]+)"', text))
    seen = {}
    for heading in re.findall(r"^#+ +(.*?) *$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        found.add(name if seen[name] == 0 else f"{name}-{seen[name]}")
    return found


def broken_links(path):
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in anchors(file):
            yield f"{target}: no such heading"


def links_out_of_package(readme, folder):
    for target in LINK.findall(prose(ROOT / readme)):
        name = target.partition("#")[0]
        if re.match(r"[a-z]+:", target) or not name:
            continue
        root = (ROOT / folder).resolve() if folder else None
        file = (root / name).resolve() if root else None
        if not file or root not in file.parents or not file.exists():
            yield f"{target}: not in the package"


def broken_mentions(path):
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for name in MENTION.findall(text):
        if not (ROOT / name).exists():
            yield f"{name}: no such file"


def main():
    if not (ROOT / ".git").exists():
        print("skipped: git lists the files, and this is no clone")
        return 77
    failures = [f"{page.relative_to(ROOT)}: {why}" for page in files("*.md") for why in broken_links(page)]
    for file in files(":!*.md", ":!*.svg", ":!tests/docs/links.py"):
        failures += [f"{file.relative_to(ROOT)}: {why}" for why in broken_mentions(file)]
    for readme, folder in PACKAGED.items():
        failures += [f"{readme}: {why}" for why in links_out_of_package(readme, folder)]
    for failure in failures:
        print("FAILED:", failure, file=sys.stderr)
    if failures:
        return 1
    print("ok: links and mentions of docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
