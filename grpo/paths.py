"""Where a model named in the config is."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def model_path(name_or_path: str) -> str:
    """A folder relative to the project root or to `~` if there is one, else the name as it is (a hub id, a path)."""
    local = ROOT / os.path.expanduser(name_or_path)
    return str(local) if local.is_dir() else name_or_path
