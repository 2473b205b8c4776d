"""Where things are in this checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
TRAIN = ROOT / "train.py"
PEERS = ROOT / "scripts" / "benchmarks"
"""The scripts that run under other interpreters."""
