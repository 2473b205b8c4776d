"""Puts data, styles and scripts into one HTML file that loads nothing.

The page gets its data as JSON and inserts every text as text, since replies are whatever a model wrote; a policy in
its head forbids it to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPORT_FILE = "report.html"
ASSETS = Path(__file__).parent / "report_assets"
_SCRIPTS = ("uplot.min.js", "dom.js", "charts.js", "viewer.js", "parallel.js")


def write(folder: Path, script: str, data: Mapping[str, Any]) -> Path:
    """Write `report.html`, whose page `script` draws from `data`, in one move; returns its path."""
    # In a script element only `<` can end it or open a comment; JSON allows the escape.
    escaped = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = _read("page.html")
    parts = {
        "styles": "\n".join(map(_read, ("uplot.min.css", "page.css"))),
        "scripts": "\n".join(map(_read, (*_SCRIPTS, script))),
        # Last, or a reply that holds one of the marks would be filled in too.
        "data": escaped,
    }
    for name, part in parts.items():
        page = page.replace("{{" + name + "}}", part)
    path = folder / REPORT_FILE
    aside = path.with_suffix(".html.tmp")
    aside.write_text(page, encoding="utf-8")
    aside.replace(path)
    return path


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
