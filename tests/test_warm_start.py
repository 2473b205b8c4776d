from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from conftest import TINY
from transformers import AutoTokenizer

from envs.maze_2d import Maze2D
from grpo.policy import Policy, load_image_processor
from grpo.tiny_model import TinySizes, build_model, build_tokenizer
from grpo.warm_start import Phase, demonstrate, train, training_texts

SIZES = TinySizes(
    vocabulary=400,
    text_hidden=32,
    text_layers=2,
    text_heads=1,
    text_ffn=32,
    vision_hidden=32,
    vision_depth=2,
    vision_heads=1,
    vision_ffn=32,
    image_patches=8,
)
PHASE = Phase(
    seed=0,
    steps=6,
    batch_size=2,
    learning_rate=3e-3,
    warmup_steps=2,
    weight_decay=0.01,
    max_grad_norm=1.0,
    slip_probability=0.5,
    imitate_slips=False,
    checkpoint_interval=2,
)


def fresh() -> Policy:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    return Policy(build_model(tokenizer, SIZES, seed=0), tokenizer, load_image_processor(str(TINY), None), name="new")


def test_the_loss_falls_and_an_interrupted_start_goes_on_bit_for_bit(maze: Maze2D, tmp_path: Path) -> None:
    straight, stopped, resumed = fresh(), fresh(), fresh()
    losses = [report.loss for report in train(straight, maze, PHASE, tmp_path / "straight")]
    assert losses[-1] < losses[0] - 0.5
    assert len(list(islice(train(stopped, maze, PHASE, tmp_path / "stopped"), 5))) == 5
    assert [report.step for report in train(resumed, maze, PHASE, tmp_path / "stopped")] == [5, 6]
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_where_slips_are_imitated_the_vision_tower_stays_as_it_is(maze: Maze2D, tmp_path: Path) -> None:
    policy = fresh()
    before = [parameter.detach().clone() for parameter in policy.base.model.visual.parameters()]
    assert len(list(train(policy, maze, PHASE.model_copy(update={"imitate_slips": True}), tmp_path / "work"))) == 6
    assert all(torch.equal(a, b) for a, b in zip(before, policy.base.model.visual.parameters(), strict=True))
    assert list(train(policy, maze, PHASE, tmp_path / "work")) == [], "a finished phase is not run again"


def demonstrated_replies(policy: Policy, maze: Maze2D, *, slip: float, imitate: bool) -> list[tuple[str, bool]]:
    """The replies of one demonstration, and whether each carries loss."""
    task = maze.tasks("train", 1, seed=0)[0]
    trace = demonstrate(policy.chat, policy.vision, maze, task, slip, imitate)
    text = policy.tokenizer.decode(trace.token_ids)
    pieces = text.split("<|im_start|>assistant\n")[1:]
    replies = [piece.split("<|im_end|>")[0] for piece in pieces]
    ends = np.flatnonzero(trace.token_ids == policy.chat.end_token)[1::2]
    return [(reply, bool(trace.action_mask[end])) for reply, end in zip(replies, ends, strict=True)]


def test_without_slips_the_expert_solves_and_every_reply_carries_loss(maze: Maze2D) -> None:
    long = replace(maze, max_turns=20)
    replies = demonstrated_replies(fresh(), long, slip=0.0, imitate=False)
    assert replies[-1] == ("<action>stop</action>", True)
    assert all(trained for _, trained in replies)
    assert len(replies) == long.min_turns(long.tasks("train", 1, seed=0)[0])


def test_slips_carry_loss_only_when_they_are_to_be_imitated(maze: Maze2D) -> None:
    policy = fresh()
    careful = demonstrated_replies(policy, maze, slip=0.6, imitate=False)
    careless = demonstrated_replies(policy, maze, slip=0.6, imitate=True)
    assert [reply for reply, _ in careful] == [reply for reply, _ in careless]
    assert not all(trained for _, trained in careful)
    assert all(trained for _, trained in careless)


def test_an_action_is_one_token_for_a_tokenizer_trained_on_the_games_texts(maze: Maze2D) -> None:
    games = (replace(maze, max_turns=20), replace(maze, max_turns=20, instructions="full"))
    texts = [text for game in games for text in training_texts(game, episodes=100)]
    tokenizer = build_tokenizer(texts, vocabulary=448)
    assert len(tokenizer) == 448
    assert [len(tokenizer.encode(f"<action>{name}</action>")) for name in ("left", "right", "up", "down", "stop")] == [
        5
    ] * 5
