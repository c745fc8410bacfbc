#!/usr/bin/env python3
"""What ONNX Runtime's quantized caches lose on a model in Hugging Face's layout: KL divergence from its FP32 cache.

usage: onnx_losses.py MODEL TEXT [WINDOWS [CONTEXT]]

transformers runs the model; every layer's attention is ONNX Runtime's GroupQueryAttention, which stores keys behind RoPE and attends, 32
tokens at once. Its scales of channels are constants: the largest magnitudes in as much text behind the windows. Needs torch,
transformers, onnx and onnxruntime.
"""
import math
import pathlib
import sys
from types import SimpleNamespace

import numpy
import onnxruntime
import tokenizers
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from onnx_attention import INPUTS, UNUSED

CHUNK = 32
LEVELS = {8: 127, 4: 7}


class Layer:
    """The operator with a cache of `length` tokens. `scales`: of keys and of values, [KV heads * head size]; None: FP32."""

    def __init__(self, shape, width, scales):
        self.shape, self.width = shape, width
        attributes = {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads, "scale": 1 / math.sqrt(shape.head_dim)}
        inputs, constants = list(INPUTS), []
        stored, self.dtype, channels = TensorProto.FLOAT, numpy.float32, shape.head_dim
        if width < 32:
            attributes.update(k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width=width)
            inputs += UNUSED + ["k_scale", "v_scale"]
            constants = [numpy_helper.from_array(scale, name) for scale, name in zip(scales, inputs[-2:])]
            stored, self.dtype = (TensorProto.INT8, numpy.int8) if width == 8 else (TensorProto.UINT8, numpy.uint8)
            channels = channels * width // 8
        outputs = ["output", "present_key", "present_value"]
        node = helper.make_node("GroupQueryAttention", inputs, outputs, domain="com.microsoft", **attributes)
        rows, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        cache = (1, shape.kv_heads, shape.length, channels)
        sizes = {"query": (1, "n", rows), "key": (1, "n", kv), "value": (1, "n", kv), "past_key": cache, "past_value": cache,
                 "seqlens_k": (1,), "total_sequence_length": (1,), "output": (1, "n", rows), "present_key": cache,
                 "present_value": cache}

        def tensor(name):
            kind = TensorProto.FLOAT
            if "seq" in name:
                kind = TensorProto.INT32
            elif "_" in name:
                kind = stored
            return helper.make_tensor_value_info(name, kind, sizes[name])
        graph = helper.make_graph([node], "attention", [tensor(name) for name in INPUTS],
                                  [tensor(name) for name in outputs], constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.cache_size = cache
        self.clear()

    def clear(self):
        self.keys, self.values = (onnxruntime.OrtValue.ortvalue_from_numpy(numpy.zeros(self.cache_size, self.dtype))
                                  for _ in range(2))
        self.tokens = 0

    def attend(self, q, k, v):
        """`[tokens, heads, head size]` each."""
        self.tokens += len(q)
        binding = self.session.io_binding()
        for name, x in (("query", q), ("key", k), ("value", v)):
            binding.bind_cpu_input(name, numpy.ascontiguousarray(x.reshape(1, len(x), -1)))
        binding.bind_cpu_input("seqlens_k", numpy.array([self.tokens - 1], numpy.int32))
        binding.bind_cpu_input("total_sequence_length", numpy.array([self.tokens], numpy.int32))
        binding.bind_output("output")
        for side, cache in (("key", self.keys), ("value", self.values)):  # written in place
            binding.bind_ortvalue_input("past_" + side, cache)
            binding.bind_ortvalue_output("present_" + side, cache)
        self.session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy().reshape(q.shape)


class Runner:
    def __init__(self, model, length):
        self.model = model
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.shape = SimpleNamespace(heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_dim=head_dim,
                                     length=length)
        self.layers = []
        self.largest = numpy.zeros((config.num_hidden_layers, 2, self.shape.kv_heads * head_dim), numpy.float32)
        ALL_ATTENTION_FUNCTIONS["onnxruntime"] = self.attend
        model.set_attn_implementation("onnxruntime")

    def use(self, width):
        scales = self.largest / LEVELS.get(width, 1)
        self.layers = [Layer(self.shape, width, scales[i]) for i in range(len(self.largest))]

    def attend(self, module, query, key, value, attention_mask, **arguments):
        q, k, v = (x[0].transpose(0, 1).float().numpy() for x in (query, key, value))  # [tokens, heads, head size]
        if not self.layers:
            for side, x in enumerate((k, v)):
                most = abs(x).max(axis=0).reshape(-1)
                numpy.maximum(self.largest[module.layer_idx, side], most, out=self.largest[module.layer_idx, side])
            group = self.shape.heads // self.shape.kv_heads
            k, v = (torch.from_numpy(x).transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
            output = torch.nn.functional.scaled_dot_product_attention(query[0].float(), k, v, is_causal=True).transpose(0, 1)
        else:
            output = torch.from_numpy(self.layers[module.layer_idx].attend(q, k, v))
        return output[None].to(query.dtype), None

    def next_tokens(self, window):
        """Logarithms of probabilities, `[tokens, vocabulary]`."""
        for layer in self.layers:
            layer.clear()
        pieces = []
        size = CHUNK if self.layers else len(window)
        for begin in range(0, len(window), size):
            tokens = torch.tensor([window[begin:begin + size]])
            places = torch.arange(begin, begin + tokens.shape[1])[None]
            pieces.append(self.model(tokens, position_ids=places, use_cache=False).logits[0])
        return torch.cat(pieces).double().log_softmax(-1)


def main():
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    directory, text = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    n, context = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((3, 4), (4, 1024)))
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokens = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False).ids
    windows = [tokens[i:i + context] for i in range(0, len(tokens) - context + 1, context)]
    if len(windows) < 2 * n:
        sys.exit(f"{text}: has {len(windows)} windows of {context} tokens, must have {2 * n}: half of them for scales")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    runner = Runner(model, context)
    with torch.no_grad():
        for window in windows[n:2 * n]:
            runner.next_tokens(window)
        expected = {}
        for width in (32, 8, 4):
            runner.use(width)
            divergence = loss = 0.0
            for i, window in enumerate(windows[:n]):
                found = runner.next_tokens(window)
                exact = expected.setdefault(i, found)
                divergence += float((exact.exp() * (exact - found)).sum(-1).mean()) / n
                loss -= float(found[:-1].gather(1, torch.tensor(window[1:])[:, None]).mean()) / n
            print(f"{width:2d} bits: perplexity {math.exp(loss):.4f}, KL {divergence:.7f}", flush=True)


if __name__ == "__main__":
    main()
