"""scikit-build-core, with source distributions that include the library's sources from outside this folder."""

import pathlib
import shutil

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403

_HERE = pathlib.Path(__file__).resolve().parent
_SOURCES = (
    "CMakeLists.txt",
    "LICENSE",
    "THIRD_PARTY_NOTICES",
    "cmake",
    "cuda",
    "include",
    "samples",
    "src",
    "tools",
)


def build_sdist(sdist_directory, config_settings=None):
    """Copy the sources next to the package during the build."""
    copy = _HERE / "kvq"
    if copy.exists():  # this is a source distribution
        return _build.build_sdist(sdist_directory, config_settings)
    try:
        copy.mkdir()
        for name in _SOURCES:
            source = _HERE.parents[1] / name
            if source.is_dir():
                shutil.copytree(source, copy / name)
            elif source.exists():
                shutil.copy2(source, copy)
        return _build.build_sdist(sdist_directory, config_settings)
    finally:
        shutil.rmtree(copy)
