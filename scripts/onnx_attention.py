"""Attention of one decoding step by ONNX Runtime's GroupQueryAttention, with its caches of FP32, FP16, INT8 and INT4."""
import math
import time

# By name of a cache's type: ONNX's element type of the cache and of queries, and bits of a scalar. Scales are constants of
# channels, which take no memory worth counting.
TYPES = {"fp32": ("FLOAT", "FLOAT", 32), "fp16": ("FLOAT16", "FLOAT16", 16), "int8": ("INT8", "FLOAT", 8),
         "int4": ("UINT8", "FLOAT", 4)}
INPUTS = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
UNUSED = ["", "", "", "", ""]  # rotation, positions, bias, sinks: before the scales


def bits(kind):
    return TYPES[kind][2]


def describe():
    import onnxruntime
    return f"ONNX Runtime {onnxruntime.__version__}"


class Attention:
    """A step over a cache that is full but for the new token: the operator stores that and attends."""

    def __init__(self, kind, shape):
        """Raises ImportError without the packages onnx and onnxruntime."""
        import numpy
        import onnxruntime
        from onnx import TensorProto
        self.bits = bits(kind)
        stored, given, width = TYPES[kind]
        quantized = width < 16
        channels = shape.head_dim // 2 if kind == "int4" else shape.head_dim
        cache = (1, shape.kv_heads, shape.length, channels)
        shapes = {"query": (1, 1, shape.heads * shape.head_dim), "key": (1, 1, shape.kv_heads * shape.head_dim),
                  "past_key": cache, "seqlens_k": (1,), "total_sequence_length": (1,)}
        shapes["value"], shapes["past_value"] = shapes["key"], cache
        shapes["output"] = shapes["query"]
        types = {name: getattr(TensorProto, given) for name in ("query", "key", "value", "output")}
        types.update({name: getattr(TensorProto, stored) for name in ("past_key", "past_value")})
        types.update({"seqlens_k": TensorProto.INT32, "total_sequence_length": TensorProto.INT32})
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = shape.threads, 1
        self.session = onnxruntime.InferenceSession(self.model(shape, shapes, types, quantized, width).SerializeToString(),
                                                    options, providers=["CPUExecutionProvider"])
        random = numpy.random.default_rng(1)
        self.values = {}
        for name in INPUTS:
            size, dtype = shapes[name], numpy.dtype(_numpy_type(types[name]))
            if name in ("seqlens_k", "total_sequence_length"):
                array = numpy.array([shape.length - (name == "seqlens_k")], dtype)
            elif dtype.kind == "f":
                array = random.standard_normal(size, numpy.float32).astype(dtype)
            elif kind == "int4":
                array = random.integers(0, 256, size, numpy.uint8)
            else:
                array = numpy.clip(numpy.rint(random.standard_normal(size, numpy.float32) * 127 / 4), -127, 127).astype(dtype)
            self.values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        self.binding = self.session.io_binding()
        for name in INPUTS:
            self.binding.bind_ortvalue_input(name, self.values[name])
        self.binding.bind_output("output")
        # The cache is written in place.
        for side in ("key", "value"):
            self.binding.bind_ortvalue_output("present_" + side, self.values["past_" + side])

    @staticmethod
    def model(shape, shapes, types, quantized, width):
        import numpy
        from onnx import helper, numpy_helper
        attributes = {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads, "scale": 1 / math.sqrt(shape.head_dim)}
        inputs, constants = list(INPUTS), []
        if quantized:
            attributes.update(k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width=width)
            inputs += UNUSED + ["k_scale", "v_scale"]
            scales = numpy.full(shape.kv_heads * shape.head_dim, 4 / (127 if width == 8 else 7), numpy.float32)
            constants = [numpy_helper.from_array(scales, name) for name in ("k_scale", "v_scale")]
        outputs = ["output", "present_key", "present_value"]
        node = helper.make_node("GroupQueryAttention", inputs, outputs, domain="com.microsoft", **attributes)

        def tensor(name):
            as_input = name.replace("present", "past")
            return helper.make_tensor_value_info(name, types[as_input], shapes[as_input])
        graph = helper.make_graph([node], "attention", [tensor(name) for name in INPUTS],
                                  [tensor(name) for name in outputs], constants)
        return helper.make_model(graph, ir_version=10,
                                 opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])

    def run(self):
        """Microseconds of a step."""
        start = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        return 1e6 * (time.perf_counter() - start)


def _numpy_type(number):
    from onnx import helper
    return helper.tensor_dtype_to_np_dtype(number)
