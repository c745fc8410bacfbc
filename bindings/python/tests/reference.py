"""Attention by its definition, in float64."""

import numpy


def rotated(x, positions, base=10000.0):
    """RoPE of `[tokens, heads, dim]`, channels (j, j + dim / 2) in pairs."""
    half = x.shape[2] // 2
    angles = numpy.multiply.outer(numpy.asarray(positions, "f8"), base ** (-numpy.arange(half) / half))[:, None, :]
    a, b = x[..., :half].astype("f8"), x[..., half:].astype("f8")
    cosine, sine = numpy.cos(angles), numpy.sin(angles)
    return numpy.concatenate([a * cosine - b * sine, a * sine + b * cosine], axis=2)


def attention(sequence, layer, q, positions, scale=None, window=0, softcap=0.0, sinks=None):
    """Output `[queries, q_heads, dim]` and lse of queries after RoPE, over the pages that the sequence holds."""
    queries, q_heads, dim = q.shape
    kv_heads = sequence.cache.describe().kv_heads
    output = numpy.zeros((queries, q_heads, dim))
    lse = numpy.full((queries, q_heads), -numpy.inf)
    for head in range(q_heads):
        k, v, held = (numpy.asarray(one, "f8") for one in sequence.decode(layer, head // (q_heads // kv_heads)))
        for i in range(queries):
            seen = (held <= positions[i]) & (held > positions[i] - (window or 1 << 40))
            logits = k[seen] @ q[i, head].astype("f8") * (scale or dim**-0.5)
            if softcap:
                logits = softcap * numpy.tanh(logits / softcap)
            sink = [] if sinks is None else [float(sinks[head])]
            all_logits = numpy.concatenate([logits, sink])
            if not len(all_logits):
                continue
            lse[i, head] = numpy.logaddexp.reduce(all_logits)
            output[i, head] = numpy.exp(logits - lse[i, head]) @ v[seen]
    return output, lse
