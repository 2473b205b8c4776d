"""The life of a sweep: what is missing is sent, watched, tried again where that helps, and always accounted for.

The queue is here and not in the cluster, because a job that waits inside Ray can neither be stopped nor outlive Ray's
own start limit. A cluster that does not answer says nothing about its trials: only its own word ends one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live

from grpo import config
from grpo.config import RunConfig
from grpo.words import pasted
from launchers import outcome, record, table
from launchers.cluster import Attempt, Cluster, Policy, Refused, Status, Unreachable
from launchers.outcome import Outcome
from launchers.record import ACTIVE, Job, State, TrialRecord
from launchers.signs import SignsOfLife
from launchers.trial import CONFIG

STOP_SECONDS = 60.0
"""How long stopped trials may take to end before they are left to the cluster."""


WAIT_TOLD_SECONDS = 30.0
"""Starting takes some seconds everywhere; a reason to wait is told after that."""


class Away(Exception):
    """The cluster has not answered for longer than it may."""


@dataclass(kw_only=True)
class _Watch:
    """An attempt that is under way."""

    attempt: Attempt
    signs: SignsOfLife
    began: float = field(default_factory=time.monotonic)
    sent: bool = False
    waiting_since: float | None = None
    """A queue may suspend an attempt that ran; it then waits anew."""
    told: str = ""
    """What was last said to the person who watches."""


def launch(
    jobs: Sequence[Job], sweep: Path, *, cluster: Cluster, policy: Policy, stop_on_error: bool, console: Console
) -> list[TrialRecord]:
    """Run the jobs that have no result in `sweep` yet; one record a job, in their order.

    Raises ConfigError if another process works on the sweep or the cluster cannot take it, and KeyboardInterrupt after
    the running trials were stopped, or left to the cluster, as the policy says.
    """
    sweep.mkdir(parents=True, exist_ok=True)
    with record.locked(sweep), _signals_as_interrupt(), contextlib.closing(cluster):
        records = record.read(sweep)
        places = [record.place(job, records) for job in jobs]
        life = _Life(
            sweep, records, dict(zip(places, (job.run for job in jobs), strict=True)), cluster, policy, console
        )
        life.go(list(dict.fromkeys(places)), stop_on_error=stop_on_error)
        return [records[place] for place in places]


def stop(jobs: Sequence[Job], sweep: Path, *, cluster: Cluster, policy: Policy, console: Console) -> None:
    """End what runs of the jobs; what ended by itself is recorded as it ended."""
    with record.locked(sweep), contextlib.closing(cluster):
        records = record.read(sweep)
        runs = {record.place(job, records): job.run for job in jobs}
        life = _Life(sweep, records, runs, cluster, dataclasses.replace(policy, on_interrupt="stop"), console)
        life.take(runs)
        life.interrupted()


def show(jobs: Sequence[Job], sweep: Path, *, cluster: Cluster, console: Console) -> None:
    """Say how each job's attempt stands on its cluster."""
    with contextlib.closing(cluster):
        for job, known in ((job, trial) for job in jobs for trial in record.read(sweep) if trial.folder == job.folder):
            attempt = _attempt(sweep, known, known.attempts, job.run)
            try:
                status = cluster.status(attempt) if known.state in ACTIVE else None
                told = f"{status.phase} {status.note}".strip() if status else known.state
            except Unreachable as error:
                told = f"not known, the cluster does not answer ({error})"
            line = f"trial {known.folder}: {told}; {outcome.last_line(attempt.log) or 'no output yet'}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _attempt(sweep: Path, of: TrialRecord, number: int, run: RunConfig) -> Attempt:
    return Attempt(sweep=sweep, folder=of.folder, number=number, fingerprint=of.fingerprint, run=run)


class _Life:
    def __init__(
        self,
        sweep: Path,
        records: list[TrialRecord],
        runs: Mapping[int, RunConfig],
        cluster: Cluster,
        policy: Policy,
        console: Console,
    ) -> None:
        self.sweep, self.records, self.runs, self.cluster = sweep, records, runs, cluster
        self.policy, self.console = policy, console
        self.queue: deque[int] = deque()
        self.active: dict[int, _Watch] = {}
        self.tries = dict.fromkeys(runs, 0)
        self.answered = time.monotonic()
        self.stopping = False

    def take(self, places: Iterable[int]) -> None:
        """Sort the trials into those that are done, those under way and those to be sent."""
        for place in places:
            if self.records[place].state == "finished":
                self._say(f"trial {self.records[place].folder}: {table.told(self.records[place])} (done before)")
            elif self.records[place].state in ACTIVE:
                self.active[place] = self._watch(place, sent=True)
            else:
                self.queue.append(place)

    def go(self, places: Sequence[int], *, stop_on_error: bool) -> None:
        self.take(places)
        self._freeze()
        self.cluster.check([self._attempt(place, self.records[place].attempts + 1) for place in self.queue])
        self._save()
        try:
            with self._shown() as show:
                while self.queue or self.active:
                    self._fill()
                    for place in list(self.active):
                        self._look(place, stop_on_error=stop_on_error)
                    show()
                    if self.active:
                        self.cluster.wait(self._interval())
        except KeyboardInterrupt:
            self.interrupted()
            raise
        except Away as error:
            self._say(
                f"{error}; its trials go on: python scripts/sweep.py attach {shlex.quote(str(self.sweep))}", style="red"
            )

    def _freeze(self) -> None:
        """Every config is on disk before anything is sent; an attempt under way keeps its own."""
        for place in self.queue:
            folder = self.sweep / self.records[place].folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CONFIG).write_text(config.to_yaml(self.runs[place]), encoding="utf-8")

    def _fill(self) -> None:
        while self.queue and len(self.active) < self.policy.max_concurrent:
            place = self.queue.popleft()
            before = self.records[place].attempts
            if before and (found := self._known(self._attempt(place, before))):
                self._ended(place, found, stop_on_error=False)
                continue
            self.tries[place] += 1
            # Before it is sent: whoever continues after a crash asks the cluster for this very attempt.
            blank = dict.fromkeys(("objective", "cause", "reason", "seconds"))
            self._change(place, {**blank, "state": "pending", "attempts": before + 1, "started": time.time()})
            self.active[place] = self._watch(place, sent=False)

    def _look(self, place: int, *, stop_on_error: bool) -> None:
        """Ask after one attempt, and act on the answer."""
        watch = self.active[place]
        try:
            if not watch.sent:
                self.cluster.submit(watch.attempt)
                watch.sent = True
                self._say(
                    f"trial {watch.attempt.folder}: {self._label(place)} started; its output: {watch.attempt.log}"
                )
            status = self.cluster.status(watch.attempt)
            if status.phase in ("ended", "lost"):
                # Before anything is made of the end: the result may be known to the output alone.
                self.cluster.collect(watch.attempt)
            self.answered = time.monotonic()
        except Refused as error:
            self._ended(place, outcome.failed("refused", str(error)), stop_on_error=stop_on_error)
            return
        except Unreachable as error:
            self._away(error)
            return
        if status.phase == "pending":
            self._waiting(place, watch, status.note, stop_on_error=stop_on_error)
        elif status.phase == "running":
            self._running(place, watch, stop_on_error=stop_on_error)
        else:
            self._ended(place, self._outcome(watch.attempt, status), stop_on_error=stop_on_error)

    def _waiting(self, place: int, watch: _Watch, note: str, *, stop_on_error: bool) -> None:
        watch.waiting_since = watch.waiting_since or time.monotonic()
        waited = time.monotonic() - watch.waiting_since
        if waited > self.policy.start_minutes * 60:
            told = f"not started within {self.policy.start_minutes:g} minutes: {note or 'no reason given'}"
            self._end_early(place, watch, outcome.failed("not started", told), stop_on_error)
            return
        if note and note != watch.told and waited > WAIT_TOLD_SECONDS:
            watch.told = note
            self._say(f"trial {watch.attempt.folder} waits: {note}")
        self._mark(place, "pending", note)

    def _running(self, place: int, watch: _Watch, *, stop_on_error: bool) -> None:
        watch.waiting_since = None
        silence = watch.signs.silence(self.policy.stall_minutes)
        if silence and not watch.told:
            self._say(f"trial {watch.attempt.folder} has stalled: {silence}", style="yellow")
        watch.told = silence
        if silence and self.policy.on_stall == "retry":
            self._end_early(place, watch, outcome.failed("stalled", silence), stop_on_error)
            return
        self._mark(place, "running", silence)

    def _mark(self, place: int, state: State, reason: str) -> None:
        if (self.records[place].state, self.records[place].reason) != (state, reason or None):
            self._set(place, state=state, reason=reason or None)

    def _end_early(self, place: int, watch: _Watch, told: Outcome, stop_on_error: bool) -> None:
        with contextlib.suppress(Unreachable):
            self.cluster.stop(watch.attempt)
            self._await_end(watch.attempt, time.monotonic() + STOP_SECONDS)
            self.cluster.collect(watch.attempt)
        self._ended(place, self._known(watch.attempt) or told, stop_on_error=stop_on_error)

    def _outcome(self, attempt: Attempt, status: Status) -> Outcome:
        if status.phase == "ended":
            return outcome.of_exit(status.code, status.note, self.cluster.result_folders(attempt), attempt.log)
        told = f"the cluster no longer knows {attempt.id} ({status.note or 'its head was started anew'})"
        return self._known(attempt) or outcome.failed("head lost", f"{told}; see {attempt.log}")

    def _known(self, attempt: Attempt) -> Outcome | None:
        return outcome.known(self.cluster.result_folders(attempt), attempt.log)

    def _ended(self, place: int, ended: Outcome, *, stop_on_error: bool) -> None:
        """Record how an attempt ended, say so, and line the trial up again where that may help."""
        self.active.pop(place, None)
        state = "failed" if ended.objective is None else "finished"
        self._set(place, state=state, objective=ended.objective, cause=ended.cause, reason=ended.reason, timed=True)
        style = "red" if ended.reason else None
        self._say(f"trial {self.records[place].folder}: {table.told(self.records[place])}", style=style)
        if state == "finished":
            return
        if ended.worth_another and self.tries[place] <= self.policy.retries and not self.stopping:
            left = self.policy.retries - self.tries[place] + 1
            self._say(f"trial {self.records[place].folder} is tried again ({ended.cause}; {left} more at most)")
            self.queue.appendleft(place)
        elif stop_on_error:
            self.stopping = True
            self._say(f"stopped after this failure: {len(self.queue)} trial(s) were not run")
            self.queue.clear()

    def _away(self, error: Unreachable) -> None:
        silent = time.monotonic() - self.answered
        if silent > self.policy.start_minutes * 60:
            raise Away(f"the cluster has not answered for {silent / 60:.1f} minutes ({error})") from error

    def interrupted(self) -> None:
        again = f"the same command with {pasted('hydra.sweep.dir', self.sweep)} runs what is missing"
        if self.policy.on_interrupt == "detach" and self.active:
            here = f"python scripts/sweep.py attach {shlex.quote(str(self.sweep))}"
            self._say(f"{len(self.active)} trial(s) go on without this command; {here} watches them, stop ends them")
            return
        if self.active:
            self._say(f"stopping {len(self.active)} trial(s), which may take {STOP_SECONDS:g} s; Ctrl-C does not wait")
        with contextlib.suppress(KeyboardInterrupt):  # a second one: do not wait any longer
            self._stop_all()
        for place, watch in self.active.items():
            found = self._known(watch.attempt)
            if found:
                self._set(place, state="finished", objective=found.objective, timed=True)
            else:
                self._set(place, state="interrupted", timed=True)
            self._say(f"trial {watch.attempt.folder} {self.records[place].state}; {again}")

    def _stop_all(self) -> None:
        for watch in self.active.values():
            with contextlib.suppress(Unreachable):
                self.cluster.stop(watch.attempt)
        deadline = time.monotonic() + STOP_SECONDS
        for watch in self.active.values():
            with contextlib.suppress(Unreachable):
                self._await_end(watch.attempt, deadline)
                self.cluster.collect(watch.attempt)

    def _await_end(self, attempt: Attempt, deadline: float) -> None:
        while self.cluster.status(attempt).phase in ("pending", "running") and time.monotonic() < deadline:
            time.sleep(0.2)

    def _attempt(self, place: int, number: int) -> Attempt:
        return _attempt(self.sweep, self.records[place], number, self.runs[place])

    def _watch(self, place: int, *, sent: bool) -> _Watch:
        attempt = self._attempt(place, self.records[place].attempts)
        signs = SignsOfLife(attempt.log, self.cluster.result_folders(attempt))
        return _Watch(attempt=attempt, signs=signs, sent=sent)

    def _set(self, place: int, *, timed: bool = False, **changes: object) -> None:
        started = self.records[place].started
        if timed and started is not None:
            changes["seconds"] = time.time() - started
        self._change(place, changes)

    def _change(self, place: int, changes: Mapping[str, object]) -> None:
        self.records[place] = dataclasses.replace(self.records[place], **changes)
        self._save()

    def _save(self) -> None:
        record.write(self.sweep, self.records)

    def _label(self, place: int) -> str:
        return " ".join(self.records[place].overrides) or "(no overrides)"

    def _interval(self) -> float:
        """Short trials are asked after often, long ones seldom."""
        age = min(time.monotonic() - watch.began for watch in self.active.values())
        return min(max(age / 20, 0.1), 5.0)

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def _shown(self) -> Iterator[Callable[[], None]]:
        """A table of what is under way, where someone watches."""
        if not self.console.is_terminal:
            yield lambda: None
            return
        with Live(console=self.console, transient=True, auto_refresh=False) as shown:

            def show() -> None:
                lines = {watch.attempt.folder: outcome.last_line(watch.attempt.log) for watch in self.active.values()}
                shown.update(table.live(self.records, lines), refresh=True)

            yield show


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGTERM, and the terminal's end, act like Ctrl-C instead of leaving trials behind without a word."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # What is ignored stays so: nohup means it.
    wanted = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
