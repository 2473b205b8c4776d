"""What SkyRL needs of its surroundings, in this process and in Ray's workers; to be called before it is imported.

flash-attn comes as source and takes a CUDA compiler and an hour. SkyRL imports two functions of it at module level
and calls them only for packed batches, which vision models cannot use: where it is missing, a stub has the names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from grpo.paths import ROOT

STUB = Path(__file__).with_name("flash_attn_stub")

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # A job's variables and SkyRL's may have names in common, PYTHONPATH for one; Ray would refuse to start.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
}
"""Nothing is reported to anyone, and nothing warns of what is as it should be."""


def prepare() -> None:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    paths = [str(ROOT)]  # workers import our env and rewards
    if importlib.util.find_spec("flash_attn") is None:
        sys.path.append(str(STUB))
        paths.append(str(STUB))
    if importlib.util.find_spec("flashinfer") is None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*before, *paths])))
    os.environ["SKYRL_PYTHONPATH_EXPORT"] = "1"
