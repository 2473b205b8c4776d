"""The process in which mathematical answers are compared: one JSON line in, one out. Started by `rewards.math_answer`.

A script, not a module of the project: it loads nothing but the verifier. The alarm has no handler, so the system itself
ends the process when the time is up, even in the middle of one enormous power of C code.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 2 * 2**30
PERCENT = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?\s*\\?%")


def main() -> None:
    from math_verify import verify

    logging.disable(logging.CRITICAL)  # it warns that it does not limit the time, which is done here
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _say("ready")
    for line in sys.stdin:
        reference, answer, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        gold, stated = _read(reference), _read(answer)
        verdict = verify(gold, stated, timeout_seconds=0) if gold else None
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(verdict)


def _read(text: str) -> list[Any]:
    """The formula as Math-Verify reads it; empty if the text as a whole is none.

    Left to itself, it would take the last number of a text that is no formula, such as `5 (or 3)`.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    percent = PERCENT.fullmatch(text)  # which only the reader of plain numbers knows
    config = ExprExtractionConfig() if percent else LatexExtractionConfig()
    return parse(
        text if percent else f"${text}$", extraction_config=[config], fallback_mode="no_fallback", parsing_timeout=0
    )


def _say(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
