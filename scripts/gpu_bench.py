#!/usr/bin/env python3
"""Times of attention on a GPU: kvq's formats beside PyTorch's FlashAttention in FP16, in one table.

One layer, 32 query and 8 KV heads of 128; one query a sequence, as in decoding, and a prompt, whose tokens all ask.
Medians of at least 30 calls, the L2 cache flushed before each. A ratio is PyTorch's time over ours in the same run.
Without PyTorch, ratios are against kvq's own FP16.
"""
import argparse
import datetime
import json
import statistics
import subprocess

SHAPES = [(8192, 1, 1), (32768, 1, 1), (131072, 1, 1), (8192, 16, 1), (4096, 1, 4096)]  # tokens, batch, queries
LENGTHS = [1024 << i for i in range(8)]
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
FORMATS = ["int8", "int4", "int4+hadamard", "int3", "int2", "int2+hadamard",
           "gs4", "gs3", "gs2", "gs2+nocentre", "gs1", "gt3", "gt2", "gt2+nocentre", "gt1"]
BASELINE = "FlashAttention"


def flash_attention(shapes):
    """Microseconds by shape, or None without PyTorch."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return None
    times = {}
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for tokens, batch, queries in shapes:
        # One query: the query heads of a KV head as rows of one head, so that nothing is read twice.
        rows = (KV_HEADS, HEADS // KV_HEADS) if queries == 1 else (HEADS, queries)
        q = torch.randn(batch, *rows, HEAD_DIM, device="cuda", dtype=torch.float16)
        k = torch.randn(batch, KV_HEADS, tokens, HEAD_DIM, device="cuda", dtype=torch.float16)
        v = torch.randn_like(k)
        samples = []
        for i in range(40):
            flush.fill_(i)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                begin.record()
                prompt = queries > 1
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=prompt, enable_gqa=prompt)
                end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3)
        times[tokens, batch, queries] = statistics.median(samples[5:])
    return times


def kvq(program, tokens, batch, queries):
    """What `kvq bench attend` reports, and microseconds by format, FP16 included."""
    command = [program, "bench", "attend", "--device", "cuda", "--json", "--length", str(tokens), "--batch", str(batch)]
    command += ["--queries", str(queries)]
    command += ["--heads", str(HEADS), "--kv-heads", str(KV_HEADS), "--head-dim", str(HEAD_DIM)]
    for name in FORMATS:
        command += ["--kv", name]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    times = {"fp16": result["rows"][0]["fp16_microseconds"]}
    times.update({row["kv"]: row["microseconds"] for row in result["rows"]})
    return result, times


def print_table(shapes, columns):
    titles = [f"{tokens} x {batch}" if queries == 1 else f"prompt of {tokens}" for tokens, batch, queries in shapes]
    print("%-16s" % "tokens x batch" + "".join("%18s" % title for title in titles))
    if BASELINE in columns[0]:
        print("%-16s" % BASELINE + "".join("%15.1f us" % times[BASELINE] for times in columns))
    for name in ["fp16"] + FORMATS:
        cells = []
        for times in columns:
            reference = times.get(BASELINE, times["fp16"])
            cells.append("%9.1f us %5.2f" % (times[name], reference / times[name]))
        print("%-16s" % name + "".join("%18s" % cell for cell in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="KVQ_PROGRAM")
    parser.add_argument("--json", metavar="FILE", help="also write the measurements there, for plot_attention.py")
    parser.add_argument("--lengths", metavar="N", type=int, nargs="*",
                        help="also measure these lengths with batch 1; without numbers %d, %d, ... %d"
                        % (LENGTHS[0], LENGTHS[1], LENGTHS[-1]))
    arguments = parser.parse_args()
    lengths = LENGTHS if arguments.lengths == [] else arguments.lengths or []
    shapes = SHAPES + [(tokens, 1, 1) for tokens in lengths if (tokens, 1, 1) not in SHAPES]
    shapes.sort(key=lambda shape: (shape[2], shape[1], shape[0]))

    baseline = flash_attention(shapes)
    results, columns = zip(*(kvq(arguments.program, *shape) for shape in shapes))
    for shape, times in zip(shapes, columns):
        if baseline:
            times[BASELINE] = baseline[shape]
    bandwidth = max(result["rows"][0]["read_bandwidth_gigabytes_per_second"] for result in results)

    print_table(shapes, columns)
    print("device copy: %.0f GB/s, read and written" % bandwidth)
    if arguments.json:
        measurements = [{"tokens": tokens, "batch": batch, "queries": queries, "microseconds": times}
                        for (tokens, batch, queries), times in zip(shapes, columns)]
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"device": results[0]["device_name"], "date": datetime.date.today().isoformat(),
                       "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
                       "copy_gigabytes_per_second": bandwidth, "measurements": measurements}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
