"""Pays for a mathematical answer that is equal to the reference: 1/2, 0.5 and \\frac{1}{2} are one answer.

Equality is Math-Verify's to judge (Hugging Face, on sympy). It runs in a child process, because a short answer such as
9^{9^{9^9}} keeps it busy for ever, in C code that no exception reaches.
"""

from __future__ import annotations

import atexit
import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

from grpo.types import Turn
from rewards.answers import AnswerTerm

LONGEST = 512
"""Characters of an answer; sympy is slow on long ones, and a formula that long is no final answer."""

_WRAPPINGS = (
    re.compile(r"\$([^$]*)\$"),
    re.compile(r"\\\((.*)\\\)", re.DOTALL),
    re.compile(r"\\\[(.*)\\\]", re.DOTALL),
    re.compile(r"\\boxed\{(.*)\}", re.DOTALL),
)
_SENTENCE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}\s+[A-Za-z]{2,}")
_SEVERAL = re.compile(r"\$|\n|\\q?quad|\\[()\[\]]|\\boxed|(?<!frac )[0-9]\s+[0-9]")
"""What stands between or around formulas, of which only one is an answer; of `1 234`, Math-Verify makes 1 + 234."""
_SPELLINGS = (
    (re.compile(r"\\\$|(?<=[0-9])\\[,!](?=[0-9]{3})"), ""),  # a dollar sign; LaTeX's thin space between thousands
    (re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})(?!\w)"), r"\1\\cdot 10^{\2}"),
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])|\u03c0"), r"\\pi "),
)
"""What Math-Verify would read as something else: `1e3` as 3 times Euler's number, `pi` as i times p."""
_ASSIGNED = re.compile(r"\s*\\?[A-Za-z]\w{0,15}\s*=[^=]+")


@dataclass(frozen=True, kw_only=True)
class MathAnswer(AnswerTerm):
    """1.0 if the answer is one formula equal to the reference.

    `3 or 5` is the set of both and equals neither; a sentence is no formula; an equation is one only as `x = 3`, or
    where the reference is an equation itself. An answer that takes longer than `timeout_seconds` to compare is wrong.
    As Math-Verify has it, a unit is overlooked and 50% is both 50 and 0.5: where these matter, kind number has them.
    """

    kind: ClassVar[str] = "math"
    timeout_seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.timeout_seconds <= 60:
            raise ValueError(f"timeout_seconds={self.timeout_seconds} must be above 0 and at most 60")

    def compare(self, answer: str, turn: Turn) -> float:
        reference = _formula(str(turn.state["answer"]))
        stated = _formula(answer)
        if reference is None:
            raise ValueError(f"the reference {turn.state['answer']!r} is no formula")
        if stated is None or ("=" in stated and "=" not in reference and not _ASSIGNED.fullmatch(stated)):
            return 0.0
        verdict = _equal(reference, stated, self.timeout_seconds)
        if verdict is None:
            raise ValueError(f"the reference {turn.state['answer']!r} is no formula that Math-Verify can read")
        return 1.0 if verdict else 0.0


def _formula(text: str) -> str | None:
    """What stands within the outer $…$ or \\boxed{…}; None for what is no single formula."""
    if len(text) > LONGEST:
        return None
    for wrapping in _WRAPPINGS:
        if inner := wrapping.fullmatch(text.strip()):
            text = inner[1]
    text = text.strip().removesuffix(".").removesuffix(",")
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return None if not text or _SEVERAL.search(text) or _SENTENCE.search(text) or not _balanced(text) else text


def _balanced(text: str) -> bool:
    """Every brace closes one that is open; of `\\boxed{3} \\boxed{5}`, the outer braces are not a pair."""
    depth = 0
    for brace in text:
        depth += (brace == "{") - (brace == "}")
        if depth < 0:
            return False
    return depth == 0


class _Verifier:
    """The child process, started when first asked and again after each time that it ran out of time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        atexit.register(self._end)

    def ask(self, reference: str, answer: str, seconds: float) -> bool | None:
        """Whether they are equal; False if that takes too long; None if the reference cannot be read."""
        with self._lock:
            process = self._process = self._process or _started()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(f"{json.dumps([reference, answer, seconds])}\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            if not line:
                self._end()
                return False
            return json.loads(line)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _started() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("math_child.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        _, said = process.communicate()
        raise RuntimeError(f"math_answer: the verifier did not start: {said.strip()[-300:]}")
    return process


@lru_cache(maxsize=4096)
def _equal(reference: str, answer: str, seconds: float) -> bool | None:
    """`_Verifier.ask`, once for what siblings answer alike: an answer that takes too long takes it once."""
    return _verifier().ask(reference, answer, seconds)


@cache
def _verifier() -> _Verifier:
    return _Verifier()
