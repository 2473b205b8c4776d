"""Pays for the right number, within a tolerance.

How a number is written is the config's to say and never guessed: 1.234 is one number in English and another in German.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from grpo.types import Turn
from rewards.answers import AnswerTerm, is_number

LONGEST = 64
"""Characters; a longer answer is no number. Python refuses to convert very long ones anyway."""

MINUS = "\u2212"
"""The true minus sign is what typesetters and many models write."""


@dataclass(frozen=True, kw_only=True)
class Numeric(AnswerTerm):
    """1.0 if the answer is one number within `absolute_tolerance`, or within `relative_tolerance` x |reference|.

    Only the digits 0-9 count, thousands must stand in threes, and infinities and NaN are no numbers.
    """

    kind: ClassVar[str] = "number"
    absolute_tolerance: float
    relative_tolerance: float
    decimal: Literal[".", ","]
    """What separates the fraction: `1234.5` or `1234,5`."""
    thousands: Literal["", ",", ".", " ", "'"]
    """What may stand between thousands: `1,234` or `1.234`; nothing may if it is empty."""
    units: Mapping[str, float]
    """Unit -> what one of it is in the reference's unit; it may stand before or after the number. The unit "" is a
    bare number: without it a unit must be named."""

    def __post_init__(self) -> None:
        if self.absolute_tolerance < 0 or self.relative_tolerance < 0:
            raise ValueError(
                f"absolute_tolerance={self.absolute_tolerance} and relative_tolerance={self.relative_tolerance} must "
                "be at least 0"
            )
        if self.decimal == self.thousands:
            raise ValueError(f"decimal and thousands are both {self.decimal!r}; they must differ")
        if not self.units:
            raise ValueError('units is empty, so no answer could be right; {"": 1.0} takes bare numbers')

    def compare(self, answer: str, turn: Turn) -> float:
        reference = turn.state["answer"]
        wanted = float(reference) if is_number(reference) else self._read(str(reference))
        if wanted is None or not math.isfinite(wanted):
            raise ValueError(f"the reference {reference!r} is no number as decimal={self.decimal!r}, units spell it")
        stated = self._read(answer)
        if stated is None:
            return 0.0
        tolerance = max(self.absolute_tolerance, self.relative_tolerance * abs(wanted))
        return 1.0 if abs(stated - wanted) <= tolerance else 0.0

    def _read(self, text: str) -> float | None:
        text = text.strip()
        match = self._pattern.fullmatch(text) if len(text) <= LONGEST else None
        if match is None:
            return None
        before, sign, whole, fraction, exponent, after = match.groups("")
        factor = self.units.get(before + after)
        if factor is None or (before and after):
            return None
        digits = whole.replace(self.thousands, "") if self.thousands else whole
        minus = "-" if sign in ("-", MINUS) else ""
        number = float(f"{minus}{digits}.{fraction or 0}{exponent}") * factor
        return number if math.isfinite(number) else None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        units = "|".join(re.escape(unit) for unit in sorted(self.units, key=len, reverse=True) if unit)
        unit = f"({units})?" if units else "()"
        grouped = rf"[0-9]{{1,3}}(?:{re.escape(self.thousands)}[0-9]{{3}})+|" if self.thousands else ""
        fraction = rf"(?:{re.escape(self.decimal)}([0-9]+))?"
        return re.compile(rf"{unit}\s*([+\-{MINUS}])?({grouped}[0-9]+){fraction}([eE][+-]?[0-9]{{1,3}})?\s*{unit}")
