"""Pays for describing what is really there: the stated observation against the env's true state.

Silence earns nothing and costs nothing, but a transcript that states something once is judged on all its turns;
otherwise the policy would describe the one picture that it can read and skip the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from grpo.interfaces import Reward
from grpo.types import Transcript
from rewards.tags import section

_TOKEN = re.compile(r"-?[0-9]+(?:\.[0-9]+)?|[^\W\d_]+")
_FILLERS = frozenset({"and", "none"})


@dataclass(frozen=True, kw_only=True)
class VisualGrounding(Reward):
    """Mean over the turns of the share of `facts` that the reply states correctly; None if no turn states any.

    The reply states them as `<observation>agent 3 1, goal 5 5, open right, down</observation>`: the name of the fact
    (a key of the env's state), then its value. Credit is partial by fact, all or nothing within one:

    - numbers must be exactly the state's, in its order (other words, such as "row", are ignored);
    - words must be exactly the state's, in any order; an empty list is stated as "none";
    - a fact that is not stated, or stated twice, is wrong. So is every fact of a turn without one `<observation>`.
    """

    facts: tuple[str, ...]
    """Keys of the env's state. Empty: all that the state itself lists under `facts`, which may differ from task to
    task; a task that lists none is not judged."""

    def __post_init__(self) -> None:
        if len(set(self.facts)) != len(self.facts):
            raise ValueError(f"facts={list(self.facts)} must name no key of the env's state twice")

    def __call__(self, transcript: Transcript) -> float | None:
        known = [self._known(turn.state) for turn in transcript.turns]
        stated = [_stated(turn.reply, facts) for turn, facts in zip(transcript.turns, known, strict=True)]
        if not any(stated):
            return None
        right = sum(
            _is_right(statements[fact], facts[fact])
            for facts, statements in zip(known, stated, strict=True)
            for fact in statements
        )
        return right / sum(map(len, known))

    def _known(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.facts:
            return state.get("facts") or {}
        missing = [fact for fact in self.facts if fact not in state]
        if missing:
            raise ValueError(f"facts: the env's state has no {missing[0]!r}; name some of: {', '.join(state)}")
        return {fact: state[fact] for fact in self.facts}


def _stated(reply: str, facts: Collection[str]) -> dict[str, list[str]]:
    """The text after each mention of a fact, up to the next mention; empty without one `<observation>`."""
    span = section(reply, "observation")
    if span is None or not facts:
        return {}
    text = reply[span[0] : span[1]].casefold()
    fact_of = {fact.casefold(): fact for fact in facts}
    names = "|".join(map(re.escape, sorted(fact_of, key=len, reverse=True)))
    _, *pieces = re.split(rf"\b({names})\b", text)
    statements: dict[str, list[str]] = {}
    for name, value in zip(pieces[::2], pieces[1::2], strict=True):
        statements.setdefault(fact_of[name], []).append(value)
    return statements


def _is_right(statements: list[str], value: Any) -> bool:
    if len(statements) != 1:
        return False
    wanted = _tokens(" ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
    stated = _tokens(statements[0])
    wanted_numbers = [token for token in wanted if not token.isalpha()]
    if wanted_numbers:
        return [token for token in stated if not token.isalpha()] == wanted_numbers
    return set(stated) - _FILLERS == set(wanted) - _FILLERS


def _tokens(text: str) -> list[str]:
    # Numbers stay text: Python refuses to convert very long digit strings, and a model may write one.
    return _TOKEN.findall(text.casefold())
