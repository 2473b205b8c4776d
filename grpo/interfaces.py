"""What may be swapped: environments, reward terms and trackers. The config names an implementation by `_target_`.

A class is abstract or final: these are the abstract ones; an implementation is a frozen, keyword-only
dataclass whose fields are its config schema (read strictly: unknown keys and wrong types are refused).
Constructing one must be cheap and must import nothing heavy, because it happens while the config is checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from grpo.types import Observation, Outcome, Split, Task, Transcript


class DataError(ValueError):
    """What an env reads is missing or wrong. `faults`: (the env's key, a sentence) for each thing to repair."""

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{key}: {problem}" for key, problem in faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type[DataError], tuple[Any, ...]]:
        return DataError, (self.faults,)


class Env(ABC):
    """A source of tasks, and of episodes for them. Stateless: safe to share and to send to a worker."""

    max_turns: int
    """Replies that an episode may use, the one that ends it included."""
    expert_replies: ClassVar[tuple[str, ...]] = ()
    """Every reply that `Episode.expert` can give, for a demonstrator that sometimes slips; empty without an expert."""

    @abstractmethod
    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """`count` tasks, a function of the arguments alone.

        In the held-out splits they are distinct for as long as the split has distinct ones (an env that reads its
        tasks may then return fewer), and no task of one split (by content, not by name) occurs in another.
        Raises DataError.
        """

    @abstractmethod
    def episode(self, task: Task) -> Episode: ...

    @abstractmethod
    def min_turns(self, task: Task) -> int | None:
        """Fewest replies that solve `task`, whatever the budget; None where the env cannot know."""

    def data_version(self) -> str | None:
        """What tells two versions of the data that tasks are read from apart, such as the hash of its files.

        None for an env that generates its tasks: its source code is their version.
        """
        return None


class Episode(ABC):
    """One play of one task: made, played once, closed; never reset."""

    @abstractmethod
    def observe(self) -> Observation:
        """What the model sees next; calling it twice shows the same."""

    @abstractmethod
    def state(self) -> Mapping[str, Any]:
        """The true state behind the observation, JSON values only."""

    @abstractmethod
    def act(self, reply: str) -> Outcome:
        """Take the model's reply. Any text is data: never raises for it, never evaluates it.

        Raises RuntimeError if the episode is already done.
        """

    @abstractmethod
    def expert(self) -> str | None:
        """A reply that leads to the goal on a shortest way; None where the env has no expert."""

    @abstractmethod
    def text(self) -> str:
        """The state drawn with characters, for logs."""

    def close(self) -> None:  # noqa: B027 — most episodes hold nothing
        """Give back what the episode holds; called exactly once."""


class Reward(ABC):
    """One reward term: a pure, quick judgement of a finished transcript."""

    @abstractmethod
    def __call__(self, transcript: Transcript) -> float | None:
        """A finite number, by habit 0 (bad) to 1 (good); None to abstain.

        Must cope with a transcript of no turns and with one that ended in an error.
        """


class Tracker(ABC):
    """Where metrics go besides metrics.jsonl. Must never stop or slow the run."""

    @abstractmethod
    def start(self, *, folder: str, name: str, config: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    @abstractmethod
    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Sampled rollouts, as the rows of rollouts.jsonl; image paths are relative to the run folder."""

    @abstractmethod
    def finish(self, exit_code: int) -> None: ...
