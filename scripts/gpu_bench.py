#!/usr/bin/env python3
"""Times of attention on a GPU: kvq's formats beside PyTorch's attention in FP16, in tables.

One layer of heads of 128; one query a sequence, as in decoding, with few and with many heads, and several: tokens that
were guessed ahead, a chunk at the end of a long prompt, a whole prompt. PyTorch has two fast ways: FlashAttention, which
gets the query heads of a KV head as rows of one head where queries are few, so that it reads nothing twice, and cuDNN's.
Several queries see all tokens there, which is at most 3 % more work than ours; those of a prompt do not. Medians of at
least 30 calls, each after one of the same kind that is not timed and a flush of the L2 cache. A ratio is the faster
way's time over ours in the same run. Without PyTorch, ratios are against kvq's own FP16.
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
FEW_QUERIES = 16
LENGTHS = [1024 << i for i in range(8)]
FLASH, CUDNN = "FlashAttention", "cuDNN"


def title(shape):
    if shape.queries == shape.tokens:
        return f"{shape.tokens}"
    if shape.queries > 1:
        return f"{shape.queries}"
    if (shape.heads, shape.kv_heads) != (HEADS, KV_HEADS):
        return f"{shape.heads}/{shape.kv_heads}, {shape.tokens}"
    return f"{shape.tokens} x {shape.batch}"


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

    def times(self, shape):
        """Microseconds of each way that can do it."""
        found = {}
        for way in self.ways:
            try:
                found[way] = self.time(shape, way)
            except RuntimeError as error:
                print(f"{way} cannot do {shape}: {str(error).splitlines()[0]}")
        return found


def kvq(program, shape, formats):
    """What `kvq bench attend` reports, and microseconds by format, FP16 included."""
    command = [program, "bench", "attend", "--device", "cuda", "--json", "--head-dim", str(HEAD_DIM)]
    for option, value in [("--length", shape.tokens), ("--batch", shape.batch), ("--queries", shape.queries),
                          ("--heads", shape.heads), ("--kv-heads", shape.kv_heads)]:
        command += [option, str(value)]
    for name in formats:
        command += ["--kv", name]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="KVQ_PROGRAM")
    parser.add_argument("--json", metavar="FILE", help="also write the measurements there, for plot_attention.py")
    parser.add_argument("--lengths", metavar="N", type=int, nargs="*",
                        help="also measure these lengths with batch 1; without numbers %d, %d, ... %d"
                        % (LENGTHS[0], LENGTHS[1], LENGTHS[-1]))
    arguments = parser.parse_args()
    lengths = LENGTHS if arguments.lengths == [] else arguments.lengths or []
    tables = {name: (list(shapes), formats) for name, (shapes, formats) in TABLES.items()}
    decoding = next(iter(tables.values()))[0]
    decoding[:] = sorted({*decoding, *map(Shape, lengths)}, key=lambda shape: (shape.batch, shape.tokens))

    try:
        pytorch = PyTorch()
    except ImportError:
        pytorch = None
    measurements, bandwidth, device = [], 0.0, ""
    for name, (shapes, formats) in tables.items():
        columns = []
        for shape in shapes:
            result, times = kvq(arguments.program, shape, formats)
            times.update(pytorch.times(shape) if pytorch else {})
            columns.append(times)
            measurements.append({**shape._asdict(), "microseconds": times})
            bandwidth = max(bandwidth, result["rows"][0]["read_bandwidth_gigabytes_per_second"])
            device = result["device_name"]
        print_table(name, shapes, columns, formats)
    print("\ndevice copy: %.0f GB/s, read and written" % bandwidth)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"device": device, "date": datetime.date.today().isoformat(),
                       "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
                       "copy_gigabytes_per_second": bandwidth, "measurements": measurements}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
