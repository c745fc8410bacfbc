#!/usr/bin/env python3
"""Measure what KV formats lose against FP16 and in how many true bits, for plot_kl.py.

usage: measure_kl.py KVQ_PROGRAM MODEL TEXT MEASUREMENTS.json [options]   (--help lists them)

Loss is that of `kvq eval perplexity`. Bits are those of a layer of the model's shape at 32 768 tokens, whatever the windows are:
codes, scales, records of pages and pages that stay FP16, of which every format has as many at the begin (--sink). What was trained
is not in them. A file of measurements that exists already goes on: its formats are not measured again.
"""
import argparse
import json
import pathlib
import subprocess
import sys

LENGTH = 32768
# By family the formats of keys and values, and the option with the file that was trained for them.
FAMILIES = {
    "int": (["int4", "int3", "int2"], None),
    "int+hadamard": (["int4+hadamard", "int3+hadamard", "int2+hadamard"], None),
    "commvq 2": (["commvq"], "codebook_2"),
    "commvq 1": (["commvq"], "codebook_1"),
    "gs": (["gs4", "gs3", "gs2", "gs1"], None),
    "gt": (["gt3", "gt2", "gt2/gt1", "gt1"], None),
    "gs 1": (["gs4", "gs3", "gs2", "gs1"], "centre"),
    "gt 1": (["gt3", "gt2", "gt2/gt1", "gt1"], "centre"),
    "gs 256": (["gs4", "gs3", "gs2", "gs1"], "centres"),
    "gt 256": (["gt3", "gt2", "gt2/gt1", "gt1"], "centres"),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvq", help="the program")
    parser.add_argument("model", type=pathlib.Path, help="its directory")
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("measurements", type=pathlib.Path, help="JSON, written after each family")
    parser.add_argument("--windows", type=int, help="only the first N windows (default: all)")
    parser.add_argument("--context", type=int, default=2048, help="tokens of a window (2048)")
    parser.add_argument("--sink", type=int, default=1, help="first pages that stay FP16 (1)")
    parser.add_argument("--threads", type=int, default=2, help="(2)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument("--centres", metavar="FILE", help="256 centres a head: the formats around these, too")
    parser.add_argument("--centre", metavar="FILE", help="one centre a head")
    parser.add_argument("--codebook-2", metavar="FILE", help="of CommVQ with 2 bits")
    parser.add_argument("--codebook-1", metavar="FILE", help="of CommVQ with 1 bit")
    parser.add_argument("--only", nargs="+", metavar="FAMILY", choices=FAMILIES, help="of " + ", ".join(FAMILIES))
    return parser.parse_args()


def policy_text(name, family, sink):
    """The policy of a format; around centres that were trained where the family says so."""
    ending = "+centres" if FAMILIES[family][1] in ("centre", "centres") else ""
    keys, _, values = name.partition("/")
    return f"{{version: 1, keys: {keys}{ending}, values: {values or keys}{ending}, sink: {sink}}}"


def bench_spec(name, family, sink):
    """What `kvq bench` calls a layer of the format: trained on random numbers where it must be."""
    kind, _, number = family.partition(" ")
    if not number:
        return policy_text(name, family, sink)
    return f"commvq-{number}" if kind == "commvq" else f"{name}-{number}"


class Program:
    def __init__(self, arguments):
        self.arguments = arguments
        config = json.loads((arguments.model / "config.json").read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        self.layer = ["--heads", heads, "--kv-heads", config.get("num_key_value_heads", heads),
                      "--head-dim", config.get("head_dim") or config["hidden_size"] // heads]

    def run(self, *command):
        command = [self.arguments.kvq, *map(str, command), "--threads", str(self.arguments.threads), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr.strip()}")
        return json.loads(done.stdout)

    def bits(self, spec):
        return self.run("bench", "attend", "--length", LENGTH, *self.layer, "--kv", spec)["kv_bits"]

    def measure(self, names, family):
        """All formats of a family in one run: the FP16 cache that they are compared with is run once."""
        arguments = self.arguments
        trained = FAMILIES[family][1]
        file = f"@{getattr(arguments, trained)}" if trained else ""
        formats = [part for name in names for part in ("--kv", policy_text(name, family, arguments.sink) + file)]
        found = self.run("eval", "perplexity", "--model", arguments.model, "--text", arguments.text, *formats,
                         "--against", "fp16", "--context", arguments.context, "--device", arguments.device,
                         "--windows", arguments.windows or 0)
        return [{"family": family, "format": name, "bits": self.bits(bench_spec(name, family, arguments.sink)),
                 **{key: loss[key] for key in ("kl_mean", "kl_p999", "top1_agreement", "rise_percent", "perplexity")}}
                for name, loss in zip(names, found.get("formats", [found]))]


def start(arguments):
    """What is in the file, if it was measured in the same way; else nothing but how it will be."""
    way = {"model": arguments.model.resolve().name, "text": arguments.text.name, "context": arguments.context,
           "windows": arguments.windows, "sink": arguments.sink, "length": LENGTH}
    if not arguments.measurements.exists():
        return {**way, "rows": []}
    found = json.loads(arguments.measurements.read_text(encoding="utf-8"))
    if {key: found.get(key) for key in way} != way:
        sys.exit(f"{arguments.measurements} was not measured with {way}")
    return found


def main():
    arguments = parse_arguments()
    document = start(arguments)
    known = {(row["family"], row["format"]) for row in document["rows"]}
    program = Program(arguments)
    for family, (names, trained) in FAMILIES.items():
        if (arguments.only and family not in arguments.only) or (trained and not getattr(arguments, trained)):
            continue
        left = [name for name in names if (family, name) not in known]
        if not left:
            continue
        rows = program.measure(left, family)
        document["rows"] += rows
        arguments.measurements.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        for row in rows:
            print(f"{family:14} {row['format']:14} {row['bits']:6.3f} bits   KL {row['kl_mean']:.5f}   "
                  f"{row['rise_percent']:+.2f} %", flush=True)


if __name__ == "__main__":
    main()
