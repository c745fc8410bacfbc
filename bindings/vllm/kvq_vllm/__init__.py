"""vLLM with its KV cache in kvq's formats: blocks of vLLM's own block pool hold kvq's pages.

The environment variable ``KVQ_VLLM_POLICY`` names the format, such as ``gs4``. Without it nothing changes.
"""

from __future__ import annotations

#: The version whose interfaces the package was written for and tested with; README.md lists them.
VLLM_VERSION = "0.32.0"


def register() -> None:
    """Entry point of vLLM's general plug-ins, called in each of its processes."""
    from ._settings import Settings

    settings = Settings.of_environment()
    if settings is None:
        return
    settings.check()

    import vllm
    from vllm.logger import init_logger
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if vllm.__version__.split("+")[0] != VLLM_VERSION:
        init_logger("vllm.kvq").warning("kvq-vllm was tested with vLLM %s, this is %s", VLLM_VERSION, vllm.__version__)
    register_backend(AttentionBackendEnum.CUSTOM, "kvq_vllm._backend.KvqBackend")
    # The CPU's platform takes CPU_ATTN whatever is asked for.
    register_backend(AttentionBackendEnum.CPU_ATTN, "kvq_vllm._backend.KvqBackend")
