"""Pays for the right values in a structured answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from grpo.types import Turn
from rewards.answers import AnswerTerm, read_json, same


@dataclass(frozen=True, kw_only=True)
class FieldMatch(AnswerTerm):
    """Fields that agree with the reference, as a share of all that either of the two has.

    A field that the reference lacks therefore costs as much as a wrong one: naming everything does not pay. The
    answer must be one JSON object and nothing else; a value agrees as a whole or not at all (`rewards.answers.same`).
    """

    kind: ClassVar[str] = "json"

    def compare(self, answer: str, turn: Turn) -> float:
        wanted = turn.state["answer"]
        if not isinstance(wanted, Mapping) or not wanted:
            raise ValueError(f"the reference {wanted!r} is no JSON object with fields")
        stated = read_json(answer)
        if not isinstance(stated, dict):
            return 0.0
        right = sum(key in stated and same(stated[key], value) for key, value in wanted.items())
        return right / len(wanted.keys() | stated.keys())
