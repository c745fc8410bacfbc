"""The raw layer: layout, versions, and that nothing of the API is left out."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy
import pytest
from conftest import ROOT

import libkvq
from libkvq import raw

API = json.loads((ROOT / "bindings" / "kvq-api.json").read_text(encoding="utf-8"))
PACKAGE = pathlib.Path(libkvq.__file__).parent


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) * 8 != API["pointer_width"], reason="another pointer width")
@pytest.mark.parametrize("struct", API["structs"], ids=lambda one: one["name"])
def test_structs_lie_as_in_c(struct):
    it = getattr(raw, struct["name"])
    assert ctypes.sizeof(it) == struct["size"] and ctypes.alignment(it) == struct["alignment"]
    for field in struct["fields"]:
        found = getattr(it, field["name"])
        assert (found.offset, found.size) == (field["offset"], field["size"]), field["name"]
    assert [name for name, _ in it._fields_] == [field["name"] for field in struct["fields"]]


def test_numbers_are_the_headers():
    for enumeration in API["enumerations"]:
        for value in enumeration["values"]:
            assert getattr(raw, value["name"]) == value["value"]
    for constant in API["constants"]:
        assert getattr(raw, constant["name"]) == constant["value"]
    assert libkvq.__version__ == API["version"] == libkvq.version()
    assert raw.kvq_api_version() >= API["api_version"]


def test_every_function_is_declared_with_its_documentation():
    for function in API["functions"]:
        declared = getattr(raw, function["name"])
        assert len(declared.argtypes) == len(function["parameters"])
        parameters = [one["name"] for one in function["parameters"]]
        assert [parameters[i] for i, _, _ in declared.limits] == [name for _, name, _ in declared.limits]
        assert declared.__doc__.startswith(function["name"] + "(")
        words = [re.sub("[`:]", "", text).split() for text in (function["documentation"], declared.__doc__)]
        assert " ".join(words[0][:4]) in " ".join(words[1])


def test_every_function_is_used():
    """By the package, or by the tests of the raw layer below."""
    files = [one for one in PACKAGE.glob("*.py") if one.name != "_native.py"]
    text = "".join(one.read_text(encoding="utf-8") for one in files + [pathlib.Path(__file__)])
    made = re.findall(r"\b\w*(?:initialised|Calls|Prepared)\(\s*_native\.(\w+)", text)  # calls the struct's `_init`
    used = set(re.findall(r"\w+", text)) | {name + "_init" for name in made}
    unused = [one["name"] for one in API["functions"] if one["name"] not in used]
    assert not unused
    tests = "".join(one.read_text(encoding="utf-8") for one in pathlib.Path(__file__).parent.glob("test_*.py"))
    for kind in (
        libkvq.Context,
        libkvq.Policy,
        libkvq.Cache,
        libkvq.Sequence,
        libkvq.Step,
        libkvq.Matrix,
        libkvq.Codebook,
    ):
        for name in set(dir(kind)) - set(dir(libkvq._handle.Handle)):
            assert name.startswith("_") or "." + name in tests, "%s.%s is not tested" % (kind.__name__, name)


def test_defaults_of_options_are_the_headers():
    for struct in API["structs"]:
        if struct["init"] and struct["name"] != "kvq_error":
            it = getattr(raw, struct["name"])()
            getattr(raw, struct["init"])(ctypes.byref(it), ctypes.sizeof(it))
            assert it.struct_size == struct["size"]
    error = raw.kvq_error(code=5)
    raw.kvq_error_init(ctypes.byref(error), ctypes.sizeof(error))
    assert (error.code, error.message, error.struct_size) == (0, b"", 268)
    assert raw.kvq_status_name(77) == b"unknown status"


def test_the_c_api_can_be_used_as_in_c():
    error = raw.kvq_error()
    raw.kvq_error_init(ctypes.byref(error), ctypes.sizeof(error))
    context, cache, sequence = raw.kvq_context(), raw.kvq_cache(), raw.kvq_sequence()
    failed = ctypes.byref(error)
    assert raw.kvq_context_create(None, ctypes.byref(context), failed) == raw.KVQ_OK
    options = raw.kvq_cache_options()
    raw.kvq_cache_options_init(ctypes.byref(options), ctypes.sizeof(options))
    options.n_layers, options.q_heads, options.kv_heads, options.head_dim = 1, 1, 1, 8
    assert raw.kvq_cache_create(context, ctypes.byref(options), None, ctypes.byref(cache), failed) == raw.KVQ_OK
    assert raw.kvq_sequence_create(cache, ctypes.byref(sequence), failed) == raw.KVQ_OK
    assert raw.kvq_cache_context(cache).value == context.value
    assert raw.kvq_sequence_cache(sequence).value == cache.value
    k = (ctypes.c_float * 8)(*range(8))
    assert raw.kvq_append(cache, sequence, 0, 1, k, k, raw.KVQ_F32, None, failed) == raw.KVQ_OK
    assert raw.kvq_append(cache, sequence, 1, 1, k, k, raw.KVQ_F32, None, failed) == raw.KVQ_E_ARGUMENT
    assert b"layer is 1" in error.message
    v = (ctypes.c_float * 8)()
    assert raw.kvq_sequence_decode(cache, sequence, 0, 0, 0, 1, None, v, None, failed) == raw.KVQ_OK
    assert list(v) == list(range(8))
    raw.kvq_sequence_destroy(sequence)
    raw.kvq_cache_destroy(cache)
    raw.kvq_context_destroy(context)
    raw.kvq_context_destroy(None)


def test_kvq_append_and_the_objects_store_the_same(cache, random):
    k, v = random.standard_normal((2, 40, 2, 32), dtype="f4")
    by_objects, by_c = cache.sequence(), cache.sequence()
    by_objects.append(0, k, v)
    error = raw.kvq_error(struct_size=ctypes.sizeof(raw.kvq_error))
    address = [one.ctypes.data for one in (k, v)]
    assert raw.kvq_append(cache._pointer, by_c._pointer, 0, 40, *address, raw.KVQ_F32, None, ctypes.byref(error)) == 0
    numpy.testing.assert_array_equal(by_c.decode(0, 1).k, by_objects.decode(0, 1).k)


def imported(library):
    """What importing the package says with another library."""
    environment = {**os.environ, "LIBKVQ_LIBRARY": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", "import libkvq"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_an_older_library_is_refused_with_both_versions(tmp_path):
    source, library = tmp_path / "old.c", tmp_path / "libkvq.so.1"
    source.write_text(
        'int kvq_api_version(void) { return 0; } const char* kvq_version_string(void) { return "0.9.1"; }'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    code, message = imported(library)
    assert code != 0
    assert "is libkvq 0.9.1 with API version 0, this package needs API version %d" % API["api_version"] in message
    source.write_text("int something_else(void) { return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    code, message = imported(library)
    assert code != 0 and "it has no kvq_api_version" in message


def test_a_library_that_is_not_there_is_named():
    code, message = imported("/nowhere/libkvq.so.1")
    assert code != 0 and "/nowhere/libkvq.so.1" in message and "LIBKVQ_LIBRARY" in message


def test_a_missing_experimental_function_fails_when_it_is_called():
    missing = raw.library.function("kvq_not_there", None, {}, "", experimental=True)
    with pytest.raises(NotImplementedError, match="kvq_not_there"):
        missing()
    with pytest.raises(ImportError, match="kvq_not_there"):
        raw.library.function("kvq_not_there", None, {}, "")
