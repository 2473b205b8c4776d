"""Stands in for flash-attn where it is not installed: only the names that SkyRL and vLLM import, none is called."""

__version__ = "0.0.0+stub"
