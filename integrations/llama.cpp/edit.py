#!/usr/bin/env python3
"""Edits llama.cpp's sources so that they call kvq: edit.py FOLDER_OF_LLAMA.CPP. The original of an edited file stays beside it,
and edits start from it, so that running this again gives the same files. A place that is not found, or found twice, is an error."""
import pathlib
import sys

SOURCE = pathlib.Path(__file__).resolve().parent / "src"
INCLUDE = '#include "kvq_graph.h"\n'
BRANCH = """    ggml_tensor * cur = llama_kvq::attention(ctx0, gf, inp, q_cur, k_cur, v_cur, kq_b, sinks, v_mla, kq_scale, il);
    if (!cur) {
"""
FAILED = """    if (!llama_kvq::computed(mctx, sched.get())) {
        ret = GGML_STATUS_FAILED;
        return nullptr;
    }
"""
MEMORY = """                    if ((res = llama_kvq::create_memory(*this, params, cparams, filter, reuse))) {
                        break;
                    }
"""
OPTION = """    add_opt(common_arg(
        {"--kvq"}, "POLICY",
        "store keys and values with kvq: a format such as gs4 or int8/gs4, or another policy; none: llama.cpp's own cache\\n"
        "(default: the environment's KVQ_POLICY)",
        [](common_params &, const std::string & value) {
            llama_kvq_set_policy(value.c_str());
        }
    ));
"""
CUDA = "ggml/src/ggml-cuda/ggml-cuda.cu"
CUDA_SET = """    if (strcmp(name, llama_kvq::kSetDeviceNodes) == 0) {
        return (void *)llama_kvq::set_device_nodes;
    }
"""
CUDA_COMPUTE = """        case GGML_OP_CUSTOM:
            return llama_kvq::compute_device_node(dst, ctx.device, ctx.stream());
"""
CUDA_SUPPORTED = """        case GGML_OP_CUSTOM:
            return llama_kvq::is_device_node(op);
"""
# kvq's pages and workspaces are not where they were when a graph was captured.
CUDA_NO_GRAPH = """        if (node->op == GGML_OP_CUSTOM) {
            use_cuda_graph = false;
        }
"""


def input_of(name):
    return f"""    if (auto inp = llama_kvq::{name}(hparams, cparams, mctx)) {{
        return static_cast<decltype(inp.get())>(res->add_input(std::move(inp)));
    }}
"""


def attention(signature, context):
    """The places of one build_attn: the branch of llama.cpp's own cache becomes conditional."""
    return [
        ("src/llama-graph.cpp", signature, context, "before", BRANCH),
        ("src/llama-graph.cpp", signature, "ggml_tensor * cur = build_attn_mha(", "instead", "cur = build_attn_mha("),
        ("src/llama-graph.cpp", signature, 'cb(cur, "kqv_out", il);', "before", "    }\n"),
    ]


# File, line that the function begins with (None: anywhere), anchor within it, where the text goes: before or after the
# anchor's line, above the line before it, instead of the anchor, or at the file's end (no anchor).
PLACES = [
    ("src/CMakeLists.txt", None, None, "end", 'include("${KVQ_LLAMA_DIR}/kvq.cmake")\n'),
    ("src/llama-model.cpp", None, '#include "llama-model.h"', "after", INCLUDE),
    ("src/llama-model.cpp", "llama_model::create_memory(", "GGML_ASSERT(hparams.is_swa_any());", "above", MEMORY),
    ("src/llama-model.cpp", "llama_model::create_memory(", "return res;", "instead",
     "return llama_kvq::checked_memory(res);"),
    ("src/llama-graph.cpp", None, '#include "llama-graph.h"', "after", INCLUDE),
    ("src/llama-graph.cpp", "llm_graph_context::build_attn_inp_kv() const", "const auto * mctx_cur =", "before",
     input_of("attention_input")),
    ("src/llama-graph.cpp", "llm_graph_context::build_attn_inp_kv_iswa() const", "const auto * mctx_cur =", "before",
     input_of("attention_input_iswa")),
    *attention("llm_graph_input_attn_kv * inp,", "const auto * mctx_cur = inp->mctx;"),
    *attention("llm_graph_input_attn_kv_iswa * inp,", "const auto * mctx_iswa = inp->mctx;"),
    ("src/llama-context.cpp", None, '#include "llama-context.h"', "after", INCLUDE),
    ("src/llama-context.cpp", "llama_context::process_ubatch(const", "ret = GGML_STATUS_SUCCESS;", "before", FAILED),
    ("common/arg.cpp", None, '#include "arg.h"', "after", '#include "llama_kvq.h"\n'),
    ("common/arg.cpp", None, '{"-ctk", "--cache-type-k"}', "above", OPTION),
    # The CMake files of CUDA, HIP and MUSA compile this file: none of them knows where the header is.
    (CUDA, None, '#include "ggml-cuda/common.cuh"', "after", f'#include "{SOURCE}/kvq_ggml_cuda.h"\n'),
    (CUDA, "static bool ggml_cuda_compute_forward(", "switch (dst->op) {", "after", CUDA_COMPUTE),
    (CUDA, "static bool ggml_cuda_graph_check_compability(", "if (!use_cuda_graph) {", "before", CUDA_NO_GRAPH),
    (CUDA, "static bool ggml_backend_cuda_device_supports_op(", "switch (op->op) {", "after", CUDA_SUPPORTED),
    (CUDA, "static void * ggml_backend_cuda_reg_get_proc_address(", "return nullptr;", "before", CUDA_SET),
]


class Absent(Exception):
    """A place that is not there, or twice."""


def find(lines, anchor, begin, end, name):
    found = [i for i in range(begin, end) if anchor in lines[i]]
    if len(found) != 1:
        raise Absent(f"{name}: the anchor {anchor!r} is there {len(found)} times, not once; "
                     "these are not the sources that the edits are for")
    return found[0]


def edit(lines, name, function, anchor, where, text):
    if where == "end":
        return lines + [text]
    begin, end = 0, len(lines)
    if function:
        begin = find(lines, function, begin, end, name)
        end = next((i for i in range(begin, end) if lines[i].rstrip() == "}"), end)
    at = find(lines, anchor, begin, end, f"{name}, in {function}" if function else name)
    if where == "instead":
        lines[at] = lines[at].replace(anchor, text)
        return lines
    at += {"before": 0, "after": 1, "above": -1}[where]
    return lines[:at] + [text] + lines[at:]


def edited(root, name):
    path = root / name
    original = path.with_name(path.name + ".original")
    source = original if original.exists() else path
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    for place in PLACES:
        if place[0] == name:
            # Texts of several lines count as one: anchors are never searched in them.
            lines = edit(lines, *place)
    return path, original, "".join(lines)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    try:
        results = [edited(root, name) for name in dict.fromkeys(place[0] for place in PLACES)]
    except (Absent, OSError) as error:
        sys.exit(f"edit.py: {error}")
    for path, original, text in results:
        if not original.exists():
            original.write_bytes(path.read_bytes())
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
