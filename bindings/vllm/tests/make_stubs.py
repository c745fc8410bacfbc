"""Make stubs of the CUDA libraries that PyTorch's wheel links, so that it starts on a machine without them.

usage: make_stubs.py FOLDER_OF_TORCH_LIBRARIES FOLDER

PyPI has PyTorch for Linux with CUDA alone, whose libraries are gigabytes that a CPU does not need. Each stub defines
the symbols that PyTorch's libraries want from it, in their versions. All return an error, so that CUDA is unavailable.
Needs readelf, nm and cc.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

#: Libraries that are not there, and what unversioned symbols of each begin with.
PREFIXES = {
    "libcublas.so": r"cublas(?!Lt)",
    "libcublasLt.so": r"cublasLt",
    "libcuda.so": r"cu[A-Z]",
    "libcudart.so": r"cuda[A-Z_]|__cuda",
    "libcudnn.so": r"cudnn",
    "libcufft.so": r"cufft",
    "libcufile.so": r"cuFile",
    "libcupti.so": r"cupti",
    "libcurand.so": r"curand",
    "libcusolver.so": r"cusolver",
    "libcusparse.so": r"cusparse(?!Lt)",
    "libcusparseLt.so": r"cusparseLt",
    "libnccl.so": r"p?nccl",
    "libnvrtc.so": r"nvrtc",
    "libnvshmem_host.so": r"_?nvshmem",
}


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def stem(library: str) -> str:
    return library.split(".so")[0] + ".so"


def symbols(libraries: list[Path]) -> tuple[set[str], dict[str, set[str]], set[str]]:
    """Needed libraries that are not among these, undefined symbols by version, and defined symbols."""
    needed, undefined, defined = set(), defaultdict(set), set()
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", str(library))))
        for line in output_of("nm", "-D", "--with-symbol-versions", str(library)).splitlines():
            fields = line.split()
            name, _, version = fields[-1].partition("@")
            if len(fields) == 2:
                undefined[version.strip("@")].add(name)
            else:
                defined.add(name)
    wanted = {name for name in needed if stem(name) in PREFIXES}
    return wanted - {library.name for library in libraries}, undefined, defined


def write_stub(library: str, folder: Path, undefined: dict[str, set[str]], defined: set[str]) -> None:
    # The others' versions are their names.
    versions = [v for v in undefined if v == library or v == "NVSHMEM" and "nvshmem" in library]
    names = {name for version in versions for name in undefined[version]}
    loose = {name for name in undefined[""] if re.match(PREFIXES[stem(library)], name)} - defined
    with tempfile.TemporaryDirectory() as work:
        source, script = Path(work, "stub.c"), Path(work, "stub.map")
        source.write_text(
            "".join("int %s(void) { return 100; }\n" % name for name in sorted(names | loose)) or "int none;\n"
        )
        script.write_text(
            "".join("%s { global: %s; };\n" % (v, "; ".join(sorted(undefined[v]))) for v in sorted(versions))
        )
        options = ["-w", "-shared", "-fPIC", "-fno-builtin", "-Wl,-soname,%s" % library]
        if versions:
            options.append("-Wl,--version-script,%s" % script)
        subprocess.run(["cc", *options, "-o", str(folder / library), str(source)], check=True)


def main() -> None:
    torch_libraries, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    missing, undefined, defined = symbols(sorted(torch_libraries.glob("*.so*")))
    for library in sorted(missing):
        write_stub(library, folder, undefined, defined)
    print("%d stubs in %s" % (len(missing), folder))


if __name__ == "__main__":
    main()
