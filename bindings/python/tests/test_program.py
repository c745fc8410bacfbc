"""The README's example, the sample, the benchmark, and the kvq program."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

import libkvq

HERE = ROOT / "bindings" / "python"


def run(*command, **options):
    return subprocess.run(list(command), check=True, stdout=subprocess.PIPE, **options).stdout.decode()


def test_the_readmes_example_runs(tmp_path):
    example = tmp_path / "example.py"
    example.write_text(re.search(r"```python\n(.*?)```", (HERE / "README.md").read_text(encoding="utf-8"), re.S)[1])
    output = run(sys.executable, str(example), cwd=tmp_path)
    assert re.fullmatch(r"\(1, 8, 64\), \d\.\d\d bits per scalar\n", output)


def test_the_sample_prints_what_it_prints_in_c(tmp_path):
    library = pathlib.Path(libkvq.raw.library.path)
    prefix = os.environ.get("LIBKVQ_TEST_PREFIX", str(library.parent.parent))
    if shutil.which("cc") is None or not os.path.exists(prefix + "/include/kvq.h"):
        pytest.skip("no C compiler, or no kvq.h beside the library")
    program = tmp_path / "embed"
    libraries = ["-I%s/include" % prefix, "-L%s/lib" % prefix, "-lkvq", "-Wl,-rpath,%s/lib" % prefix]
    run("cc", str(ROOT / "samples" / "c" / "embed.c"), "-o", str(program), *libraries)
    expected = run(str(program))
    assert "checksum" in expected
    assert run(sys.executable, str(HERE / "samples" / "embed.py")) == expected


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_benchmark_prints_one_line(kind):
    pytest.importorskip(kind)
    output = run(sys.executable, str(HERE / "benchmarks" / "call_cost.py"), kind)
    print(kind, output)
    assert re.fullmatch(r"append \d+ attend \d+\n", output)


def test_the_wheels_program_runs():
    from libkvq import _program

    program = pathlib.Path(_program.__file__).parent / "bin" / "kvq"
    if program.exists():
        assert libkvq.version() in run(sys.executable, "-c", "import libkvq._program as p; p.main()", "--version")
    else:
        with pytest.raises(SystemExit, match="no program"):
            _program.main()
