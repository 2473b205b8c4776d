"""Pays for the right option of a multiple-choice question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import ClassVar

from grpo.types import Turn
from rewards.answers import AnswerTerm

_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:]?")
_LETTER_AND_TEXT = re.compile(r"\(?([A-Za-z])(?:\)|\.|:)\s*(\S.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(AnswerTerm):
    """1.0 if the answer names the reference's option and no other.

    Understood are the letter (`B`, `b`, `(B)`, `B.`), the option's text where the state lists `choices`, and both
    together (`B. Paris`) if they agree. Anything more, such as `A or B`, names no option.
    """

    kind: ClassVar[str] = "choice"

    def compare(self, answer: str, turn: Turn) -> float:
        choices = turn.state.get("choices") or ()
        wanted = _option(str(turn.state["answer"]), choices)
        if wanted is None:
            raise ValueError(f"the reference {turn.state['answer']!r} is no option; give its letter or its text")
        return 1.0 if _option(answer, choices) == wanted else 0.0


def _option(text: str, choices: Sequence[str]) -> int | None:
    """The number of the one option that `text` names. A lone letter is an option's letter, never its text."""
    text = text.strip()
    if letter := _LETTER.fullmatch(text):
        return _number(letter[1], choices)
    named = [number for number, choice in enumerate(choices) if _plain(choice) == _plain(text)]
    if named:
        return named[0] if len(named) == 1 else None
    if both := _LETTER_AND_TEXT.fullmatch(text):
        number = _number(both[1], choices)
        agree = choices and number is not None and _plain(choices[number]) == _plain(both[2])
        return number if agree else None
    return None


def _number(letter: str, choices: Sequence[str]) -> int | None:
    number = ascii_uppercase.index(letter.upper())
    return number if not choices or number < len(choices) else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
