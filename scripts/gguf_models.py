"""A model in Hugging Face's layout as llama.cpp reads it, written by the package gguf."""
import json

import gguf
import numpy

SAFETENSORS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Unsupported(Exception):
    """Says which models are."""


def read_safetensors(directory):
    """Names and FP32 arrays."""
    index = directory / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    for name in sorted(names):
        data = numpy.memmap(directory / name, mode="r", dtype=numpy.uint8)
        header = 8 + int(data[:8].view("<u8")[0])
        for key, entry in json.loads(bytes(data[8:header])).items():
            if key == "__metadata__":
                continue
            begin, end = (header + offset for offset in entry["data_offsets"])
            values = data[begin:end].view(SAFETENSORS[entry["dtype"]])
            if entry["dtype"] == "BF16":
                values = (values.astype(numpy.uint32) << 16).view(numpy.float32)
            yield key, values.astype(numpy.float32).reshape(entry["shape"])


def in_pairs(rows, heads):
    """Rotary embeddings pair channels i and i + head_dim / 2 in Hugging Face's layout, neighbours in llama.cpp's."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(directory, path):
    """The model in FP32, without a tokenizer: the numbers of tokens go in."""
    config = json.loads((directory / "config.json").read_text())
    if config.get("model_type") != "llama" or config.get("rope_scaling"):
        raise Unsupported(f"--model {directory}: is {config.get('model_type')}, rope_scaling {config.get('rope_scaling')}; "
                          "this converts Llamas without rope_scaling")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in read_safetensors(directory):
        turned = {"q_proj.weight": heads, "k_proj.weight": kv_heads}.get(name.rpartition("self_attn.")[2])
        writer.add_tensor(names.get_name(name, (".weight",)), in_pairs(tensor, turned) if turned else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
