"""The tag of the wheel that LIBKVQ_TEST_WHEEL names, and what the library needs of the C library."""

import os
import pathlib
import re
import shutil
import subprocess
import zipfile

import pytest

from libkvq import raw

pytestmark = pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
WHEEL = os.environ.get("LIBKVQ_TEST_WHEEL", "")


def needed_of_glibc(path):
    """Undefined symbols of a library or program with the versions of glibc that they came with."""
    table = subprocess.run(["objdump", "-T", str(path)], check=True, stdout=subprocess.PIPE).stdout.decode()
    found = re.findall(r"\*UND\*.*\(GLIBC_(\d+)\.(\d+)[.\d]*\)\s+(\S+)$", table, re.MULTILINE)
    return {name: (int(major), int(minor)) for major, minor, name in found}


def test_the_library_needs_no_newer_glibc_than_loading_plugins_does():
    """A new version of a mathematical function, such as hypotf of 2.35, would keep it from older systems."""
    needed = needed_of_glibc(raw.library.path)
    assert {"dlopen", "exp"} <= set(needed)
    assert not {name: version for name, version in needed.items() if version > max(needed["dlopen"], (2, 29))}


@pytest.mark.skipif("manylinux" not in WHEEL, reason="no wheel that auditwheel has tagged")
def test_the_wheels_tag_covers_what_its_libraries_and_programs_need(tmp_path):
    major, minor = map(int, re.search(r"-manylinux_(\d+)_(\d+)_\w+\.whl$", WHEEL).groups())
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(tmp_path)
    needed = {}
    for path in pathlib.Path(tmp_path).rglob("*"):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            needed[path.name] = max(needed_of_glibc(path).values())
    assert "libkvq.so.1" in needed
    assert not {name: version for name, version in needed.items() if version > (major, minor)}
