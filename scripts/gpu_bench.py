#!/usr/bin/env python3
"""Times of decode attention on a GPU: kvq's formats beside PyTorch's FlashAttention in FP16, in one table.

usage: gpu_bench.py KVQ_PROGRAM

One layer, 32 query and 8 KV heads of 128; medians of at least 30 calls, the L2 cache flushed before each. A ratio is
PyTorch's time over ours in the same run. Without PyTorch, ratios are against kvq's own FP16.
"""
import json
import statistics
import subprocess
import sys

SHAPES = [(8192, 1), (32768, 1), (131072, 1), (8192, 16)]  # tokens, batch
FORMATS = ["int8", "int4", "int4+hadamard", "int3", "int2", "int2+hadamard"]


def flash_attention():
    """Microseconds by shape, or None without PyTorch."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return None
    times = {}
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for tokens, batch in SHAPES:
        # The query heads of a KV head as rows of one head: nothing is read twice.
        q = torch.randn(batch, 8, 4, 128, device="cuda", dtype=torch.float16)
        k = torch.randn(batch, 8, tokens, 128, device="cuda", dtype=torch.float16)
        v = torch.randn_like(k)
        samples = []
        for i in range(40):
            flush.fill_(i)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                begin.record()
                torch.nn.functional.scaled_dot_product_attention(q, k, v)
                end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3)
        times[tokens, batch] = statistics.median(samples[5:])
    return times


def kvq(program, tokens, batch):
    """Microseconds by format, FP16 included, and GB/s of a device copy."""
    command = [program, "bench", "attend", "--device", "cuda", "--json", "--length", str(tokens), "--batch", str(batch)]
    for name in FORMATS:
        command += ["--kv", name]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = result["rows"]
    times = {"fp16": rows[0]["fp16_microseconds"]}
    times.update({row["kv"]: row["microseconds"] for row in rows})
    return times, rows[0]["read_bandwidth_gigabytes_per_second"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    baseline = flash_attention()
    print("%-16s" % "tokens x batch" + "".join("%18s" % f"{t} x {b}" for t, b in SHAPES))
    if baseline:
        print("%-16s" % "FlashAttention" + "".join("%15.1f us" % baseline[shape] for shape in SHAPES))
    columns = [kvq(sys.argv[1], *shape) for shape in SHAPES]
    for name in ["fp16"] + FORMATS:
        cells = []
        for shape, (times, _) in zip(SHAPES, columns):
            reference = baseline[shape] if baseline else times["fp16"]
            cells.append("%9.1f us %5.2f" % (times[name], reference / times[name]))
        print("%-16s" % name + "".join("%18s" % cell for cell in cells))
    print("device copy: %.0f GB/s, read and written" % max(bandwidth for _, bandwidth in columns))


if __name__ == "__main__":
    main()
