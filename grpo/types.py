"""The data that flows through a run; each stage returns a new value and fills nothing in later.

`Transcript` is what a person could read; `TokenTrace` is what the optimiser needs. Rewards, logs and the
report use only the first, batch and loss only the second.

Words, used everywhere and in no other sense: *task* (one problem, seed included), *episode* (one play of a task),
*turn* (observation, reply, outcome), *transcript* (the turns of one episode), *rollout* (a transcript with its
tokens), *group* (the rollouts that share a task), *reward term* (one named judgement of a transcript), *score*
(its terms and their weighted total), *advantage* (a score compared within its group).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    import numpy as np

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

StopReason = Literal["finished", "turn_limit", "token_limit", "error"]
"""Why an episode ended: the env said done; `max_turns` used up; the transcript no longer fits
`max_prompt_tokens`; the env raised (`Transcript.error` says what)."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem. Everything an episode shows follows from it, so the siblings of a group see the same."""

    id: str
    """Unique within an env; `maze_2d_7x7/train/91c0…/3` for example."""
    split: Split
    seed: int
    data: Mapping[str, Any]
    """What the env needs besides the seed (an answer, image paths); JSON values only."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """Something said before the first turn: the system's instructions, or an example of how to answer."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the model is shown in one turn."""

    text: str
    images: tuple[np.ndarray, ...]
    """Each uint8, height x width x 3 (RGB), read-only. May be empty."""
    before: tuple[Message, ...] = ()
    """What comes before it; only a first observation may have any."""
    places: tuple[int, ...] = ()
    """Where in `text` each image stands, as the number of characters before it: (0,) is an image and then the text.
    Empty: the images follow the text."""

    def __post_init__(self) -> None:
        if not self.places:
            return
        bounds = (0, *self.places, len(self.text))
        if len(self.places) != len(self.images) or any(a > b for a, b in pairwise(bounds)):
            raise ValueError(
                f"places={list(self.places)} must say for each of {len(self.images)} images, in their order, how many "
                f"of the text's {len(self.text)} characters stand before it; leave it empty to show them after the text"
            )


Shown = TypeVar("Shown")


def interleaved(text: str, places: Sequence[int], images: Sequence[Shown]) -> list[str | Shown]:
    """An observation's text and images (or what stands for them) in the order in which the model is shown them."""
    if not places:
        return [text, *images]
    pieces: list[str | Shown] = []
    for image, start, end in zip(images, (0, *places), places, strict=False):
        pieces += [text[start:end], image]
    pieces.append(text[places[-1] :])
    return [piece for piece in pieces if not isinstance(piece, str) or piece]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a reply led to."""

    action: str | None
    """The action as understood, in the env's canonical spelling (`right`); None when the reply held none."""
    feedback: str
    """What the env says about it; the text of the next observation."""
    done: bool
    solved: bool
    """The goal is reached, judged by the env alone. True only together with `done`."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    observation: Observation
    state: Mapping[str, Any]
    """The true state when the observation was made (JSON values), for reward terms that check what was stated."""
    reply: str
    """The model's text without its end marker."""
    completion_tokens: int
    truncated: bool
    """The reply ran into `max_completion_tokens` without its end marker."""
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """One episode as a person could read it."""

    task: Task
    turns: tuple[Turn, ...]
    stop: StopReason
    error: str | None

    @property
    def solved(self) -> bool:
        return bool(self.turns) and self.turns[-1].outcome.solved

    @property
    def completion_tokens(self) -> int:
        return sum(turn.completion_tokens for turn in self.turns)

    @property
    def invalid_actions(self) -> int:
        return sum(turn.outcome.action is None for turn in self.turns)

    @property
    def truncated(self) -> bool:
        """A reply was cut, or the episode outgrew its token budget: the model did not end it."""
        return self.stop == "token_limit" or any(turn.truncated for turn in self.turns)


@dataclass(frozen=True, kw_only=True)
class TokenTrace:
    """The token side of a rollout. Arrays are 1-D over the T tokens of the whole multi-turn sequence."""

    token_ids: np.ndarray
    """int64[T]: prompt, replies and later observations exactly as the model consumed and produced them."""
    action_mask: np.ndarray
    """bool[T]: True where the token was sampled by the policy, its end-of-turn marker included."""
    logprobs: np.ndarray
    """float32[T]: log-probability at sampling, at the sampling temperature; 0 where not sampled."""
    images: tuple[np.ndarray, ...]
    """The images in the order of their placeholders in `token_ids`."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    transcript: Transcript
    sample: int
    """Which sibling of its group, 0..G-1."""
    trace: TokenTrace
    final_text: str | None
    """The env's drawing of how the episode ended, for logs; None if it raised."""
    drift: int
    """Tokens in which `trace` differs from what was sampled; anything but 0 is a bug."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One rollout, judged."""

    total: float
    """Sum of weight x term over the terms that count."""
    terms: Mapping[str, float | None]
    """Unweighted value of every term; None where it abstained."""
    failed: tuple[str, ...] = ()
    """Terms that abstained because they raised, took too long or ended their process."""
