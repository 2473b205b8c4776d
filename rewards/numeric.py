"""Pays for the right number, within a tolerance.

How a number is written is the config's to say and never guessed: 1.234 is one number in English and another in German.
Numbers are compared as they are written, digit for digit: as floats, two products of twenty digits could be equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from typing import ClassVar, Literal

from grpo.types import Turn
from rewards.answers import AnswerTerm, is_number

LONGEST = 64
"""Characters; a longer answer is no number. Python refuses to convert very long ones anyway."""

MINUS = "\u2212"
"""The true minus sign is what typesetters and many models write."""

SPELLINGS = {" ": " \u00a0\u2009\u202f", "'": "'\u2019"}
"""What is written for a separator that has several forms: spaces that do not break, the curly apostrophe."""

EXACT = Context(prec=1000, traps=[])
"""More digits than an answer, or a reference in JSON, can have."""


@dataclass(frozen=True, kw_only=True)
class Numeric(AnswerTerm):
    """1.0 if the answer is one number within `absolute_tolerance`, or within `relative_tolerance` x |reference|.

    Only the digits 0-9 count, thousands must stand in threes, and infinities and NaN are no numbers. Fractions such as
    3/4 are not read: they are for kind math.
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
        if not (0 <= self.absolute_tolerance < math.inf and 0 <= self.relative_tolerance < math.inf):
            raise ValueError(
                f"absolute_tolerance={self.absolute_tolerance} and relative_tolerance={self.relative_tolerance} must "
                "be at least 0, and finite"
            )
        if self.decimal == self.thousands:
            raise ValueError(f"decimal and thousands are both {self.decimal!r}; they must differ")
        if not self.units:
            raise ValueError('units is empty, so no answer could be right; {"": 1.0} takes bare numbers')
        for unit, factor in self.units.items():
            if not math.isfinite(factor) or factor == 0:
                raise ValueError(f"units: one {unit!r} cannot be {factor} of the reference's unit")

    def compare(self, answer: str, turn: Turn) -> float:
        reference = turn.state["answer"]
        wanted = Decimal(str(reference)) if is_number(reference) else self._read(str(reference))
        if wanted is None or not wanted.is_finite():
            raise ValueError(f"the reference {reference!r} is no number as decimal={self.decimal!r}, units spell it")
        stated = self._read(answer)
        if stated is None:
            return 0.0
        absolute, relative = self._tolerances
        tolerance = max(absolute, EXACT.multiply(relative, abs(wanted)))
        return 1.0 if abs(EXACT.subtract(stated, wanted)) <= tolerance else 0.0

    def _read(self, text: str) -> Decimal | None:
        text = text.strip()
        match = self._pattern.fullmatch(text) if len(text) <= LONGEST else None
        if match is None:
            return None
        outer, before, inner, whole, fraction, bare, exponent, after = match.groups("")
        factor = self._factors.get(before + after)
        if factor is None or (before and after) or (outer and inner):
            return None
        minus = "-" if outer + inner in ("-", MINUS) else ""
        digits = "".join(character for character in whole if character in "0123456789")
        return EXACT.multiply(Decimal(f"{minus}{digits or 0}.{fraction or bare or 0}{exponent}"), factor)

    @cached_property
    def _tolerances(self) -> tuple[Decimal, Decimal]:
        return Decimal(str(self.absolute_tolerance)), Decimal(str(self.relative_tolerance))

    @cached_property
    def _factors(self) -> Mapping[str, Decimal]:
        return {unit: Decimal(str(factor)) for unit, factor in self.units.items()}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        units = "|".join(re.escape(unit) for unit in sorted(self.units, key=len, reverse=True) if unit)
        unit = f"({units})?" if units else "()"
        between = f"[{''.join(map(re.escape, SPELLINGS.get(self.thousands, self.thousands)))}]"
        grouped = f"[0-9]{{1,3}}(?:{between}[0-9]{{3}})+|" if self.thousands else ""
        point = re.escape(self.decimal)
        number = f"(?:({grouped}[0-9]+)(?:{point}([0-9]*))?|{point}([0-9]+))"
        sign = rf"([+\-{MINUS}])?"
        return re.compile(rf"{sign}\s*{unit}\s*{sign}{number}([eE][+-]?[0-9]{{1,3}})?\s*{unit}")
