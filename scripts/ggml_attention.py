"""Attention of one decoding step by ggml, of which llama.cpp is made, through its C interface."""
import array
import ctypes
import math
import random
import subprocess
import sys
import time

# By name of a cache's type: its number in ggml and the bytes of 32 scalars.
TYPES = {"f16": (1, 64), "q8_0": (8, 34), "q5_1": (7, 24), "q5_0": (6, 22), "q4_1": (3, 20), "q4_0": (2, 18),
         "iq4_nl": (20, 18)}
F32, F16 = 0, 1
POOL_ROWS = 4096    # random rows, repeated, which are as fast as others
POINTER, SIZE, NUMBER, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", SIZE), ("mem_buffer", POINTER), ("no_alloc", ctypes.c_bool)]


class ThreadpoolParams(ctypes.Structure):  # is only passed on, so how large it is in this version does not matter
    _fields_ = [("bytes", ctypes.c_char * 2048)]


class Plan(ctypes.Structure):  # ggml_cplan begins so in all versions
    _fields_ = [("work_size", SIZE), ("work_data", POINTER), ("more", ctypes.c_char * 240)]


FUNCTIONS = [
    ("init", POINTER, [InitParams]),
    ("new_tensor_3d", POINTER, [POINTER, INT, NUMBER, NUMBER, NUMBER]),
    ("permute", POINTER, [POINTER, POINTER] + [INT] * 4),
    ("get_data", POINTER, [POINTER]),
    ("nbytes", SIZE, [POINTER]),
    ("quantize_chunk", SIZE, [INT, POINTER, POINTER, NUMBER, NUMBER, NUMBER, POINTER]),
    ("flash_attn_ext", POINTER, [POINTER] * 5 + [ctypes.c_float] * 3),
    ("new_graph", POINTER, [POINTER]),
    ("build_forward_expand", None, [POINTER, POINTER]),
    ("graph_plan", Plan, [POINTER, INT, POINTER]),
    ("graph_compute", INT, [POINTER, ctypes.POINTER(Plan)]),
    ("cpu_init", None, []),
    ("version", ctypes.c_char_p, []),
    ("commit", ctypes.c_char_p, []),
    ("threadpool_params_default", ThreadpoolParams, [INT]),
    ("threadpool_new", POINTER, [ctypes.POINTER(ThreadpoolParams)]),
]


def bits(kind):
    return TYPES[kind][1] / 4


class Ggml:
    def __init__(self, folder, threads):
        """Raises OSError if the folder has no libggml.so of use."""
        self.library, self.threads = ctypes.CDLL(str(folder / "libggml.so")), threads
        for name, result, takes in FUNCTIONS:
            self.declare(name, result, takes)
        self.cpu_init()
        self.threadpool = self.threadpool_new(ctypes.byref(self.threadpool_params_default(threads)))

    def declare(self, name, result, takes):
        try:
            function = getattr(self.library, "ggml_" + name)
        except AttributeError as error:
            raise OSError(f"its libggml.so has no ggml_{name}: build a newer llama.cpp, with GGML_BACKEND_DL=OFF") from error
        function.restype, function.argtypes = result, takes
        setattr(self, name, function)

    def describe(self):
        return (f"ggml {self.version().decode()} ({self.commit().decode()}), compiled for "
                f"{', '.join(self.instructions()) or 'no extensions'}")

    def instructions(self):
        """Those of x86 that its kernels were compiled for."""
        names = ("f16c", "fma", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8")
        return [name for name in names if getattr(self.library, "ggml_cpu_has_" + name)()]


class Attention:
    """One step of flash attention over a cache of a type, laid out as llama.cpp does: keys and values are [tokens, KV heads,
    head_dim]. As many equal caches are read in turn as exceed the processor's own."""

    def __init__(self, ggml, kind, shape):
        self.ggml, self.shape, self.runs, self.bits = ggml, shape, 0, bits(kind)
        self.bytes = 2 * shape.length * shape.kv_heads * shape.head_dim // 32 * TYPES[kind][1]
        copies = max(2, min(64, math.ceil(2 * last_level_cache_bytes() / self.bytes)))
        more = (1 << 20) + 2 * shape.length + 16 * shape.heads * shape.head_dim
        self.context = ggml.init(InitParams(copies * (self.bytes + more), None, False))
        self.steps = [self.plan(self.flash_attention(TYPES[kind][0])) for _ in range(copies)]

    def flash_attention(self, number):
        shape = self.shape
        q = self.by_head(F32, shape.heads, 1)
        k, v = (self.by_head(number, shape.kv_heads, shape.length) for _ in range(2))
        return self.ggml.flash_attn_ext(self.context, q, k, v, self.mask(), 1 / math.sqrt(shape.head_dim), 0.0, 0.0)

    def mask(self):
        """Hides nothing; llama.cpp always has one."""
        made = self.ggml.new_tensor_3d(self.context, F16, self.shape.length, 1, 1)
        ctypes.memset(self.ggml.get_data(made), 0, self.ggml.nbytes(made))
        return made

    def by_head(self, number, heads, tokens):
        made = self.random(number, self.shape.head_dim, heads, tokens)
        return self.ggml.permute(self.context, made, 0, 2, 1, 3)

    def random(self, number, *sizes):
        """A tensor of ggml's type `number`, the same numbers again and again."""
        ggml, row = self.ggml, self.shape.head_dim
        made = ggml.new_tensor_3d(self.context, number, *sizes)
        data, total = ggml.get_data(made), ggml.nbytes(made)
        address, _ = normal_numbers(POOL_ROWS * row).buffer_info()
        if number == F32:
            ctypes.memmove(data, address, total)
            return made
        piece = ggml.quantize_chunk(number, address, data, 0, min(math.prod(sizes) // row, POOL_ROWS), row, None)
        for begin in range(piece, total, piece):
            ctypes.memmove(data + begin, data, min(piece, total - begin))
        return made

    def plan(self, result):
        ggml = self.ggml
        graph = ggml.new_graph(self.context)
        ggml.build_forward_expand(graph, result)
        plan = ggml.graph_plan(graph, ggml.threads, ggml.threadpool)
        work = ctypes.create_string_buffer(max(plan.work_size, 1))
        plan.work_data = ctypes.addressof(work)
        return graph, plan, work

    def run(self):
        """Microseconds."""
        graph, plan, _ = self.steps[self.runs % len(self.steps)]
        self.runs += 1
        begin = time.perf_counter()
        if self.ggml.graph_compute(graph, ctypes.byref(plan)) != 0:
            sys.exit("ggml_graph_compute failed")
        return 1e6 * (time.perf_counter() - begin)


def last_level_cache_bytes():
    """As kvq bench takes it."""
    done = subprocess.run(["getconf", "LEVEL3_CACHE_SIZE"], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.stdout.strip().isdigit() and int(done.stdout) > 0 else 32 << 20


def normal_numbers(n, known={}):
    if n not in known:
        source = random.Random(1)
        known[n] = array.array("f", (source.gauss(0, 1) for _ in range(n)))
    return known[n]
