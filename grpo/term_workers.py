"""Reward terms in processes of their own: one that hangs or crashes costs its own value and nothing else.

A worker measures in a fixed order and tells each finding at once, so the first that stays out names the culprit. It is
then killed, started again, and goes on behind it. What is measured does not depend on how many workers there are.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing.connection import Connection

from grpo.interfaces import Reward
from grpo.measure import Finding, measure
from grpo.types import Transcript

START_SECONDS = 120
"""A worker may take this long to load what its terms import."""

LOST = 8
"""After so many of its rollouts were lost in one step, a term is not tried on the others: each may take the limit."""

Findings = dict[str, Finding]


class TermWorkers:
    """`count` processes that measure `terms`, each term at most `seconds` a rollout. Started now, used when ready."""

    def __init__(self, terms: Mapping[str, Reward], *, count: int, seconds: float) -> None:
        for name, term in terms.items():
            try:
                pickle.dumps(term)
            except Exception as error:
                raise ValueError(
                    f"reward.terms.{name} cannot be sent to a worker process ({error}); keep plain values in its "
                    "fields, or use reward.workers=0"
                ) from error
        self._lock = threading.Lock()
        self._workers = [_Worker(terms, seconds) for _ in range(count)]

    def measure(self, transcripts: Sequence[Transcript]) -> list[Findings]:
        """The findings of every term, in order. Raises RuntimeError if a worker does not start."""
        count = len(self._workers)
        # Neighbours stay together: siblings share frames, which are then sent once.
        cuts = [len(transcripts) * index // count for index in range(count + 1)]
        shares = [transcripts[start:end] for start, end in pairwise(cuts)]
        # One call at a time: an engine may judge from several threads, and a worker has one channel.
        with self._lock, ThreadPoolExecutor(max_workers=count) as pool:
            found = pool.map(_Worker.measure, self._workers, shares)
            return [findings for share in found for findings in share]

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()


class _Worker:
    def __init__(self, terms: Mapping[str, Reward], seconds: float) -> None:
        self._terms, self._seconds = dict(terms), seconds
        self._start()

    def measure(self, transcripts: Sequence[Transcript]) -> list[Findings]:
        found: list[Findings] = [{} for _ in transcripts]
        lost: Counter[str] = Counter()
        while True:
            todo = [
                (index, name) for index, findings in enumerate(found) for name in self._terms if name not in findings
            ]
            if not todo:
                return found
            failure = self._attempt(transcripts, todo, found)
            if failure is None:
                continue
            index, name, what = failure
            found[index][name] = Finding(what=what)
            lost[name] += 1
            if lost[name] == LOST:
                for findings in found:
                    findings.setdefault(name, Finding(what=f"was not tried, being lost {LOST} times in this step,"))

    def _attempt(
        self, transcripts: Sequence[Transcript], todo: Sequence[tuple[int, str]], found: list[Findings]
    ) -> tuple[int, str, str] | None:
        """Measure `todo` until done or until one is lost: then which, and how."""
        self._await_start()
        at = todo[0]
        try:
            wanted = sorted({index for index, _ in todo})
            self._channel.send(({index: transcripts[index] for index in wanted}, todo))
            self._channel.recv()  # unpacked: from here on, time is a term's
            for at in todo:
                if not self._channel.poll(self._seconds):
                    self.stop()
                    self._start()
                    return (*at, f"took longer than {self._seconds:g} s")
                found[at[0]][at[1]] = self._channel.recv()
        except (EOFError, OSError):
            self._process.join(timeout=5)
            code = self._process.exitcode
            self.stop()
            self._start()
            return (*at, f"ended its process ({_ending(code)})")
        return None

    def _start(self) -> None:
        # Spawned: a fork of a process with running threads and a GPU is not sound.
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._terms), daemon=True, name="reward terms")
        self._process.start()
        theirs.close()
        self._ready = False

    def _await_start(self) -> None:
        if self._ready:
            return
        with suppress(EOFError, OSError):
            self._ready = self._channel.poll(START_SECONDS) and self._channel.recv() == "ready"
        if not self._ready:
            raise RuntimeError("a worker process for reward terms did not start; reward.workers=0 does without")

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._channel.close()


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}"


def _serve(channel: Connection, terms: Mapping[str, Reward]) -> None:
    """What a worker does until it is stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then stops its workers
    channel.send("ready")
    while True:
        try:
            transcripts, todo = channel.recv()
            channel.send("unpacked")
            for index, name in todo:
                channel.send(_sendable(measure(terms[name], transcripts[index])))
        except (EOFError, BrokenPipeError):
            return


class RemoteTraceback(Exception):
    """Where in a worker process a term raised, as text: its own exception may not survive being sent."""


def _sendable(finding: Finding) -> Finding:
    if finding.cause is None:
        return finding
    return replace(finding, cause=RemoteTraceback("".join(traceback.format_exception(finding.cause))[-4000:]))
