"""Lets SkyRL be imported where flash-attn is not installed, in this process and in Ray's workers.

SkyRL imports two functions of flash-attn at module level and calls them only for packed batches, which vision models
cannot use. flash-attn comes as source and takes a CUDA compiler and an hour; nothing here needs it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

STUB = Path(__file__).with_name("flash_attn_stub")


def install() -> None:
    """Put the stub on the import path; does nothing where flash-attn is. Call it before SkyRL is imported."""
    if importlib.util.find_spec("flash_attn") is not None:
        return
    # At the end: the real one wins wherever a worker has it.
    sys.path.append(str(STUB))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(STUB)]))
    os.environ["SKYRL_PYTHONPATH_EXPORT"] = "1"
