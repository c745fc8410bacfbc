#!/usr/bin/env python3
"""Times on a GPU: kvq's attention and linear layers beside PyTorch's in FP16, in tables.

Attention: one layer of heads of 128; one query a sequence, as in decoding, with few and with many heads, and several:
tokens that were guessed ahead, a chunk at the end of a long prompt, a whole prompt. PyTorch has two fast ways:
FlashAttention, which gets the query heads of a KV head as rows of one head where queries are few, so that it reads
nothing twice, and cuDNN's. Several queries see all tokens there, which is at most 3 % more work than ours; those of a
prompt do not. Medians of at least 30 calls, each after one of the same kind that is not timed and a flush of the L2
cache. A ratio is the faster way's time over ours in the same run. Without PyTorch, ratios are against kvq's own FP16.

Pools: the same over pages in blocks that a block table names in random order; ragged batches have sequences of 64 tokens
to the longest, evenly on a logarithmic scale, which PyTorch attends to as one packed batch.

Linear layers: calls on different matrices, more than 200 MB of them, in one CUDA graph; medians of at least 30 replays.

A step of decoding: all linear layers of Llama 3 8B in one CUDA graph, with and without attention over a cache of
32 768 tokens; PyTorch multiplies by q, k and v as one matrix and by gate and up as one, and appends nothing. Norms,
activations and logits are left out.
"""
import argparse
import datetime
import json
import statistics
import subprocess
from collections import namedtuple

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
Shape = namedtuple("Shape", "tokens batch queries heads kv_heads", defaults=(1, 1, HEADS, KV_HEADS))
FORMATS = ["int8", "int4", "int4+hadamard", "int3", "int2", "int2+hadamard",
           "gs4", "gs3", "gs2", "gs2+nocentre", "gs1", "gt3", "gt2", "gt2+nocentre", "gt1", "commvq-2", "commvq-1"]
FEW_FORMATS = ["int4", "int2", "gs4", "gs2", "gt2", "commvq-1"]
TABLES = {
    "decoding: tokens x batch": ([Shape(8192), Shape(32768), Shape(131072), Shape(8192, 16)], FORMATS),
    "decoding, other heads: query/KV heads, tokens": (
        [Shape(32768, heads=32, kv_heads=32), Shape(32768, heads=64), Shape(32768, heads=28, kv_heads=4),
         Shape(131072, heads=32, kv_heads=1)], FEW_FORMATS),
    "queries of the newest tokens, at 32 768": (
        [Shape(32768, queries=queries) for queries in (1, 4, 8, 16, 512, 2048)], FEW_FORMATS),
    "prompts: tokens": ([Shape(n, queries=n) for n in (4096, 8192, 32768)], FEW_FORMATS),
}
POOL_SHAPES = [Shape(8192), Shape(8192, 16), Shape(8192, 128)]
RAGGED = Shape(32768, 256)
LEAST_RAGGED = 64
POOL_FORMATS = ["int4", "gs4", "gs2"]
FEW_QUERIES = 16
LENGTHS = [1024 << i for i in range(8)]
LinearShape = namedtuple("LinearShape", "out inputs batch")
LINEAR_SHAPES = [LinearShape(4096, 4096, 1), *(LinearShape(14336, 4096, batch) for batch in (1, 8, 256))]
SCHEMES = [f"{family}-{bits}" for family in ("nuq", "vq", "tcq", "tcx") for bits in (2, 3, 4)]
LAYERS, HIDDEN, MLP = 32, 4096, 14336  # of Llama 3 8B, with the heads above
STEP_TOKENS = 32768
STEP_SCHEMES = ["tcx-2", "tcx-4", "tcq-2", "tcq-4", "vq-2", "nuq-3", "nuq-4"]
LONG_STEP_SCHEMES, STEP_FORMATS = ["tcx-2", "vq-2"], ["gs2", "int4"]
ROTATED_BYTES, LEAST_MATRICES = 200_000_000, 20
REPLAYS = 30
PARTS = ["attention", "pools", "linear", "decode"]
FLASH, CUDNN = "FlashAttention", "cuDNN"


def title(shape):
    if shape.queries == shape.tokens:
        return f"{shape.tokens}"
    if shape.queries > 1:
        return f"{shape.queries}"
    if (shape.heads, shape.kv_heads) != (HEADS, KV_HEADS):
        return f"{shape.heads}/{shape.kv_heads}, {shape.tokens}"
    return f"{shape.tokens} x {shape.batch}"


def ragged_lengths(shape):
    ratio = shape.tokens / LEAST_RAGGED
    return [round(LEAST_RAGGED * ratio ** (i / (shape.batch - 1))) for i in range(shape.batch)]


class PyTorch:
    def __init__(self):
        import torch
        from torch.nn import attention

        self.torch, self.attention = torch, attention
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self.ways = {FLASH: attention.SDPBackend.FLASH_ATTENTION, CUDNN: attention.SDPBackend.CUDNN_ATTENTION}

    def tensors(self, shape, way):
        """Queries, keys, values, and whether query heads share KV heads."""
        torch, groups = self.torch, shape.heads // shape.kv_heads
        folded = way == FLASH and shape.queries <= FEW_QUERIES
        rows = (shape.kv_heads, groups * shape.queries) if folded else (shape.heads, shape.queries)
        q = torch.randn(shape.batch, *rows, HEAD_DIM, device="cuda", dtype=torch.float16)
        k = torch.randn(shape.batch, shape.kv_heads, shape.tokens, HEAD_DIM, device="cuda", dtype=torch.float16)
        return q, k, torch.randn_like(k), groups > 1 and not folded

    def time(self, shape, way):
        torch = self.torch
        q, k, v, shared = self.tensors(shape, way)

        def call():
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape.queries == shape.tokens,
                                                             enable_gqa=shared)
        samples = []
        with self.attention.sdpa_kernel(self.ways[way]):
            for i in range(35):
                call()
                self.flush.fill_(i)
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                samples.append(begin.elapsed_time(end) * 1e3)
        return statistics.median(samples[5:])

    def time_ragged(self, shape):
        """One query of each sequence of a packed batch, the query heads of a KV head as rows."""
        from torch.nn.attention.varlen import varlen_attn

        torch, groups = self.torch, shape.heads // shape.kv_heads
        lengths = ragged_lengths(shape)
        ends = torch.tensor([0, *lengths], device="cuda", dtype=torch.int32).cumsum(0, dtype=torch.int32)
        rows = torch.arange(shape.batch + 1, device="cuda", dtype=torch.int32) * groups
        q = self.halves(shape.batch * groups, shape.kv_heads, HEAD_DIM)
        k, v = (self.halves(sum(lengths), shape.kv_heads, HEAD_DIM) for _ in range(2))
        samples = []
        for i in range(35):
            varlen_attn(q, k, v, rows, ends, groups, max(lengths))
            self.flush.fill_(i)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            varlen_attn(q, k, v, rows, ends, groups, max(lengths))
            end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3)
        return statistics.median(samples[5:])

    def time_graph(self, issue):
        """Microseconds of what `issue` does, replayed as one CUDA graph."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # cuBLAS makes its work space
            issue()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            issue()
        samples = []
        for i in range(REPLAYS + 5):
            self.flush.fill_(i)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3)
        return statistics.median(samples[5:])

    def halves(self, *shape):
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.float16)

    def time_linear(self, shape):
        """Microseconds of a call, each on a matrix of its own."""
        n = max(LEAST_MATRICES, -(-ROTATED_BYTES // (2 * shape.out * shape.inputs)))
        matrices = [self.halves(shape.out, shape.inputs) for _ in range(n)]
        x = self.halves(shape.batch, shape.inputs)

        def issue():  # outputs take the same memory, one after the other
            for matrix in matrices:
                self.torch.nn.functional.linear(x, matrix)

        return self.time_graph(issue) / n

    def time_step(self, tokens):
        """Milliseconds of a step of decoding, with attention over so many tokens unless they are 0."""
        functional = self.torch.nn.functional
        qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        shapes = [(qkv, HIDDEN), (HIDDEN, HEADS * HEAD_DIM), (2 * MLP, HIDDEN), (HIDDEN, MLP)]
        layers = [[self.halves(*shape) for shape in shapes] for _ in range(LAYERS)]
        inputs = [self.halves(1, shape[1]) for shape in shapes]
        q = self.halves(1, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
        caches = [self.halves(2, 1, KV_HEADS, tokens, HEAD_DIM) for _ in range(LAYERS if tokens else 0)]

        def issue():
            for i, layer in enumerate(layers):
                functional.linear(inputs[0], layer[0])
                if caches:
                    functional.scaled_dot_product_attention(q, *caches[i])
                for x, matrix in zip(inputs[1:], layer[1:]):
                    functional.linear(x, matrix)

        with self.attention.sdpa_kernel(self.ways[FLASH]):
            return 1e-3 * self.time_graph(issue)

    def times(self, shape):
        """Microseconds of each way that can do it."""
        found = {}
        for way in self.ways:
            try:
                found[way] = self.time(shape, way)
            except RuntimeError as error:
                print(f"{way} cannot do {shape}: {str(error).splitlines()[0]}")
        return found


def bench(program, what, options, flags=(), **repeated):
    """What `kvq bench` reports, always with a list of rows."""
    command = [program, "bench", what, "--device", "cuda", "--json", *flags]
    for option, value in options.items():
        command += ["--" + option, str(value)]
    for option, values in repeated.items():
        for value in values:
            command += ["--" + option, value]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result if "rows" in result else {**result, "rows": [result]}


def kvq(program, shape, formats, flags=()):
    """What `kvq bench attend` reports, and microseconds by format, FP16 included."""
    options = {"head-dim": HEAD_DIM, "length": shape.tokens, "batch": shape.batch, "queries": shape.queries,
               "heads": shape.heads, "kv-heads": shape.kv_heads}
    result = bench(program, "attend", options, flags, kv=formats)
    rows = result["rows"]
    times = {"fp16": rows[0]["fp16_microseconds"]}
    times.update({row["kv"]: row["microseconds"] for row in rows})
    return result, times


def print_table(name, shapes, columns, formats):
    print("\n" + name)
    print("%-16s" % "" + "".join("%18s" % title(shape) for shape in shapes))
    for way in (FLASH, CUDNN):
        if any(way in times for times in columns):
            cells = ["%15.1f us" % times[way] if way in times else "%18s" % "" for times in columns]
            print("%-16s" % way + "".join(cells))
    for kv in ["fp16"] + formats:
        cells = []
        for times in columns:
            reference = min((times[way] for way in (FLASH, CUDNN) if way in times), default=times["fp16"])
            cells.append("%9.1f us %5.2f" % (times[kv], reference / times[kv]))
        print("%-16s" % kv + "".join("%18s" % cell for cell in cells), flush=True)


def pool_table(program, pytorch):
    """Prints it and returns the measurements: over a pool, and where it can be over a cache."""
    columns, measurements = [], []
    for shape in [*POOL_SHAPES, RAGGED]:
        flags = ["--pool", "--ragged"] if shape is RAGGED else ["--pool"]
        times = kvq(program, shape, POOL_FORMATS, flags)[1]
        if shape is not RAGGED:
            times.update({f"{kv}, cache": time for kv, time in kvq(program, shape, POOL_FORMATS)[1].items()})
        if pytorch:
            times.update({FLASH: pytorch.time_ragged(shape)} if shape is RAGGED else pytorch.times(shape))
        columns.append(times)
        measurements.append({**shape._asdict(), "ragged": shape is RAGGED, "microseconds": times})
    print("\npools: tokens x sequences, the last one ragged")
    names = [FLASH, CUDNN, "fp16", *POOL_FORMATS, *(f"{kv}, cache" for kv in ["fp16", *POOL_FORMATS])]
    for name in names:
        cells = []
        for times in columns:
            reference = min((times[way] for way in (FLASH, CUDNN) if way in times), default=times["fp16"])
            cells.append("%9.1f us %5.2f" % (times[name], reference / times[name]) if name in times else "")
        print("%-16s" % name + "".join("%18s" % cell for cell in cells), flush=True)
    return measurements


def linear_table(program, pytorch, shapes):
    """Prints it and returns the measurements."""
    columns, measurements = [], []
    for shape in shapes:
        options = {"shape": f"{shape.out}x{shape.inputs}", "batch": shape.batch}
        rows = bench(program, "linear", options, scheme=SCHEMES)["rows"]
        times = {"fp16": rows[0]["fp16_microseconds"], **{row["scheme"]: row["microseconds"] for row in rows}}
        if pytorch:
            times["cuBLAS"] = pytorch.time_linear(shape)
        columns.append(times)
        measurements.append({**shape._asdict(), "microseconds": times})
    print("\nlinear layers: outputs x inputs, batch")
    print("%-16s" % "" + "".join("%18s" % f"{shape.out}x{shape.inputs}, {shape.batch}" for shape in shapes))
    if pytorch:
        print("%-16s" % "cuBLAS" + "".join("%15.1f us" % times["cuBLAS"] for times in columns))
    for scheme in ["fp16"] + SCHEMES:
        cells = ["%9.1f us %5.2f" % (times[scheme], times.get("cuBLAS", times["fp16"]) / times[scheme])
                 for times in columns]
        print("%-16s" % scheme + "".join("%18s" % cell for cell in cells), flush=True)
    return measurements


def decode_table(program, pytorch):
    """Prints it and returns the measurements."""
    shape = {"layers": LAYERS, "hidden": HIDDEN, "mlp": MLP, "heads": HEADS, "kv-heads": KV_HEADS, "head-dim": HEAD_DIM}
    found = {}  # milliseconds and bytes of weights and caches by tokens, weights and cache
    for tokens in (0, STEP_TOKENS):
        schemes, formats = (LONG_STEP_SCHEMES, STEP_FORMATS) if tokens else (STEP_SCHEMES, [])
        rows = bench(program, "decode", {**shape, "length": tokens}, scheme=schemes, kv=formats)["rows"]
        if pytorch:
            found[tokens, "PyTorch fp16", "fp16"] = (pytorch.time_step(tokens), 0)
        found[tokens, "fp16", "fp16"] = (rows[0]["fp16_milliseconds"],
                                         rows[0]["fp16_weight_bytes"] + rows[0]["fp16_cache_bytes"])
        for row in rows:
            found[tokens, row["scheme"], row.get("kv", "fp16")] = (row["milliseconds"],
                                                                  row["weight_bytes"] + row["cache_bytes"])
    print("\na decode step of Llama 3 8B\n%-16s%10s%8s%12s%12s%10s%8s" %
          ("weights", "tokens", "cache", "GB", "ms", "tokens/s", "ratio"))
    for (tokens, weights, cache), (milliseconds, size) in found.items():
        reference = found.get((tokens, "PyTorch fp16", "fp16"), found[tokens, "fp16", "fp16"])[0]
        print("%-16s%10d%8s%12s%12.3f%10.1f%8.2f" %
              (weights, tokens, cache if tokens else "-", "%.2f" % (1e-9 * size) if size else "", milliseconds,
               1e3 / milliseconds, reference / milliseconds), flush=True)
    return [{"tokens": tokens, "weights": weights, "cache": cache if tokens else None, "milliseconds": times[0],
             "bytes": times[1] or None} for (tokens, weights, cache), times in found.items()]


def device_name(program):
    info = subprocess.run([program, "info", "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(info)["cuda_device"]


def attention_tables(program, pytorch, lengths):
    """Prints them and returns what a file of measurements says of attention."""
    tables = {name: (list(shapes), formats) for name, (shapes, formats) in TABLES.items()}
    decoding = next(iter(tables.values()))[0]
    decoding[:] = sorted({*decoding, *map(Shape, lengths)}, key=lambda shape: (shape.batch, shape.tokens))
    measurements, bandwidth = [], 0.0
    for name, (shapes, formats) in tables.items():
        columns = []
        for shape in shapes:
            result, times = kvq(program, shape, formats)
            times.update(pytorch.times(shape) if pytorch else {})
            columns.append(times)
            measurements.append({**shape._asdict(), "microseconds": times})
            bandwidth = max(bandwidth, result["rows"][0]["read_bandwidth_gigabytes_per_second"])
        print_table(name, shapes, columns, formats)
    print("\ndevice copy: %.0f GB/s, read and written" % bandwidth)
    return {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
            "copy_gigabytes_per_second": bandwidth, "measurements": measurements}


def parts(text):
    chosen = text.split(",")
    unknown = set(chosen) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError("%s: known are %s" % (", ".join(sorted(unknown)), ", ".join(PARTS)))
    return chosen


def linear_shape(text):
    """OUTxIN,ROWS"""
    matrix, rows = text.split(",")
    return LinearShape(*map(int, matrix.split("x")), int(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="KVQ_PROGRAM")
    parser.add_argument("--only", metavar="PARTS", type=parts, default=PARTS,
                        help="of %s, separated by commas; linear takes a minute (default: all)" % ", ".join(PARTS))
    parser.add_argument("--json", metavar="FILE", help="also write the measurements there, for plot_attention.py")
    parser.add_argument("--lengths", metavar="N", type=int, nargs="*",
                        help="also measure attention over these lengths with batch 1; without numbers %d, %d, ... %d"
                        % (LENGTHS[0], LENGTHS[1], LENGTHS[-1]))
    parser.add_argument("--layers", metavar="OUTxIN,ROWS", type=linear_shape, nargs="+", default=LINEAR_SHAPES,
                        help="linear layers (default: those of docs/benchmarks.md)")
    arguments = parser.parse_args()
    lengths = LENGTHS if arguments.lengths == [] else arguments.lengths or []
    try:
        pytorch = PyTorch()
    except ImportError:
        pytorch = None
    found = {"device": device_name(arguments.program), "date": datetime.date.today().isoformat()}
    if "attention" in arguments.only:
        found.update(attention_tables(arguments.program, pytorch, lengths))
    if "pools" in arguments.only:
        found["pools"] = pool_table(arguments.program, pytorch)
    if "linear" in arguments.only:
        found["linear"] = linear_table(arguments.program, pytorch, arguments.layers)
    if "decode" in arguments.only:
        found["decode"] = decode_table(arguments.program, pytorch)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
