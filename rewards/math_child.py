"""The process in which mathematical answers are compared: one JSON line in, one out. Started by `rewards.math_answer`.

A script, not a module of the project: it loads nothing but the verifier. The alarm has no handler, so the system itself
ends the process when the time is up, even in the middle of one enormous power of C code.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys

MEMORY_BYTES = 2 * 2**30


def main() -> None:
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)  # it warns that it does not limit the time, which is done here
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _say("ready")
    for line in sys.stdin:
        reference, answer, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        gold, stated = (parse(f"${text}$", parsing_timeout=0) for text in (reference, answer))
        verdict = verify(gold, stated, timeout_seconds=0) if gold else None
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(verdict)


def _say(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
