"""Pays for not going round in circles, in the env or in words.

The true state is compared, not the picture or the feedback, so a move into a wall counts as a return. A state that
carries a turn counter would never repeat and make this term blind.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass

from grpo.interfaces import Reward
from grpo.types import Transcript

LOOP = 3
"""The same sentence this often in one reply is a loop; twice can be emphasis."""


_SENTENCE_END = re.compile("[.!?;\n\u3002\uff01\uff1f\uff1b]")  # the last four are Chinese


@dataclass(frozen=True, kw_only=True)
class Redundancy(Reward):
    """Share of the turns that begin in a state not seen before and whose reply holds no sentence loop."""

    def __call__(self, transcript: Transcript) -> float | None:
        if not transcript.turns:
            return None
        seen: set[str] = set()
        fresh = 0
        for turn in transcript.turns:
            state = json.dumps(turn.state, sort_keys=True)
            fresh += state not in seen and not _loops(turn.reply)
            seen.add(state)
        return fresh / len(transcript.turns)


def _loops(reply: str) -> bool:
    sentences = (" ".join(part.casefold().split()) for part in _SENTENCE_END.split(reply))
    return any(count >= LOOP for sentence, count in Counter(sentences).items() if sentence)
