#!/usr/bin/env -S python3 -B
"""Runs a sample of docs/embedding.md or engines.md and compares what it prints: results of two ways to the same thing, sizes that
must be smaller, and the output that the page shows.
   run.py NAME [EMULATOR] PROGRAM"""

import re
import subprocess
import sys
import tempfile

import page


class Output:
    def __init__(self, text):
        self.text = text

    def all(self, pattern):
        """Groups of every line that matches; there must be at least one."""
        found = [match.groups() for match in map(re.compile(pattern).fullmatch, self.text.splitlines()) if match]
        if not found:
            raise AssertionError(f"no line is like: {pattern}")
        return found

    def one(self, pattern):
        found = self.all(pattern)
        expect(len(found) == 1, f"{len(found)} lines are like: {pattern}")
        return found[0]


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def expect_same(values, what):
    expect(len(set(values)) == 1, f"{what} differ: {', '.join(values)}")


def embed(output):
    bits, used, plain = output.one(r"1000 tokens at ([\d.]+) bits per scalar: (\d+) bytes instead of (\d+), .*")
    expect(5 < float(bits) < 6 and int(used) < int(plain) / 2, "INT4 takes about five bits")


def prompt_and_decode(output):
    (difference,) = output.one(r"fp16: difference from plain attention ([\d.]+)")
    expect(float(difference) < 1e-3, "FP16 leaves rounding")
    runs = output.all(r"(\S+): ([\d.]+) bits per scalar, prompt in chunks of \d+, output (\w+)")
    formats = dict.fromkeys(run[0] for run in runs)
    expect(len(formats) == 3 and len(runs) == 6, "three formats, two sizes of chunks")
    for name in formats:
        expect_same([run[2] for run in runs if run[0] == name], f"outputs of {name} for chunks of different sizes")
    expect(len({run[2] for run in runs}) == 3, "formats have outputs of their own")
    bits = [float(run[1]) for run in runs[::2]]
    expect(bits == sorted(bits, reverse=True) and bits[0] < 8, "each format is smaller than the one before")


def ragged_batch(output):
    sequences = output.all(r"sequence of (\d+) tokens and (\d+) more: output (\w+) in the batch, (\w+) alone")
    expect(len(sequences) == 3, "three sequences")
    for _, _, together, alone in sequences:
        expect_same([together, alone], "outputs in the batch and alone")


def layer_shapes(output):
    layers = [tuple(map(int, one)) for one in output.all(r"layer (\d+): (\d+) query heads on (\d+) KV heads of (\d+)")]
    expect(layers == [(i, 8, 2, 64) for i in range(4)] + [(5, 8, 1, 128)], "the sixth layer is global")
    (bits,) = output.one(r"12 layers of 1000 tokens: ([\d.]+) bits a scalar")
    expect(4 < float(bits) < 6, "GS4 takes about five bits with its FP16 pages")


def shared_pages(output):
    alone, sharing = map(int, output.one(r"6 layers of 1000 tokens: (\d+) bytes, (\d+) if the last 2 read the pages of layer 3"))
    expect(0.6 < sharing / alone < 0.7, "two of six layers take nothing")


def latents(output):
    sizes = [int(size) for size, in output.all(r".*: (\d+) bytes a token")]
    expect(len(sizes) == 3, "FP16 and two formats")
    expect(1152 < sizes[0] < 1200 and 329 < sizes[1] < 400 and 201 < sizes[2] < 300, "values are stored once")


def hybrid(output):
    total, states = map(int, output.one(r"1000 tokens: (\d+) bytes, of which (\d+) are states"))
    expect(4 * 512 <= states < total, "four states of 128 numbers")
    expect_same([*output.one(r"goes on in memory: output (\w+)"), *output.one(r"goes on from the file: output (\w+)")],
                "outputs before saving and after loading")
    kept, forked = output.one(r"(\d+) of 600 shared tokens kept: output (\w+)")
    expect(kept == "512", "the newest state before the prompts differ")
    expect_same([forked, *output.one(r"without a fork: output (\w+)")], "outputs with and without a fork")


def windows(output):
    kept, everything, difference = output.one(r"8192 tokens: (\d+) bytes, (\d+) if local layers keep all; largest difference (\S+)")
    expect(int(kept) < 0.3 * int(everything), "five of six layers keep a window")
    expect(float(difference) < 1e-3, "the same attention")
    local, whole = map(int, output.one(r"reserved: room for (\d+) tokens in local layers, (\d+) in the global one"))
    expect(local > 1000000 and 4096 <= whole < 5000, "local layers reuse their pages")


def mrope(output):
    place = output.one(r"186 tokens with an image of 8 x 12, the last at position (\d+)")
    expect(place == ("101",), "text goes on after the largest position of the image")
    (difference,) = output.one(r"largest difference from rotating by hand (\S+)")
    expect(float(difference) < 1e-2, "the cache rotates as the engine does")


def share_prefix(output):
    answers, together, pages = map(int, output.one(r"(\d+) answers: (\d+) bytes together, (\d+) pages shared"))
    alone = int(output.one(r"one answer by itself: (\d+) bytes")[0])
    expect(alone < together < answers * alone / 2, "the prompt is there once")
    expect(pages == 1000 // 32 * 2 * 2, "all full pages of the prompt, of two layers with two heads")
    forked = output.one(r"the last answer: (\d+) tokens, output (\w+)")
    plain = output.one(r"without a fork: (\d+) tokens, output (\w+)")
    expect(forked == plain == ("1050", plain[1]), "a fork is like a sequence of its own")


def speculate(output):
    drafted = output.one(r"with drafts: (\d+) tokens, output (\w+)")
    plain = output.one(r"without: (\d+) tokens, output (\w+)")
    expect(drafted == plain == ("134", plain[1]), "a sequence whose drafts were taken back never had them")
    output.one(r"KVQ_E_STATE: .*\b32 and 64\b.*")
    output.one(r"still 134 tokens")


def engine(output):
    block, float16 = map(int, output.one(r"a block of 32 tokens: (\d+) bytes a layer, FP16 (\d+)"))
    expect(3.5 * block < float16, "about four bits instead of sixteen")
    requests, tokens, blocks = map(int, output.one(r"(\d+) requests of (\d+) tokens in (\d+) blocks: \d+ batches, [1-9]\d* preemptions"))
    expect(tokens > 32 * blocks, "blocks serve several requests")
    expect(output.one(r"(\d+) of \d+ outputs as alone, to the bit") == (str(requests),), "neighbours change nothing")


def shared_memory(output):
    size, float16 = map(int, output.one(r"a prompt of 640 tokens: (\d+) bytes in shared memory, FP16 (\d+)"))
    expect(3.5 * size < float16, "about four bits instead of sixteen")
    first, second = (output.one(rf"answer {i} of a reader: output (\w+)") for i in (1, 2))
    expect(output.one(r"answer 1 of its process: output (\w+)") == first != second, "readers see the prompt")
    output.one(r"the prompt's blocks are as they were")


def masked_tree(output):
    draft_tree(output)


def draft_tree(output):
    (difference,) = output.one(r"7 nodes, path of 3: largest difference from running it alone (\S+)")
    expect(float(difference) < 1e-4, "the path is as if it had been alone")
    drafted = output.one(r"with the tree: (\d+) tokens, content (\w+)")
    plain = output.one(r"without: (\d+) tokens, content (\w+)")
    expect(drafted == plain == ("303", plain[1]), "a sequence holds the accepted path alone")


def evict_and_save(output):
    kept, freed, left = output.one(r"kept per head:((?: \d+)+); (\d+) bytes freed, (\d+) left")
    expect(sum(map(int, kept.split())) == 4 * 128, "the budget, on average")
    expect(int(freed) > 3 * int(left), "of 1000 tokens 128 are left")
    output.one(r"the next token has position 1000")
    in_memory = output.one(r"goes on in memory: output (\w+)")
    from_file = output.one(r"goes on from the file: output (\w+)")
    expect_same([*in_memory, *from_file], "outputs before saving and after loading")
    output.one(r"KVQ_E_MISMATCH: .+")
    output.one(r"KVQ_E_FORMAT: .+")


def limits(output):
    sequences, limit = map(int, output.one(r"(\d+) sequences of \d+ tokens fit into (\d+) bytes"))
    expect(sequences > 1, "some sequences fit")
    expect_same(output.one(r"predicted (\d+) bytes, used (\d+)"), "bytes predicted and used")
    output.one(r"another sequence: KVQ_E_LIMIT")
    output.one(r"KVQ_E_LIMIT: max_bytes .+")
    expect_same(output.one(r"content before (\w+), after (\w+)"), "contents around a refused call")
    output.one(r"after one has ended: KVQ_OK")
    peak, end = map(int, output.one(r"the allocator saw at most (\d+) bytes, and (\d+) at the end"))
    expect(0 < peak <= limit and end == 0, "the limit holds and everything is freed")


def make_room(output):
    (before,) = map(int, output.one(r"(\d+) conversations fit into \d+ bytes: max_bytes .+")[:1])
    needed, after, held = map(int, output.one(r"recoding one takes (\d+) free bytes and leaves (\d+) of (\d+)"))
    expect(needed < held and after < 0.75 * held, "pages of two bits are smaller than those of four")
    expect_same(output.one(r"(\d+) of (\d+) recoded"), "conversations recoded and waiting")
    expect(int(output.one(r"now (\d+) fit")[0]) > before, "recoding makes room")
    alone, both = map(int, output.one(r"one takes (\d+) bytes, both (\d+)"))
    expect(alone < both < 1.2 * alone, "what is shared is there once")
    saved, loaded, shared = output.one(r"content of the fork before (\w+), loaded (\w+); (\d+) pages shared")
    expect(saved == loaded and int(shared) > 60, "sharing survives")


def threads(output):
    outputs = output.all(r"(?:one thread|threads of calls|threads in a call), text (\d): output (\w+)")
    expect(len(outputs) == 9, "three texts in three ways")
    for text in "012":
        expect_same([value for of, value in outputs if of == text], f"outputs of text {text} in three ways")
    expect(len({value for _, value in outputs}) == 3, "texts have outputs of their own")
    output.one(r"loops were shared")


def linear(output):
    output.one(r"appended 5 tokens")
    names = []
    for name, together, alone in output.all(r"(\w+): output (\w+) together, (\w+) alone"):
        expect_same([together, alone], f"outputs of {name} together and alone")
        names.append(name)
        decoded, before = map(float, output.one(name + r": ([\d.]+) from the product with its weights, ([\d.]+) with .*"))
        expect(decoded < 0.01, "inputs are rounded to eight bits")
        expect(decoded < before < 0.15, "four bits a weight")
    expect(names == ["q_proj", "k_proj", "v_proj"], "three matrices")
    (alone,) = output.one(r"v_proj: output \w+ together, (\w+) alone")
    expect_same([alone, *output.one(r"v_proj from the file: output (\w+)")], "outputs before saving and after loading")
    expect_same(output.one(r"nuq-4: [\d.]+ bits a weight, (\d+) bytes, predicted (\d+)"), "bytes predicted and used")


def graph(output):
    on_gpu, on_cpu = output.all(r".+: (\d+) tokens, content (\w+)")
    expect(on_gpu == on_cpu == ("400", on_cpu[1]), "every launch appends one token, and pages are those of a CPU")
    (difference,) = output.one(r"difference between GPU and CPU: ([\d.]+)")
    expect(float(difference) < 0.02, "GPU and CPU compute the same but for rounding")


def run(name, *program):
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(program, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=600)
    print(result.stdout, end="")
    if result.returncode == 77 and result.stdout.startswith("skipped: "):
        return 77
    expect(result.returncode == 0, f"exit status {result.returncode}")
    globals()[name](Output(result.stdout))
    if len(program) > 1:  # another system, on which objects have other sizes than the page shows
        return 0
    for language, lines, sample in page.blocks():
        if language == "text" and sample == f"{name}.c":
            for line in lines:
                expect(line in result.stdout.splitlines(), f"the page shows another line: {line}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(run(*sys.argv[1:]))
    except AssertionError as why:
        sys.exit(f"FAILED: {why}")
