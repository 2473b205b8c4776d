"""Keeps secrets out of what leaves the run folder: the config sent to a tracking service and the one shown in a report.

A value is hidden by what its key is called, and wherever it repeats a secret of this process's environment. `tokens`
in the plural are counted, not kept secret, so `max_prompt_tokens` stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"(^|_)(api_?key|access_?key(_id)?|private_?key|secret(_?key)?|password|passwd|(auth_?|access_?|session_?)?token|credentials?)$",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_SHORTEST_SECRET = 8
"""Characters; a shorter environment value would hide innocent text that happens to contain it."""


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `config` (nested mappings and lists of JSON values) with its secrets replaced by `***`."""
    secrets = [v for k, v in os.environ.items() if _SECRET_NAME.search(k) and len(v) >= _SHORTEST_SECRET]
    return {key: _clean(key, value, secrets) for key, value in config.items()}


def _clean(key: str, value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _clean(str(name), item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(key, item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    if _SECRET_NAME.search(key):
        return HIDDEN
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    return _URL_PASSWORD.sub(HIDDEN, value)
