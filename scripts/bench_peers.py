#!/usr/bin/env python3
"""Compare kvq's formats with llama.cpp's types of caches: the time of attention of one decoding step on this CPU, measured in
turn, and what a model loses, each beside its own FP16 cache. Times of ONNX Runtime's operator, too, with --onnx. Nothing of
these comes with kvq; this builds llama.cpp for this processor:

    pip install llama-cpp-python==0.3.36 gguf tokenizers
    bench_peers.py build/release/bin/kvq                                # the embedded model and its text
    bench_peers.py build/release/bin/kvq --model MODEL --text TEXT      # a Llama in Hugging Face's layout
    bench_peers.py build/release/bin/kvq --only times --ggml FOLDER     # another build; Python alone
    bench_peers.py build/release/bin/kvq --only times --onnx fp32 int8 int4                 # pip install onnxruntime onnx

Both read the same tokens, window by window; llama.cpp attends to what is in the cache's type from the first token on, kvq
keeps the newest page, up to 32 tokens, in FP16. That the two FP16 perplexities agree is checked.
"""
import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import ggml_attention
import onnx_attention

DEMO = pathlib.Path(__file__).resolve().parent.parent / "models/demo"
TURNS = 12  # of ggml's types in a round
MOST_DIFFERENCE = 0.005  # of the two FP16 perplexities
PACKAGES = "pip install llama-cpp-python==0.3.36 gguf tokenizers"


def fail(reason):
    sys.exit(f"bench_peers.py: {reason}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvq", help="the kvq program")
    parser.add_argument("--only", choices=["times", "losses"], help="one of the two parts")
    parser.add_argument("--types", nargs="+", choices=list(ggml_attention.TYPES)[1:], default=["q8_0", "q4_0"],
                        help="llama.cpp's types of caches besides f16 (default: q8_0 q4_0)")
    parser.add_argument("--onnx", nargs="+", choices=list(onnx_attention.TYPES), default=[],
                        help="ONNX Runtime's types of caches, for times (default: none)")
    parser.add_argument("--kv", nargs="+", metavar="FORMAT", default=["int8", "int4+hadamard", "gs4", "gs2"],
                        help="kvq's formats besides fp16 (default: int8 int4+hadamard gs4 gs2)")
    parser.add_argument("--threads", type=int, default=2, help="to compute with (default: 2)")
    times = parser.add_argument_group("times")
    times.add_argument("--ggml", type=pathlib.Path, metavar="FOLDER",
                       help="of a build's libggml.so (default: llama-cpp-python's)")
    for name, value, text in [("length", 16384, "tokens in the cache"), ("heads", 32, "query heads"),
                              ("kv-heads", 8, "KV heads"), ("head-dim", 128, "channels of a head"),
                              ("rounds", 3, "turns of ggml and kvq")]:
        times.add_argument("--" + name, type=int, default=value, help=f"{text} (default: {value})")
    times.add_argument("--isa", help="instructions for kvq, such as those that ggml was compiled for: avx2")
    losses = parser.add_argument_group("losses")
    losses.add_argument("--model", type=pathlib.Path, default=DEMO, help="directory of a Llama (default: models/demo)")
    losses.add_argument("--text", type=pathlib.Path, default=DEMO / "sample.txt", help="(default: models/demo/sample.txt)")
    losses.add_argument("--context", type=int, default=2048, help="tokens of a window (default: 2048)")
    losses.add_argument("--windows", type=int, help="only the first ones (default: all)")
    options = parser.parse_args()
    for name in ("threads", "length", "heads", "kv_heads", "rounds", "context"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least 1")
    if options.head_dim < 32 or options.head_dim % 32 != 0:
        parser.error(f"--head-dim {options.head_dim}: ggml's blocks take multiples of 32")
    if options.heads % options.kv_heads != 0:
        parser.error(f"--heads {options.heads}: must be a multiple of --kv-heads {options.kv_heads}")
    if options.windows is not None and options.windows < 1:
        parser.error(f"--windows {options.windows}: must be at least 1")
    return options


def run_kvq(options, *command):
    """What it prints as JSON for --kv, a row for each."""
    command = [options.kvq, *map(str, command), "--threads", str(options.threads), "--json"]
    for kv in options.kv:
        command += ["--kv", kv]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        fail(f"{options.kvq}: {error.strerror}; name the program kvq")
    if done.returncode != 0:
        fail(f"{' '.join(command)}\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def open_ggml(options):
    folder = options.ggml
    if not folder:
        package = importlib.util.find_spec("llama_cpp")
        if not package:
            fail(f"times need ggml: {PACKAGES}, or name the folder of a build's libggml.so by --ggml")
        folder = pathlib.Path(package.submodule_search_locations[0]) / "lib"
    try:
        return ggml_attention.Ggml(folder, options.threads)
    except OSError as error:
        return fail(f"--ggml {folder}: {error}")


def time_attention(options, ggml, rows):
    """Into rows, microseconds and bits; returns the instructions that kvq took."""
    attentions = {f"llama.cpp {kind}": ggml_attention.Attention(ggml, kind, options) for kind in ["f16", *options.types]}
    try:
        attentions.update({f"ONNX Runtime {kind}": onnx_attention.Attention(kind, options) for kind in options.onnx})
    except ImportError as error:
        fail(f"--onnx needs packages ({error}): pip install onnxruntime onnx")
    for _ in range(options.rounds):
        for _ in range(TURNS):
            for name, attention in attentions.items():
                row(rows, name, bits=attention.bits).setdefault("times", []).append(attention.run())
        found = run_kvq(options, "bench", "attend", "--length", options.length, "--heads", options.heads, "--kv-heads",
                        options.kv_heads, "--head-dim", options.head_dim, *(["--isa", options.isa] if options.isa else []))
        formats = found.get("rows", [found])
        row(rows, "kvq fp16", bits=16.0).setdefault("times", []).append(formats[0]["fp16_microseconds"])
        for kv, each in zip(options.kv, formats):
            row(rows, f"kvq {kv}", bits=each["kv_bits"]).setdefault("times", []).append(each["microseconds"])
    return found["isa"]


def measure_losses(options, rows):
    """Into rows, perplexity and KL; returns how many windows."""
    try:
        import llama_cpp_losses
    except ImportError as error:
        fail(f"losses need packages ({error}): {PACKAGES}; --only times does without")
    try:
        windows = llama_cpp_losses.windows_of_tokens(options.model, options.text, options.context, options.windows)
        with tempfile.TemporaryDirectory() as scratch:
            model = pathlib.Path(scratch) / "model.gguf"
            llama_cpp_losses.write_gguf(options.model, model)
            theirs = llama_cpp_losses.measure(model, windows, options.types, options.threads)
    except (OSError, llama_cpp_losses.Unsupported) as error:
        fail(str(error))
    ours = run_kvq(options, "eval", "perplexity", "--model", options.model, "--text", options.text,
                   "--context", options.context, "--windows", len(windows), "--against", "fp16")
    formats = ours.get("formats", [ours])
    own = formats[0]["reference_perplexity"]
    if abs(theirs["f16"][0] / own - 1) > MOST_DIFFERENCE:
        fail(f"{options.model} does not compute the same: with FP16 caches llama.cpp has perplexity {theirs['f16'][0]:.4f}, "
             f"kvq {own:.4f}. Is it a Llama whose config.json says all of it?")
    for kind, (perplexity, divergence) in theirs.items():
        row(rows, f"llama.cpp {kind}", bits=ggml_attention.bits(kind)).update(
            perplexity=perplexity, rise=100 * (perplexity / theirs["f16"][0] - 1), kl=divergence)
    row(rows, "kvq fp16", bits=16.0).update(perplexity=own, rise=0.0, kl=0.0)
    for kv, each in zip(options.kv, formats):
        row(rows, f"kvq {kv}", bits=each["kv_bits"]).update(
            perplexity=each["perplexity"], rise=each["rise_percent"], kl=each["kl_mean"])
    return len(windows)


def row(rows, name, bits):
    """Bits are those of what was measured first: of the longer caches of attention."""
    return rows.setdefault(name, {"bits": bits})


def show(rows):
    titles = {key for each in rows.values() for key in each}
    print(f"{'cache':<24}{'bits':>7}" + f"{'us':>9}{'faster':>8}" * ("times" in titles)
          + f"{'KL':>11}{'perplexity':>12}{'rise':>12}" * ("kl" in titles))
    for name, each in rows.items():
        line = f"{name:<24}{each['bits']:>7.2f}"
        if "times" in each:
            middle = statistics.median(each["times"])
            line += f"{middle:>9.0f}{statistics.median(rows['llama.cpp f16']['times']) / middle:>8.2f}"
        if "kl" in each:
            line += f"{each['kl']:>11.6f}{each['perplexity']:>12.3f}{each['rise']:>+10.3f} %"
        print(line)


def main():
    options = arguments()
    rows = {}
    if options.only != "losses":
        ggml = open_ggml(options)
        isa = time_attention(options, ggml, rows)
        peers = [ggml.describe()] + [onnx_attention.describe()] * bool(options.onnx)
        print(f"Attention of one step: {options.length} tokens, {options.heads} query and {options.kv_heads} KV heads of "
              f"{options.head_dim}, {options.threads} threads; medians.\n{'; '.join(peers)}; kvq with {isa}.")
    if options.only != "times":
        windows = measure_losses(options, rows)
        print(f"Losses of {options.model} on {options.text}: {windows} windows of {options.context} tokens.")
    print()
    show(rows)


if __name__ == "__main__":
    main()
