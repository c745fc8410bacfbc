"""kvq as the attention and the key/value cache of Hugging Face transformers.

    import libkvq.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="kvq")
    cache = libkvq.transformers.KvqCache(policy="int4+hadamard")
    model.generate(**inputs, past_key_values=cache)

Importing this package registers the attention implementation "kvq" and its masks.
"""

from .attention import register
from .cache import KvqCache

register()

__all__ = ["KvqCache"]
