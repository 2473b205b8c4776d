"""Policies without a model: each is a function from what is seen to a reply, played in a real env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from grpo.interfaces import Env, Episode, Reward
from grpo.reward import Mixture
from grpo.types import Rollout, Score, Task, Transcript, Turn
from tests.builders import rollout

Replier = Callable[[Episode, Random], str]

SLIPS = 0.5
"""Share of the turns in which the honest player errs; it then solves about two mazes in three."""
FILLER = (
    "Let me look at this picture with great care before I decide anything at all, since a maze has many ways and only "
    "few of them lead on; having weighed all that I can see, and being as sure as one can be, I now choose my step: "
)


def honest(slips: float) -> Replier:
    """Goes the expert's way, but for a random action in that share of the turns."""

    def reply(episode: Episode, rng: Random) -> str:
        slip = rng.random() < slips
        return f"<action>{rng.choice(['left', 'right', 'up', 'down'])}</action>" if slip else str(episode.expert())

    return reply


def stops_at_once(episode: Episode, rng: Random) -> str:
    return "<action>stop</action>"


def always_the_same(episode: Episode, rng: Random) -> str:
    return "<action>right</action>"


def alternates(episode: Episode, rng: Random) -> str:
    return f"<action>{rng.choice(['left', 'right'])}</action>"


def pads_with_empty_lines(episode: Episode, rng: Random) -> str:
    return "\n" * 300 + honest(SLIPS)(episode, rng)


def pads_by_repeating(episode: Episode, rng: Random) -> str:
    return "I am quite sure of it. " * 12 + honest(SLIPS)(episode, rng)


def pads_with_prose(episode: Episode, rng: Random) -> str:
    return FILLER + honest(SLIPS)(episode, rng)


def copies_the_prompt(episode: Episode, rng: Random) -> str:
    return episode.observe().text


def lists_every_answer(episode: Episode, rng: Random) -> str:
    return f"left right up down, {rng.random()}"


@dataclass(frozen=True, kw_only=True)
class Length(Reward):
    """A bad term: pays for long replies."""

    def __call__(self, transcript: Transcript) -> float:
        return min(1.0, sum(len(turn.reply) for turn in transcript.turns) / len(transcript.turns) / 200)


@dataclass(frozen=True, kw_only=True)
class Leak(Reward):
    """A bad term: pays where the right action is named anywhere in the reply."""

    def __call__(self, transcript: Transcript) -> float:
        named = [any(way in turn.reply for way in turn.state["open"]) for turn in transcript.turns]
        return sum(named) / len(named)


def play(env: Env, task: Task, reply: Replier, *, sample: int, rng: Random) -> Rollout:
    """One episode; a word counts as a token, and nothing of it could be trained on."""
    episode, turns, done = env.episode(task), list[Turn](), False
    while not done and len(turns) < env.max_turns:
        shown, state, text = episode.observe(), episode.state(), reply(episode, rng)
        outcome = episode.act(text)
        done = outcome.done
        turns.append(
            Turn(
                observation=shown,
                state=state,
                reply=text,
                completion_tokens=len(text.split()) + 1,
                truncated=False,
                outcome=outcome,
            )
        )
    stop = "finished" if done else "turn_limit"
    played = Transcript(task=task, turns=tuple(turns), stop=stop, error=None)
    return rollout(transcript=played, sample=sample)


def play_all(
    env: Env,
    tasks: Sequence[Task],
    replier: Callable[[str], Replier],
    mixture: Mixture,
    *,
    siblings: int,
    luck: str = "",
) -> tuple[tuple[Rollout, ...], tuple[Score, ...]]:
    """`siblings` episodes of each task; `replier` says who plays an episode, by its name. Other `luck`, other draws."""
    rollouts = tuple(
        play(env, task, replier(f"{task.id}/{sample}"), sample=sample, rng=Random(f"{task.id}/{sample}{luck}"))
        for task in tasks
        for sample in range(siblings)
    )
    return rollouts, tuple(mixture(each.transcript, where="a scripted episode") for each in rollouts)
