"""Pays for the right text, exactly or up to what the config says to overlook."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import ClassVar, Literal

from grpo.types import Turn
from rewards.answers import AnswerTerm

BEFORE_DIGITS = "-.,:/\u2010\u2011\u2012\u2013\u2014"
"""Marks that belong to the number after them; the last five are hyphens and dashes."""
AFTER_WORDS = "%\u2030#"
"""Marks that belong to the letter or digit before them."""


@dataclass(frozen=True, kw_only=True)
class TextMatch(AnswerTerm):
    """1.0 if the answer is the reference, or one of them where the reference is a list.

    Unicode spellings of one character (NFC) are always equal. A longer text that contains the reference is wrong. A
    mark that changes what is said is no mere punctuation: that of `3.5`, `-5`, `50%` and `C#`.
    """

    kind: ClassVar[str] = "text"
    ignore: tuple[Literal["case", "space", "punctuation", "accents", "width"], ...]
    """Differences that do not count: letter case; the amount of white space; punctuation marks; accents; full-width
    and other compatibility forms. Empty: the text must be exactly the reference."""

    def compare(self, answer: str, turn: Turn) -> float:
        reference = turn.state["answer"]
        wanted = [self._plain(str(text)) for text in (reference if isinstance(reference, list) else [reference])]
        if not all(wanted):
            raise ValueError(f"the reference {reference!r} is empty once {', '.join(self.ignore)} are ignored")
        return 1.0 if self._plain(answer) in wanted else 0.0

    def _plain(self, text: str) -> str:
        ignore = self.ignore
        text = unicodedata.normalize("NFKC" if "width" in ignore else "NFC", text)
        if "case" in ignore:
            text = text.casefold()
        if "accents" in ignore:
            parts = unicodedata.normalize("NFD", text)
            text = unicodedata.normalize("NFC", "".join(c for c in parts if not unicodedata.combining(c)))
        if "punctuation" in ignore:
            text = "".join(c for at, c in enumerate(text) if not _is_punctuation(text, at))
        return " ".join(text.split()) if "space" in ignore else text


def _is_punctuation(text: str, at: int) -> bool:
    mark = text[at]
    if not unicodedata.category(mark).startswith("P"):
        return False
    if mark in AFTER_WORDS:
        return not text[at - 1 : at].isalnum()
    return not (mark in BEFORE_DIGITS and text[at + 1 : at + 2].isdigit())
