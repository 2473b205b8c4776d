"""Where a model named in the config is."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def model_path(name_or_path: str) -> str:
    """A folder relative to the project root if there is one, else the name as it is (a hub id or a full path)."""
    local = ROOT / name_or_path
    return str(local) if local.is_dir() else name_or_path
