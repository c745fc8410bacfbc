#!/usr/bin/env python3
"""Time attention of one decoding step on this CPU beside ggml's, of which llama.cpp is made: its flash attention over caches in
f16, q8_0 and q4_0, and `kvq bench attend` over the same shape, in turn, in one run. Nothing of ggml comes with kvq: name the folder
of its libraries (libggml-base.so and libggml-cpu.so, as in a build of llama.cpp), or have the Python package libggml-python.

    bench_peers.py build/release/bin/kvq --length 32768
    bench_peers.py build/release/bin/kvq --ggml llama.cpp/build/bin
"""
import argparse
import array
import ctypes
import importlib.util
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import time

TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}  # enum ggml_type
F32 = 0
MOST_THREADS = 512  # GGML_MAX_N_THREADS
POOL_ROWS = 4096    # random rows, repeated, which are as fast as others


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class ThreadpoolParams(ctypes.Structure):
    _fields_ = [("cpumask", ctypes.c_bool * MOST_THREADS), ("n_threads", ctypes.c_int), ("prio", ctypes.c_int),
                ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool), ("paused", ctypes.c_bool)]


class Plan(ctypes.Structure):  # ggml_cplan; newer versions end in use_ref
    _fields_ = [("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p), ("n_threads", ctypes.c_int),
                ("threadpool", ctypes.c_void_p), ("abort_callback", ctypes.c_void_p),
                ("abort_callback_data", ctypes.c_void_p), ("use_ref", ctypes.c_bool)]


def fail(reason):
    sys.exit(f"bench_peers.py: {reason}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvq", help="the kvq program")
    parser.add_argument("--ggml", type=pathlib.Path, help="folder of ggml's libraries")
    for name, value, text in [("length", 32768, "tokens in the cache"), ("heads", 32, "query heads"),
                              ("kv-heads", 8, "KV heads"), ("head-dim", 128, "channels of a head"),
                              ("threads", 2, "to compute with"), ("rounds", 3, "turns of ggml and kvq")]:
        parser.add_argument("--" + name, type=int, default=value, help=f"{text} (default: {value})")
    parser.add_argument("--isa", default="", help="instructions for kvq, such as those that ggml was compiled for: avx2")
    parser.add_argument("--kv", action="append", help="formats of kvq (default: int8, int4, gs4, gs2)")
    return parser.parse_args()


def folder_of_package():
    found = importlib.util.find_spec("libggml")
    folders = [pathlib.Path(place) / name for place in (found.submodule_search_locations if found else [])
               for name in ("lib64", "lib")]
    for folder in folders:
        if folder.exists():
            return folder
    return fail("there is no ggml: give --ggml FOLDER with libggml-base.so and libggml-cpu.so, or `pip install libggml-python`")


def last_level_cache_bytes():
    """As kvq bench takes it."""
    done = subprocess.run(["getconf", "LEVEL3_CACHE_SIZE"], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.stdout.strip().isdigit() and int(done.stdout) > 0 else 32 << 20


class Ggml:
    """What this needs of ggml's C interface."""

    def __init__(self, folder):
        try:
            self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
            self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            fail(f"--ggml {folder}: {error}")
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        for library, name, result, takes in [
                (self.base, "ggml_init", pointer, [InitParams]),
                (self.base, "ggml_free", None, [pointer]),
                (self.base, "ggml_version", ctypes.c_char_p, []),
                (self.base, "ggml_new_tensor_3d", pointer, [pointer, ctypes.c_int, number, number, number]),
                (self.base, "ggml_permute", pointer, [pointer, pointer] + [ctypes.c_int] * 4),
                (self.base, "ggml_get_data", pointer, [pointer]),
                (self.base, "ggml_nbytes", size, [pointer]),
                (self.base, "ggml_quantize_chunk", size, [ctypes.c_int, pointer, pointer, number, number, number, pointer]),
                (self.base, "ggml_flash_attn_ext", pointer, [pointer] * 5 + [ctypes.c_float] * 3),
                (self.base, "ggml_new_graph", pointer, [pointer]),
                (self.base, "ggml_build_forward_expand", None, [pointer, pointer]),
                (self.base, "ggml_threadpool_params_default", ThreadpoolParams, [ctypes.c_int]),
                (self.cpu, "ggml_cpu_init", None, []),
                (self.cpu, "ggml_threadpool_new", pointer, [ctypes.POINTER(ThreadpoolParams)]),
                (self.cpu, "ggml_graph_plan", Plan, [pointer, ctypes.c_int, pointer]),
                (self.cpu, "ggml_graph_compute", ctypes.c_int, [pointer, ctypes.POINTER(Plan)])]:
            function = getattr(library, name)
            function.restype, function.argtypes = result, takes
            setattr(self, name.removeprefix("ggml_"), function)
        self.cpu_init()

    def instructions(self):
        """Those of x86 that its kernels were compiled for."""
        names = ("f16c", "fma", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8")
        return [name for name in names if getattr(self.cpu, "ggml_cpu_has_" + name)()]


class Attention:
    """One step over a cache of a type, laid out as llama.cpp does: [tokens, KV heads, head_dim]. As many equal caches are read in
    turn as exceed the processor's own."""

    def __init__(self, ggml, kind, options, threadpool):
        self.ggml, self.runs = ggml, 0
        rows = options.length * options.kv_heads
        row_bytes = {"f16": 2 * options.head_dim, "q8_0": options.head_dim // 32 * 34, "q4_0": options.head_dim // 32 * 18}[kind]
        self.bytes = 2 * rows * row_bytes
        self.bits = 8 * row_bytes / options.head_dim
        copies = max(2, min(64, math.ceil(2 * last_level_cache_bytes() / self.bytes)))
        work = (1 << 24) + 16 * options.heads * options.head_dim
        self.context = ggml.init(InitParams(copies * (self.bytes + work), None, False))
        self.steps = [self.step(kind, options, threadpool) for _ in range(copies)]

    def step(self, kind, options, threadpool):
        ggml, context = self.ggml, self.context

        def tensor(type_number, heads, tokens, scalars):
            made = ggml.new_tensor_3d(context, type_number, options.head_dim, heads, tokens)
            fill(ggml, made, type_number, scalars, options.head_dim, heads * tokens)
            return ggml.permute(context, made, 0, 2, 1, 3)

        pool = normal_numbers(POOL_ROWS * options.head_dim)
        q = tensor(F32, options.heads, 1, pool)
        k = tensor(TYPES[kind], options.kv_heads, options.length, pool)
        v = tensor(TYPES[kind], options.kv_heads, options.length, pool)
        out = ggml.flash_attn_ext(context, q, k, v, None, 1 / math.sqrt(options.head_dim), 0.0, 0.0)
        graph = ggml.new_graph(context)
        ggml.build_forward_expand(graph, out)
        plan = ggml.graph_plan(graph, options.threads, threadpool)
        work = ctypes.create_string_buffer(max(plan.work_size, 1))
        plan.work_data = ctypes.addressof(work)
        return graph, plan, work

    def run(self):
        """Microseconds."""
        graph, plan, _ = self.steps[self.runs % len(self.steps)]
        self.runs += 1
        begin = time.perf_counter()
        if self.ggml.graph_compute(graph, ctypes.byref(plan)) != 0:
            fail("ggml_graph_compute failed")
        return 1e6 * (time.perf_counter() - begin)


def normal_numbers(n, known={}):
    if n not in known:
        source = random.Random(1)
        known[n] = array.array("f", (source.gauss(0, 1) for _ in range(n)))
    return known[n]


def fill(ggml, tensor, type_number, pool, row, rows):
    """All rows of a tensor, from the pool again and again."""
    data, total = ggml.get_data(tensor), ggml.nbytes(tensor)
    address, _ = pool.buffer_info()
    some = min(rows, POOL_ROWS)
    if type_number == F32:
        ctypes.memmove(data, address, total)
        return
    piece = ggml.quantize_chunk(type_number, address, data, 0, some, row, None)
    for begin in range(piece, total, piece):
        ctypes.memmove(data + begin, data, min(piece, total - begin))


def time_kvq(options):
    command = [options.kvq, "bench", "attend", "--json", "--length", str(options.length), "--heads", str(options.heads),
               "--kv-heads", str(options.kv_heads), "--head-dim", str(options.head_dim), "--threads", str(options.threads)]
    if options.isa:
        command += ["--isa", options.isa]
    for kv in options.kv:
        command += ["--kv", kv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(done.stderr.strip())
    document = json.loads(done.stdout)
    rows = document.get("rows", [document])
    first = rows[0]
    options.isa = document["isa"]
    yield "kvq fp16", first["fp16_microseconds"], first["fp16_bytes"], None
    for row in rows:
        yield "kvq " + row["kv"], row["microseconds"], row["bytes"], row["kv_bits"]


def main():
    options = arguments()
    options.kv = options.kv or ["int8", "int4", "gs4", "gs2"]
    if options.head_dim % 32 != 0:
        fail(f"--head-dim {options.head_dim}: ggml's blocks take multiples of 32")
    ggml = Ggml(options.ggml or folder_of_package())
    params = ggml.threadpool_params_default(options.threads)
    threadpool = ggml.threadpool_new(ctypes.byref(params))
    subjects = {kind: Attention(ggml, kind, options, threadpool) for kind in TYPES}
    times, sizes, bits = {}, {}, {}
    for _ in range(options.rounds):
        for _ in range(12):
            for kind, subject in subjects.items():
                times.setdefault("ggml " + kind, []).append(subject.run())
                sizes["ggml " + kind], bits["ggml " + kind] = subject.bytes, subject.bits
        for name, microseconds, size, kv_bits in time_kvq(options):
            times.setdefault(name, []).append(microseconds)
            sizes[name], bits[name] = size, kv_bits
    print(f"Attention of one step: {options.length} tokens, {options.heads} query and {options.kv_heads} KV heads of "
          f"{options.head_dim}, {options.threads} threads;\nggml {ggml.version().decode()} compiled for "
          f"{', '.join(ggml.instructions()) or 'no extensions'}, kvq with {options.isa}; medians, {options.rounds} rounds.\n"
          "A ggml that was compiled on this machine for it is faster than one for any machine.\n")
    print(f"{'cache':<20}{'bits':>7}{'MiB':>9}{'us':>9}{'GB/s':>8}{'times ggml f16':>17}")
    baseline = statistics.median(times["ggml f16"])
    for name, measured in times.items():
        middle = statistics.median(measured)
        shown = "16.00" if name == "ggml f16" else f"{bits[name]:.2f}" if bits[name] else ""
        print(f"{name:<20}{shown:>7}{sizes[name] / 2**20:>9.1f}{middle:>9.0f}{sizes[name] / middle * 1e-3:>8.1f}"
              f"{baseline / middle:>17.2f}")


if __name__ == "__main__":
    main()
