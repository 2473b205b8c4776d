"""What the terms that compare an answer with the task's reference have in common.

They read the answer from `Outcome.action`: the env alone decides which part of a reply is the answer, so no term can
be earned by listing candidates somewhere else. The reference is `answer` in the env's true state, and `kind` beside it
says how it is to be compared, so that one reward serves data of mixed kinds.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

from grpo.interfaces import Reward
from grpo.types import Transcript, Turn


@dataclass(frozen=True, kw_only=True)
class AnswerTerm(Reward):
    """Judges the last turn's answer. Abstains without a turn, without a reference, and for another kind of answer."""

    kind: ClassVar[str]

    def __call__(self, transcript: Transcript) -> float | None:
        if not transcript.turns:
            return None
        turn = transcript.turns[-1]
        if "answer" not in turn.state or turn.state.get("kind", self.kind) != self.kind:
            return None
        answer = turn.outcome.action
        return 0.0 if answer is None else self.compare(answer, turn)

    @abstractmethod
    def compare(self, answer: str, turn: Turn) -> float:
        """0 (wrong) to 1 (right). Raises ValueError for a reference that makes no sense, never for an answer."""


def read_json(text: str) -> Any:
    """The JSON value in `text`, or ... (Ellipsis) if there is none.

    Stricter than Python's reader: a key that comes twice is refused, because only the last would be judged, and so are
    NaN, infinities and numbers too large to be one.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite, parse_int=_whole
        )
    except (ValueError, RecursionError):  # the second for thousands of nested brackets
        return ...


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _whole(text: str) -> int:
    _finite(text)  # one that is too large for a float cannot be divided
    return int(text)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(stated: Any, wanted: Any) -> bool:
    """Equal as JSON values: 1 is 1.0 but not true; letter case and the amount of white space make no difference."""
    if is_number(stated) and is_number(wanted):
        return stated == wanted
    if type(stated) is not type(wanted):
        return False
    if isinstance(wanted, str):
        return " ".join(stated.casefold().split()) == " ".join(wanted.casefold().split())
    if isinstance(wanted, Mapping):
        return stated.keys() == wanted.keys() and all(same(stated[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(stated) == len(wanted) and all(map(same, stated, wanted))
    return stated == wanted
