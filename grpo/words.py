"""`key=value` as Hydra's grammar and the shell read it back, whatever the value holds."""

from __future__ import annotations

import re
import shlex

_PLAIN = re.compile(r"(/|\./|s3://)[\w./:-]*", re.ASCII)


def quoted(text: str) -> str:
    """`text` as one value of Hydra's grammar."""
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text) + "'"


def word(key: str, path: object) -> str:
    """The word that sets `key` to a folder or an address."""
    return f"{key}={path if _PLAIN.fullmatch(str(path)) else quoted(str(path))}"


def pasted(key: str, path: object) -> str:
    """The same for a message: what a person can paste into a shell."""
    return shlex.quote(word(key, path))
