"""One reward term on one transcript, whatever the term does: its value, or how it failed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo.interfaces import Reward
from grpo.types import Transcript


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A value, or (`what` is not empty) the sentence about a failure: `reward term X <what> on <rollout><detail>`."""

    value: float | None = None
    what: str = ""
    detail: str = ""
    cause: Exception | None = None
    wrong: bool = False
    """The term ran to its end and gave what no term may give: a bug in it that no policy should pass over."""


def measure(term: Reward, transcript: Transcript) -> Finding:
    try:
        value = term(transcript)
    # A term is anybody's code.
    except Exception as error:
        return Finding(what=f"raised {type(error).__name__}", detail=f": {error}", cause=error)
    if value is None:
        return Finding()
    # bool is an int to Python, but a term that answers yes or no has most likely forgotten its scale.
    if not isinstance(value, int | float) or isinstance(value, bool):
        kind = type(value).__name__
        return Finding(
            what=f"gave {value!r:.200} ({kind})", detail="; return a plain float, or None to abstain", wrong=True
        )
    try:
        number = float(value)
    except OverflowError:  # an int beyond what a float holds
        number = math.inf
    if not math.isfinite(number):
        return Finding(what=f"gave {number}", detail="; return a finite number, or None to abstain", wrong=True)
    return Finding(value=number)
