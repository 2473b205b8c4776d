"""What every environment must do, for each option of conf/env: a new one is tested the moment its yaml exists."""

from __future__ import annotations

import json
import pickle

import configs
import numpy as np
import pytest

from grpo import config
from grpo.interfaces import Env
from grpo.types import SPLITS, Task

OPTIONS = sorted(path.stem for path in (configs.CONF / "env").glob("*.yaml"))
HOSTILE = ("", "\x00", "(" * 3000, "<action>" * 1000, "</action>" + "9" * 100_000, "<|image_pad|>", "{'a':")


def built(option: str) -> Env:
    return config.build_env(configs.typed([f"env={option}"])[0])


def playable(option: str) -> bool:
    try:
        built(option).tasks("train", 1, seed=0)
    except NotImplementedError:
        return False
    return True


PLAYABLE = [option for option in OPTIONS if playable(option)]


@pytest.fixture(params=PLAYABLE)
def env(request: pytest.FixtureRequest) -> Env:
    return built(request.param)


def some(env: Env) -> Task:
    return env.tasks("train", 1, seed=0)[0]


@pytest.mark.parametrize("option", sorted(set(OPTIONS) - set(PLAYABLE)))
def test_an_env_that_cannot_be_played_yet_says_so_in_a_sentence(option: str) -> None:
    with pytest.raises(NotImplementedError, match=r"\w+ \w+ \w+"):
        built(option).tasks("train", 1, seed=0)


def test_mazes_and_manifests_can_be_played() -> None:
    assert {"maze_2d_mini", "maze_2d_easy", "maze_2d_hard", "manifest"} <= set(PLAYABLE)


def test_tasks_follow_from_split_count_and_seed_and_are_plain_data(env: Env) -> None:
    first, again = env.tasks("train", 3, seed=7), env.tasks("train", 3, seed=7)
    assert first == again
    assert len({task.id for task in first}) == 3
    assert all(json.loads(json.dumps(dict(task.data))) == dict(task.data) for task in first)


def test_no_task_of_one_split_occurs_in_another(env: Env) -> None:
    ids = [{task.id for task in env.tasks(split, 40, seed=0)} for split in SPLITS]
    assert len(set.union(*ids)) == sum(map(len, ids))


def test_two_episodes_of_a_task_show_the_same_and_looking_changes_nothing(env: Env) -> None:
    one, other = env.episode(some(env)), env.episode(some(env))
    for _ in range(2):
        a, b = one.observe(), other.observe()
        assert a.text == b.text
        assert all(np.array_equal(x, y) for x, y in zip(a.images, b.images, strict=True))
    assert one.state() == other.state()
    assert one.text() == other.text()


def test_images_are_rgb_bytes_that_nobody_can_change(env: Env) -> None:
    for image in env.episode(some(env)).observe().images:
        assert (image.dtype, image.ndim, image.shape[2]) == (np.dtype("uint8"), 3, 3)
        assert not image.flags.writeable


def test_the_expert_solves_in_the_fewest_turns_and_nobody_acts_after_the_end(env: Env) -> None:
    task = some(env)
    episode, turns, outcome = env.episode(task), 0, None
    while outcome is None or not outcome.done:
        reply = episode.expert()
        assert not env.expert_replies or reply in env.expert_replies
        outcome, turns = episode.act(reply or ""), turns + 1
    assert outcome.solved
    assert turns == env.min_turns(task)
    with pytest.raises(RuntimeError):
        episode.act("anything")
    episode.close()


@pytest.mark.parametrize("reply", HOSTILE, ids=lambda reply: repr(reply[:12]))
def test_no_reply_raises_or_solves_and_feedback_stays_short(env: Env, reply: str) -> None:
    outcome = env.episode(some(env)).act(reply)
    assert not outcome.solved
    assert outcome.action is None
    assert len(outcome.feedback) <= 500


def test_it_can_be_sent_to_a_worker(env: Env) -> None:
    assert pickle.loads(pickle.dumps(env)).tasks("test", 2, seed=0) == env.tasks("test", 2, seed=0)
