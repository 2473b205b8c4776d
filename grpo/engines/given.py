"""What every engine is given for a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import RunConfig
from grpo.console import Console
from grpo.interfaces import Env
from grpo.reward import Mixture
from grpo.tracking import RunLog


@dataclass(frozen=True, kw_only=True)
class Given:
    run: RunConfig
    env: Env
    mixture: Mixture
    folder: Path
    made_from: Mapping[str, Any]
    """The run's run.json, which goes into the record beside every saved adapter."""
    log: RunLog
    console: Console
