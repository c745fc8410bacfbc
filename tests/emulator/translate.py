#!/usr/bin/env python3
"""translate.py SOURCE TARGET: translates CUDA sources to C++ that runs with emulator.h.

Launches become calls, PTX instructions calls of functions in emulator.h, and shared memory a pointer. emulator.h
defines CUDA's other additions to C++. Kernels for one GPU generation (*_hopper.cu) are omitted: the emulated device is
older.
"""

import pathlib
import re
import sys

# PTX instructions of asm statements and the functions that replace them: outputs first, then inputs.
INSTRUCTIONS = [
    ("ex2.approx", "exp2"),
    ("lg2.approx", "log2"),
    ("%%laneid", "lane_id"),
    ("prmt.b32", "permute_bytes"),
    ("ld.shared.u32", "load_shared"),
    ("ld.shared.v2", "load_shared"),
    ("ld.shared.v4", "load_shared"),
    ("ld.global.nc", "read_bits"),
    ("mma.sync.aligned.m16n8k16", "mma_halves"),
    ("mma.sync.aligned.m16n8k32", "mma_bytes"),
    ("ldmatrix.sync.aligned.m8n8.x4.trans", "load_matrices_transposed"),
    ("ldmatrix.sync.aligned.m8n8.x4", "load_matrices"),
    ("movmatrix", "transpose_matrix"),
    ("mul.rn.f16x2", "multiply_halves"),
    ("fma.rn.f16x2", "multiply_add_halves"),
    ("neg.f16x2", "negate_halves"),
    ("cvt.rn.f16x2.f32", "pack_halves"),
    ("mbarrier.init", "init_barrier"),
    ("cp.async.mbarrier.arrive", "arrive"),
    ("mbarrier.test_wait", "test_barrier"),
    ("[%1 + 16], 16", "copy_next_16"),
    ("cp.async.cg.shared.global [%0], [%1], 16", "copy_16"),
    ("cp.async.ca.shared.global [%0], [%1], 8", "copy_8"),
    ("cp.async.commit_group", "nothing"),  # copies complete at once
    ("cp.async.wait", "nothing"),
    ("cp.async.bulk.prefetch", "nothing"),
    ("prefetch.global", "nothing"),
    ("griddepcontrol", "nothing"),  # kernels run one after the other
    ("atom.acq_rel.gpu.global.add.s32", "take"),
]
# Kernels that are launched by address, where their parameters are unknown.
PARAMETERS = {
    "append/append.cu": "AppendArguments",
    "append/append_next.cu": "AppendArguments, ReserveView, int32_t",
    "attend/attend.cu": "AttendArguments",
    "evict/move.cu": "MoveArguments",
    "evict/weigh.cu": "AttendArguments, WeighArguments",
    "pool/append.cu": "AppendArguments, PoolPages, PoolJobs",
}
SKIPPED = re.compile(r"_hopper|/warpgroup")


def end_of_string(text, at):
    """Position of the quote that ends the string at `at`."""
    at += 1
    while text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at


def closing(text, at):
    """Position of the bracket that closes the one at `at`."""
    depth = 0
    while True:
        if text[at] == '"':
            at = end_of_string(text, at)
        elif text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
            if depth == 0:
                return at
        at += 1


def split(text, separator):
    """Parts of `text` between separators outside of brackets and strings."""
    parts, begin, at = [], 0, 0
    while at < len(text):
        if text[at] == '"':
            at = end_of_string(text, at)
        elif text[at] in "([{":
            at = closing(text, at)
        elif text[at] == separator:
            parts.append(text[begin:at].strip())
            begin = at + 1
        at += 1
    return parts + [text[begin:].strip()]


def call_of(statement):
    """The call that replaces an asm statement."""
    text, *operands = split(statement, ":")
    values = []
    for operand in [one for part in operands[:2] for one in split(part, ",") if one]:
        values.append(re.fullmatch(r'"[^"]*"\s*\((.*)\)', operand, re.S).group(1))
    # Code without a function must not be compiled, like instructions of newer GPUs.
    name = "keep" if text == '""' else next((name for key, name in INSTRUCTIONS if key in text), "unknown_instruction")
    return f"emulator::{name}({', '.join(values)})"


def without_instructions(text):
    result, at = "", 0
    for found in re.finditer(r"\basm\b( volatile)?\s*\(", text):
        end = closing(text, found.end() - 1)
        result += text[at : found.start()] + call_of(text[found.end() : end])
        at = end + 1
    return result + text[at:]


def without_launches(text):
    launch = re.compile(r"([\w:]+(?:<[\w:, /]*>)?)\s*<<<(.*?)>>>\s*(?=\()", re.S)
    while found := launch.search(text):
        end = closing(text, found.end())
        call = found.group(1) + text[found.end() : end + 1]
        text = text[: found.start()] + f"emulator::launch({found.group(2)}, [=] {{ {call}; }})" + text[end + 1 :]
    return text


def translated(path):
    text = path.read_text()
    if path.suffix not in (".cu", ".cuh"):
        return text
    text = without_launches(without_instructions(text))
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w:]+) (\w+)\[\];",
        r"auto* \2 = reinterpret_cast<\1*>(emulator::dynamic_memory);",
        text,
    )
    if parameters := PARAMETERS.get("/".join(path.parts[-2:])):
        text = text.replace("cudaLaunchKernel(", f"emulator::launch_pointer<{parameters}>(")
    return '#include "emulator.h"\n' + text


def main():
    source, target = map(pathlib.Path, sys.argv[1:3])
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source)
        is_code = path.suffix in (".cu", ".cuh", ".cpp", ".h")
        if not is_code or (path.suffix in (".cu", ".cuh") and SKIPPED.search(str(parts))):
            continue
        to = target / (f"{parts}.cpp" if path.suffix == ".cu" else parts)
        text = translated(path)
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists() or to.read_text() != text:
            to.write_text(text)


if __name__ == "__main__":
    main()
