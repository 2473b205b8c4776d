"""Mathematical answers: equal is right however it is written, and what lists candidates is wrong."""

from __future__ import annotations

import pytest
from builders import transcript, turn

from rewards.math_answer import MathAnswer

MATH = MathAnswer(timeout_seconds=1.0)


def judged(answer: str, reference: str) -> float | None:
    return MATH(transcript(turn(action=answer, state={"answer": reference})))


@pytest.mark.parametrize(
    ("reference", "answer", "value"),
    [
        ("1/2", "0.5", 1.0),
        (r"\frac{1}{2}", r"$\boxed{0.5}$", 1.0),
        ("x^2+1", "1+x^2", 1.0),
        ("3", "x = 3", 1.0),
        (r"\{1, 2\}", "2 or 1", 1.0),
        ("3", "3 or 5", 0.0),
        ("3", "3, 5", 0.0),
        ("3", "5 = 3", 0.0),
        ("3", "1 = 2 = 3", 0.0),
        ("3", "$3$ $5$", 0.0),
        ("3", "\\boxed{3} \\boxed{5}", 0.0),
        ("3", "5, \\boxed{3}", 0.0),
        ("3", "\\(3\\) \\(5\\)", 0.0),
        ("3", "5 (or 3)", 0.0),
        ("3", "5 | 3", 0.0),
        ("3", "5 \\to 3", 0.0),
        ("3", "5; answer: 3", 0.0),
        ("3", "5? 3", 0.0),
        ("8", "3 5", 0.0),
        ("8", "3\\quad 5", 0.0),
        ("235", "1 234", 0.0),
        ("12345", "12\\,345", 1.0),
        ("1000", "1e3", 1.0),
        ("2\\pi", "2*pi", 1.0),
        ("1/2", "\\frac 1 2", 1.0),
        ("50", "50\\%.", 1.0),
        ("\\$5", "5", 1.0),
        ("3", "it is 5, no, it is 3", 0.0),
        ("3", "\\frac{" * 60, 0.0),
        ("3", "3" * 100_000, 0.0),
        ("3", "NaN", 0.0),
        ("3", "1e999", 0.0),
        ("3", "", 0.0),
    ],
)
def test_formulas_are_equal_or_not(reference: str, answer: str, value: float) -> None:
    assert judged(answer, reference) == value


def test_an_answer_that_would_take_for_ever_is_wrong_and_the_next_one_is_judged() -> None:
    assert judged("9^{9^{9^{9^9}}}", "3") == 0.0
    assert judged("2+1", "3") == 1.0
