"""Pays for keeping clear of forbidden words and actions.

Phrases are plain text, not patterns: a pattern can be slow on hostile text, and a wrong one passes in silence.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from grpo.interfaces import Reward
from grpo.types import Transcript


@dataclass(frozen=True, kw_only=True)
class Safety(Reward):
    """1.0 for a clean transcript, 0.0 as soon as one turn holds a forbidden phrase or takes a forbidden action.

    Letter case, width variants, the amount of white space and invisible characters make no difference. A letter that
    only looks like another, from a different alphabet, does.
    """

    forbidden: tuple[str, ...]
    """Phrases that no reply may contain."""
    forbidden_actions: tuple[str, ...]
    """Actions in the env's canonical spelling."""

    def __post_init__(self) -> None:
        if not self.forbidden and not self.forbidden_actions:
            raise ValueError("forbidden and forbidden_actions are both empty, so nothing is judged; name at least one")
        for text in (*self.forbidden, *self.forbidden_actions):
            if not _plain(text):
                raise ValueError(f"forbidden: the phrase {text!r} is blank and would match every reply; remove it")

    def __call__(self, transcript: Transcript) -> float | None:
        if not transcript.turns:
            return None
        phrases = [_plain(phrase) for phrase in self.forbidden]
        actions = {_plain(action) for action in self.forbidden_actions}
        for turn in transcript.turns:
            reply, action = _plain(turn.reply), turn.outcome.action
            if any(phrase in reply for phrase in phrases) or (action is not None and _plain(action) in actions):
                return 0.0
        return 1.0


def _plain(text: str) -> str:
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    if plain.isprintable():  # which is quick to tell, and false for what is taken out
        return plain
    return " ".join("".join(c for c in plain if unicodedata.category(c) not in ("Cc", "Cf")).split())
