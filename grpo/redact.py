"""Keeps secrets out of every file and every message: refused where they are typed, hidden where they turn up.

A value is known by what its key is called, and wherever it repeats a secret of this process's environment. `tokens` in
the plural are counted, not kept secret, so `max_prompt_tokens` stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from grpo.faults import Fault

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"(^|_)(api_?key|access_?key(_id)?|private_?key|secret(_?key)?|password|passwd|(auth_?|access_?|session_?)?token|credentials?)$",
    re.IGNORECASE,
)
_MODEL_WORD = re.compile(r"^(?!(auth|access|session|api|hf|hub|github|refresh)_?token$)\w+_token$", re.IGNORECASE)
"""`pad_token` and its like name a token of the vocabulary: not refused, though hidden in what is sent away."""
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_ASSIGNED = re.compile(
    r"""((?:api_?key|access_?key(?:_id)?|private_?key|secret|password|passwd|token|credentials?)["']?\s*[:=]\s*)"""
    r"""(?:"[^"\n]{8,}"|'[^'\n]{8,}'|(?=[^\s]*\d)[\w/+.=-]{16,})""",
    re.IGNORECASE,
)
_SHAPES = re.compile(r"\b(hf_\w{20,}|(AKIA|ASIA)[0-9A-Z]{16}|gh[a-z]_\w{20,}|sk-[\w-]{20,}|wandb_v1_\w{20,})")
_SHORTEST_SECRET = 8
"""Characters; a shorter environment value would hide innocent text that happens to contain it."""


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `config` (nested mappings and lists of JSON values) with its secrets replaced by `***`."""
    return {key: _clean(key, value) for key, value in config.items()}


def hide(text: str) -> str:
    """`text` with the environment's secrets and the passwords in URLs replaced by `***`."""
    for secret in _secrets().values():
        text = text.replace(secret, HIDDEN)
    return _URL_PASSWORD.sub(HIDDEN, text)


def hide_in_code(text: str) -> str:
    """As `hide`, and also what is assigned to a name that says secret, and what has the shape of a known key."""
    return hide(_SHAPES.sub(HIDDEN, _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text)))


def secret_faults(values: Iterable[tuple[str, Any]]) -> list[Fault]:
    """A fault, without the value, for each full key whose value is a secret and would be written with the config."""
    return [Fault(key=key, problem=problem) for key, value in values if (problem := _problem(key, value))]


def _problem(key: str, value: Any) -> str | None:
    if not isinstance(value, str) or value.lower() in ("", "null", "true", "false"):
        return None
    name = key.split("[")[0].rsplit(".", 1)[-1]
    told = "and a config is written to config.yaml and overrides.txt"
    if _SECRET_NAME.search(name) and not _MODEL_WORD.search(name):
        return (
            f"names a secret, {told}; leave the key out and set an environment variable, which nothing of ours writes "
            "down: export WANDB_API_KEY=…, HF_TOKEN=…, AWS_ACCESS_KEY_ID=…"
        )
    for variable, secret in _secrets().items():
        if secret in value:
            return f"repeats the secret in the environment variable {variable}, {told}; leave it out of the config"
    if _URL_PASSWORD.search(value):
        return f"has a password in its address, {told}; leave the password out and let its program ask the environment"
    return None


def _secrets() -> dict[str, str]:
    """Environment variables that hold secrets, the longest first: one may be part of another."""
    found = {k: v for k, v in os.environ.items() if _SECRET_NAME.search(k) and len(v) >= _SHORTEST_SECRET}
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _clean(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _clean(str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(key, item) for item in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if _SECRET_NAME.search(key) else hide(value)
