"""Any environment of VisGym, by its id. VisGym is imported on first use: it occupies the name gymnasium.

VisGym has no splits and no tasks, only seeds, and two seeds may show the same puzzle. So the split of a seed goes by
the hash of what it shows (prompt and first picture), and siblings of a group are played from one seed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from envs.drawing import distinct
from grpo.interfaces import Env, Episode
from grpo.types import Observation, Outcome, Split, Task

NOT_UNDERSTOOD = "No valid action found. End the reply with one action, such as ('stop', 'stop')."
LONGEST_ACTION = 200
"""Characters; the longest that VisGym's own solvers write are below 60."""
DEEPEST = 4
"""Brackets within brackets of an action."""
SHORTEST_SOLVERS = ("maze_2d", "sliding_block")
"""Families whose `solve` is a breadth-first search. The others' solutions may be longer than need be."""
_STATE_NUMBERS = 128
"""A part of the state with more numbers than this is left out: a picture, most likely."""
_ACTION = re.compile(r"\(\s{0,8}['\"]\w{1,40}['\"]\s{0,8},", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class VisGym(Env):
    env_id: str
    """`family/difficulty`, as VisGym names it: `maze_2d/easy`."""
    max_turns: int
    feedback: bool
    """Tell the model in words what its action did."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w+/\w+", self.env_id):
            raise ValueError(
                f"env_id={self.env_id!r} is no VisGym id; write family/difficulty, maze_2d/easy for example"
            )
        if self.max_turns < 1:
            raise ValueError(f"max_turns={self.max_turns} leaves no reply; use 1 or more")

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """Raises NotImplementedError where VisGym, or what this env needs besides, is not installed."""
        return distinct(self._draws(split, seed), count)

    def _draws(self, split: Split, seed: int) -> Iterator[Task]:
        rng = random.Random(f"{split}/{seed}")
        while True:
            task_seed = rng.getrandbits(31)
            shown = _shown(self.env_id, task_seed)
            if _split(shown) == split:
                yield Task(id=f"visgym/{self.env_id}/{shown.hex()}", split=split, seed=task_seed, data={})

    def episode(self, task: Task) -> Episode:
        return VisGymEpisode(self.env_id, task.seed, self.feedback)

    def min_turns(self, task: Task) -> int | None:
        if self.env_id.split("/")[0] not in SHORTEST_SOLVERS:
            return None
        game = _Game(self.env_id, task.seed)
        try:
            actions = game.solution()
            # The maze's solver says stop twice.
            return next(place for place, action in enumerate(actions, start=1) if action.startswith("('stop'"))
        finally:
            game.close()


class VisGymEpisode(Episode):
    def __init__(self, env_id: str, seed: int, feedback: bool) -> None:
        self._game = _Game(env_id, seed)
        self._text = self._game.prompt
        self._feedback = feedback
        self._done = False
        self._plan: list[str] = []
        """What is left of the solution that is being followed: some solvers do not find on from half-way."""

    def observe(self) -> Observation:
        return Observation(text=self._text, images=self._game.images)

    def state(self) -> Mapping[str, Any]:
        return self._game.state()

    def act(self, reply: str) -> Outcome:
        if self._done:
            raise RuntimeError("this episode has ended; make another one with env.episode(task)")
        action = parse_action(reply)
        if action is None:
            self._text = NOT_UNDERSTOOD
            return Outcome(action=None, feedback=NOT_UNDERSTOOD, done=False, solved=False)
        if self._plan and parse_action(self._plan[0]) == action:
            del self._plan[0]
        else:
            self._plan = []
        told, reward, self._done = self._game.step(repr(action))
        self._text = told if self._feedback else ""
        return Outcome(
            action=repr(action) if self._game.allows(*action) else None,
            feedback=told,
            done=self._done,
            # Every family pays 1 for success and 0 for anything else.
            solved=self._done and reward >= 1.0,
        )

    def expert(self) -> str | None:
        self._plan = self._plan or self._game.solution()
        return f"<action>{self._plan[0]}</action>"

    def text(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self._game.state().items())

    def close(self) -> None:
        self._game.close()


def parse_action(reply: str) -> tuple[str, Any] | None:
    """The action in a reply: in the last `<action>…</action>`, else the first `('name', …)` of the text.

    VisGym reads actions as Python literals; nothing long or deep gets that far. A first tuple that is no action makes
    the reply invalid; no later one is picked in its place.
    """
    end = reply.rfind("</action>")
    start = reply.rfind("<action>", 0, end) if end >= 0 else -1
    text = reply[start + len("<action>") : end] if start >= 0 else reply
    found = _ACTION.search(text)
    literal = _balanced(text[found.start() : found.start() + LONGEST_ACTION]) if found else None
    if literal is None:
        return None
    try:
        action = ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return None
    return action if isinstance(action, tuple) and len(action) == 2 else None


def _balanced(text: str) -> str | None:
    """`text` up to the bracket that closes its first one; None if none does, or if they nest too deep."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth > DEEPEST:
            return None
        if depth == 0:
            return text[: place + 1]
    return None


class _Game:
    """One VisGym environment, reset to one seed."""

    def __init__(self, env_id: str, seed: int) -> None:
        self._env = _make(env_id)
        with _seeded(seed):
            seen, self._info = self._env.reset(seed=seed)
        self.prompt = str(self._env.get_prompt())
        self.images = self._pictures(seen)

    def step(self, action: str) -> tuple[str, float, bool]:
        """(what VisGym says about it, reward, ended)."""
        seen, reward, terminated, truncated, self._info = self._env.step(action)
        self.images = self._pictures(seen)
        return str(self._info.get("env_feedback") or ""), float(reward), bool(terminated or truncated)

    def allows(self, name: str, payload: Any) -> bool:
        space = self._env.action_space
        try:
            return name in space.get_function_names() and bool(space[name].contains(payload))
        except (TypeError, ValueError, KeyError):  # a space may expect another kind of payload
            return False

    def solution(self) -> list[str]:
        """Actions that solve it from here; VisGym's solvers leave the state as it is."""
        with _seeded(0):
            return [str(action) for action in self._env.solve()]

    def state(self) -> dict[str, Any]:
        return {name: value for name, given in self._info.items() if (value := _plain(given)) is not None}

    def close(self) -> None:
        self._env.close()

    def _pictures(self, seen: Any) -> tuple[np.ndarray, ...]:
        """What is seen as uint8 pictures; drawn by `render` where the observation is not one itself."""
        for image in (seen, self._env.render()):
            if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
                image = image.copy()
                image.setflags(write=False)
                return (image,)
        raise RuntimeError(f"{type(self._env).__name__} shows no RGB picture, but {type(seen).__name__}")


def _plain(value: Any) -> Any:
    """JSON values, or None for what is none, too large, or only repeats the feedback."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= _STATE_NUMBERS else None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(name): plain for name, inner in value.items() if (plain := _plain(inner)) is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value] if len(value) <= _STATE_NUMBERS else None
    return value if isinstance(value, str | int | float | bool) else None


@lru_cache(maxsize=65536)
def _shown(env_id: str, seed: int) -> bytes:
    """Hash of what a seed shows first."""
    game = _Game(env_id, seed)
    try:
        digest = hashlib.blake2b(game.prompt.encode(), digest_size=8)
        for image in game.images:
            digest.update(repr(image.shape).encode() + image.tobytes())
        return digest.digest()
    finally:
        game.close()


def _split(shown: bytes) -> Split:
    share = int.from_bytes(shown, "big") % 20
    return "train" if share < 13 else "validation" if share < 15 else "test"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Some families draw from the global generators; within this context those follow from `seed`."""
    ours, theirs = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)


def _make(env_id: str) -> Any:
    gymnasium = _visgym()
    try:
        # Without the wrappers of gymnasium.make: they count steps and look at observations, and so do we.
        return gymnasium.make(env_id).unwrapped
    except gymnasium.error.Error as error:
        raise NotImplementedError(f"VisGym has no {env_id}: {error}") from error
    # Missing packages (ModuleNotFoundError) and missing pictures (ValueError, OSError), which it downloads apart.
    except (ImportError, ValueError, OSError) as error:
        raise NotImplementedError(f"VisGym's {env_id} cannot be made here: {error}") from error


@lru_cache(maxsize=1)
def _visgym() -> ModuleType:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would look for a screen
    try:
        import gymnasium  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise NotImplementedError(
            f"env=visgym needs VisGym, which is not installed ({error}); README, 'VisGym', says how"
        ) from error
    if not hasattr(gymnasium, "VLMEnvMixin"):
        raise NotImplementedError(
            f"env=visgym needs VisGym, but {gymnasium.__file__} is another gymnasium; uninstall that one first"
        )
    return gymnasium
