"""env=visgym: on VisGym itself where it is installed, and on a stand-in with its interface everywhere.

That our own maze plays by VisGym's rules is held by recorded episodes too (test_maze_2d.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import visgym
from envs.maze_2d import Maze, MazeEpisode
from envs.visgym import VisGym, parse_action
from grpo.types import SPLITS, Task

_found = importlib.util.find_spec("gymnasium")
on_visgym = pytest.mark.skipif(
    _found is None or not hasattr(importlib.import_module("gymnasium"), "VLMEnvMixin"),
    reason="VisGym is not installed; the stand-in and the recorded episodes stand for it",
)
CIRCLE_EDGE = 8
"""Pixels: pygame rounds the edge of the agent's circle in another way. All else of the picture is the same."""
TURNS: dict[str, Any] = {"max_turns": 40, "feedback": True}


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("('move', 0)", ("move", 0)),
        ("I go right. <action>('move', 0)</action>", ("move", 0)),
        ("<action>('move', 1)</action> no, <action>('move', 2)</action>", ("move", 2)),
        ("first ('move', 3), then ('stop', 'stop')", ("move", 3)),
        ('("place", (1, [2, 3]))', ("place", (1, [2, 3]))),
        ("('move', 0", None),
        ("('move', 0, 1)", None),
        ("('move', __import__('os'))", None),
        ("('move', 9**9**9)", None),
        ("('move', " + "(" * 50 + ")" * 50 + ")", None),
        ("('move', " + "1" * 500 + ")", None),
        ("move right", None),
        ("", None),
    ],
)
def test_an_action_is_the_one_in_the_last_tags_or_the_first_of_the_text(reply: str, action: object) -> None:
    assert parse_action(reply) == action


@given(st.text(alphabet="()[]{}'\",<>/action move0\\\x00", max_size=300))
def test_no_reply_makes_the_parser_raise(reply: str) -> None:
    parse_action(reply)


class StandIn:
    """A game of VisGym's interface: go from 0 to the goal, seen as a column of pixels."""

    action_space: Any

    def __init__(self) -> None:
        moves = SimpleNamespace(contains=lambda payload: payload in (0, 1))
        stop = SimpleNamespace(contains=lambda payload: isinstance(payload, str))
        names = {"move": moves, "stop": stop}
        self.action_space = type("Space", (dict,), {"get_function_names": lambda self: list(self)})(names)

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        self.goal, self.place = random.randrange(1, 200), 0  # the global generator, as some families have it
        return self._seen(None)

    def get_prompt(self) -> str:
        return "Go to the end."

    def step(self, action: str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        name, payload = parse_action(action) or ("", 0)
        self.place += {0: 1, 1: -1}.get(payload, 0) if name == "move" else 0
        reward = float(name == "stop" and self.place == self.goal)
        seen, info = self._seen("done" if name == "stop" else "moved")
        return seen, reward, name == "stop", False, info

    def render(self) -> np.ndarray:
        picture = np.zeros((200, 2, 3), dtype=np.uint8)
        picture[self.goal, 0], picture[self.place, 1] = 255, 128
        return picture

    def solve(self) -> list[str]:
        return [*["('move', 0)"] * (self.goal - self.place), "('stop', 'stop')"]

    def close(self) -> None:
        pass

    def _seen(self, told: str | None) -> tuple[np.ndarray, dict[str, Any]]:
        # A board and no picture, as sliding_block has it: the picture is what render draws.
        board = np.array([self.place, self.goal])
        return board, {"board": board, "picture": self.render(), "env_feedback": told}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[VisGym]:
    module = SimpleNamespace(
        make=lambda env_id: SimpleNamespace(unwrapped=StandIn()), error=SimpleNamespace(Error=KeyError)
    )
    monkeypatch.setattr(visgym, "_visgym", lambda: module)
    visgym._shown.cache_clear()
    yield VisGym(env_id="stand_in/easy", **TURNS)
    visgym._shown.cache_clear()


def test_siblings_see_the_same_and_no_two_splits_share_what_is_shown(stand_in: VisGym) -> None:
    before = random.getstate()
    shown: dict[str, set[bytes]] = {}
    for split in SPLITS:
        tasks = stand_in.tasks(split, 8, seed=0)
        assert tasks == stand_in.tasks(split, 8, seed=0)
        assert len({task.id for task in tasks}) == 8
        first = [stand_in.episode(task).observe() for task in tasks]
        again = [stand_in.episode(task).observe() for task in tasks]
        assert all((a.images[0] == b.images[0]).all() for a, b in zip(first, again, strict=True))
        shown[split] = {observation.images[0].tobytes() for observation in first}
    assert not shown["train"] & shown["test"] and not shown["train"] & shown["validation"]
    assert random.getstate() == before  # nobody else's draws are touched


def test_the_expert_solves_and_solved_comes_with_the_end(stand_in: VisGym) -> None:
    (task,) = stand_in.tasks("train", 1, seed=1)
    episode, outcomes = stand_in.episode(task), []
    while not outcomes or not outcomes[-1].done:
        outcomes.append(episode.act(str(episode.expert())))
    assert [outcome.solved for outcome in outcomes] == [False] * (len(outcomes) - 1) + [True]
    with pytest.raises(RuntimeError, match="has ended"):
        episode.act("('move', 0)")


def test_what_is_no_action_costs_a_turn_and_changes_nothing(stand_in: VisGym) -> None:
    episode = stand_in.episode(stand_in.tasks("train", 1, seed=1)[0])
    before = episode.state()
    assert episode.act("hm") == episode.act("('move', 0") != episode.act("('move', 0)")
    assert episode.act("('fly', 1)").action is None and episode.act("('move', 7)").action is None
    assert episode.state()["board"] == [before["board"][0] + 1, before["board"][1]]
    assert "picture" not in before  # too many numbers to be a state


def test_without_visgym_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    env = VisGym(env_id="maze_2d/easy", **TURNS)
    visgym._visgym.cache_clear()
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(NotImplementedError, match="VisGym, which is not installed"):
        env.tasks("train", 1, seed=0)
    other = ModuleType("gymnasium")
    other.__file__ = "/somewhere/gymnasium/__init__.py"
    monkeypatch.setitem(sys.modules, "gymnasium", other)
    with pytest.raises(NotImplementedError, match=r"/somewhere/gymnasium/.* is another gymnasium"):
        env.tasks("train", 1, seed=0)


@on_visgym
@pytest.mark.parametrize("difficulty", ["easy", "hard"])
def test_our_maze_follows_visgyms_rules_on_thousands_of_random_actions(difficulty: str) -> None:
    rng = random.Random(0)
    for seed in range(100):
        game = visgym._Game(f"maze_2d/{difficulty}", seed)
        state, size = game.state(), len(game._info["maze_map"])
        flat = [int(cell) for row in game._info["maze_map"] for cell in row]
        start, goal = (state[name][0] * size + state[name][1] for name in ("agent", "target"))
        ours = MazeEpisode(Maze(size=size, walls=bytes(flat), start=start, goal=goal), 25, False, "")
        assert _differing(ours, game) <= CIRCLE_EDGE
        for _ in range(40):
            action = rng.choice([*(f"('move', {way})" for way in range(5)), "('stop', 'stop')"])
            if action == "('stop', 'stop')" and rng.random() < 0.9:
                continue
            outcome, (told, reward, done) = ours.act(action), game.step(action)
            assert ours.state()["agent"] == game.state()["agent"]
            assert (outcome.done, outcome.solved) == (done, reward == 1.0)
            assert (outcome.feedback == "Cannot move into a wall.") == (told == "Cannot move into a wall.")
            assert _differing(ours, game) <= CIRCLE_EDGE
            if done:
                break


def _differing(ours: MazeEpisode, theirs: visgym._Game) -> int:
    """Pixels that are not the same in both pictures."""
    return int((ours.observe().images[0] != theirs.images[0]).any(axis=2).sum())


@on_visgym
@pytest.mark.parametrize("family", ["maze_2d", "sliding_block", "matchstick_equation", "patch_reassembly"])
def test_a_family_of_visgym_is_solved_by_its_own_solver_within_the_shortest_number_of_turns(family: str) -> None:
    env = VisGym(env_id=f"{family}/easy", **TURNS)
    try:
        tasks = env.tasks("test", 3, seed=0)
    except NotImplementedError as error:
        pytest.skip(str(error))
    for task in tasks:
        turns = _expert_turns(env, task)
        assert env.min_turns(task) in (turns, None)


def _expert_turns(env: VisGym, task: Task) -> int:
    episode = env.episode(task)
    for turn in range(1, env.max_turns + 1):
        outcome = episode.act(str(episode.expert()))
        if outcome.done:
            assert outcome.solved
            return turn
    raise AssertionError(f"{task.id} was not solved in {env.max_turns} turns")
