import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.maze_2d import AGENT_COLOUR, GOAL_COLOUR, WALL_COLOUR, Maze, Maze2D, MazeEpisode, _maze, parse_action
from grpo.types import SPLITS, Task

ACTIONS = ("right", "up", "left", "down", "stop")


def env(**changes: Any) -> Maze2D:
    fields: dict[str, Any] = {
        "size": 7,
        "max_turns": 20,
        "cell_pixels": 16,
        "aligned": False,
        "random_rooms": 0.0,
        "instructions": "brief",
    }
    return Maze2D(**(fields | changes))


def small_maze() -> MazeEpisode:
    """Start at the upper left, goal at the lower left; the only way is right, down, left (two cells each)."""
    drawn = "#####/#   #/### #/#   #/#####".replace("/", "")
    maze = Maze(size=5, walls=bytes(sign == "#" for sign in drawn), start=6, goal=16)
    return MazeEpisode(maze, cell_pixels=8, aligned=False, first_text="go")


def play(episode: MazeEpisode, *actions: str) -> list[str]:
    return [episode.act(f"<action>{action}</action>").feedback for action in actions]


def test_the_goal_is_solved_only_by_stopping_on_it() -> None:
    episode = small_maze()
    play(episode, "right", "right", "down", "down", "left", "left")
    outcome = episode.act("<action>stop</action>")
    assert (outcome.done, outcome.solved) == (True, True)


def test_stopping_elsewhere_ends_the_episode_unsolved() -> None:
    outcome = small_maze().act("('stop', 'stop')")
    assert (outcome.done, outcome.solved) == (True, False)


def test_moving_into_a_wall_does_nothing_but_says_so() -> None:
    episode = small_maze()
    assert play(episode, "up", "right") == ["Cannot move into a wall.", "Action executed successfully."]
    assert episode.state() == {"agent": [1, 2], "goal": [3, 1], "open": ["right", "left"]}


def test_an_ended_episode_refuses_further_actions() -> None:
    episode = small_maze()
    play(episode, "stop")
    with pytest.raises(RuntimeError, match="has ended"):
        episode.act("<action>left</action>")


def test_the_text_rendering_shows_walls_agent_and_goal() -> None:
    assert small_maze().text() == "#####\n#A  #\n### #\n#T  #\n#####"


def test_tuple_directions_are_right_up_left_down() -> None:
    assert [parse_action(f"('move', {index})") for index in range(4)] == ["right", "up", "left", "down"]


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<action>left</action>", "left"),
        ("<ACTION> Left\n</Action>", "left"),
        ("I first thought <action>up</action> but no: <action>down</action>", "down"),
        ("<observation>x</observation><action>('move', 0)</action>", "right"),
        ('("move", 1)', "up"),
        ("(move, 2)", "left"),
        ("I would go\n( 'stop' , 'stop' ) now", "stop"),
    ],
)
def test_every_spelling_of_the_protocol_is_understood(reply: str, action: str) -> None:
    assert parse_action(reply) == action


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "left",
        "<action></action>",
        "<action>jump</action>",
        "<action>left right</action>",
        "</action>left<action>",
        "<action>left",
        "[A, B]",
        '{"a":',
        "(" * 3000,
        "\x00",
        "('move', True)",
        "('move', 4)",
        "('move', -1)",
        "('move', 10**9)",
        "('move', 1e400)",
        "('move', 0.0)",
        "('move', '0', 1)",
        "('stop', 'now')",
        "('finish', 'stop')",
        "('move', " + "9" * 100_000 + ")",
        "<action>" * 12_500,
        "(a," * 33_000,
    ],
)
def test_what_is_no_action_is_none(reply: str) -> None:
    assert parse_action(reply) is None


def test_a_first_tuple_that_is_no_action_is_not_passed_over() -> None:
    assert parse_action("('fly', 0) or ('move', 0)") is None


@given(st.text() | st.text(alphabet="<>/()acionstp'\",move0123 ", max_size=400))
def test_any_text_is_an_action_or_none(reply: str) -> None:
    assert parse_action(reply) in (*ACTIONS, None)


@given(st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_an_invalid_reply_is_answered_briefly_and_the_episode_goes_on(reply: str) -> None:
    outcome = small_maze().act(f"?{reply}".replace("<", "").replace("(", ""))
    assert (outcome.action, outcome.done, outcome.solved) == (None, False, False)
    assert len(outcome.feedback) < 120


def test_splits_share_no_layout() -> None:
    layouts = [{task.id.split("/")[1] for task in env().tasks(split, 1000, seed=0)} for split in SPLITS]
    assert len(set.union(*layouts)) == sum(map(len, layouts)) == 192


def test_held_out_tasks_are_distinct_while_there_are_distinct_ones() -> None:
    assert len({task.id for task in env().tasks("test", 160, seed=0)}) == 160


def test_tasks_follow_from_the_seed_alone() -> None:
    assert env().tasks("train", 5, seed=3) == env().tasks("train", 5, seed=3) != env().tasks("train", 5, seed=4)


def test_random_rooms_do_not_move_a_layout_to_another_split() -> None:
    rooms = {task.id.split("/")[1] for task in env(random_rooms=1.0).tasks("train", 300, seed=0)}
    corners = {task.id.split("/")[1] for task in env().tasks("test", 1000, seed=0)}
    assert not rooms & corners


def test_siblings_see_the_same_first_image_and_other_tasks_another() -> None:
    first, second = env().tasks("train", 2, seed=0)
    frames = [env().episode(task).observe().images[0] for task in (first, first, second)]
    assert np.array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[0], frames[2])


@pytest.mark.parametrize("task", env(size=9).tasks("train", 50, seed=0), ids=lambda task: task.id)
def test_start_and_goal_are_opposite_corners(task: Task) -> None:
    state = env(size=9).episode(task).state()
    assert {*state["agent"], *state["goal"]} == {1, 7}
    assert all(a != b for a, b in zip(state["agent"], state["goal"], strict=True))


@pytest.mark.parametrize("size", [5, 7, 9, 11])
def test_the_expert_solves_every_maze_in_the_fewest_turns(size: int) -> None:
    maze = env(size=size, random_rooms=0.5)
    for task in maze.tasks("test" if size > 5 else "train", 20, seed=0):
        episode, turns = maze.episode(task), 0
        while not (outcome := episode.act(episode.expert())).done:
            turns += 1
        assert outcome.solved
        assert turns + 1 == maze.min_turns(task)


@pytest.mark.parametrize(("turns", "share"), [(15, 0.714), (18, 0.939), (20, 0.939), (30, 1.0)])
def test_the_reachable_share_of_9x9_is_that_of_visgym(turns: int, share: float) -> None:
    maze = env(size=9)
    needed = [maze.min_turns(task) for task in maze.tasks("train", 2000, seed=0)]
    assert np.mean([fewest <= turns for fewest in needed]) == pytest.approx(share, abs=0.03)


def test_wilson_draws_every_layout_equally_often() -> None:
    layouts = Counter(_maze(7, seed, 0.0).digest for seed in range(9600))
    chi_squared = sum((count - 50) ** 2 / 50 for count in layouts.values())
    assert len(layouts) == 192
    assert chi_squared < 247, "the 99.6 % point of chi-squared with 191 degrees of freedom"


def centre(frame: np.ndarray, row: int, column: int, pixels: int) -> tuple[int, ...]:
    return tuple(int(value) for value in frame[row * pixels + pixels // 2, column * pixels + pixels // 2])


def test_the_picture_has_grey_walls_white_paths_a_blue_circle_and_a_red_square() -> None:
    frame = small_maze().observe().images[0]
    assert frame.shape == (40, 40, 3)
    assert centre(frame, 0, 0, 8) == WALL_COLOUR
    assert centre(frame, 1, 2, 8) == (255, 255, 255)
    assert centre(frame, 1, 1, 8) == AGENT_COLOUR
    assert centre(frame, 3, 1, 8) == GOAL_COLOUR
    assert tuple(frame[8, 8]) == (255, 255, 255), "the circle does not fill its cell"
    assert tuple(frame[24, 8]) == GOAL_COLOUR, "the square does"


def test_a_frame_cannot_be_changed_by_who_looks_at_it() -> None:
    with pytest.raises(ValueError, match="read-only"):
        small_maze().observe().images[0][0, 0] = 0


def test_default_and_aligned_pictures_have_the_documented_sizes() -> None:
    def shape(maze: Maze2D) -> tuple[int, ...]:
        return maze.episode(maze.tasks("train", 1, seed=0)[0]).observe().images[0].shape

    assert shape(env(size=9, cell_pixels=25)) == (225, 225, 3)
    assert shape(env(size=7, cell_pixels=16, aligned=True)) == (128, 128, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 8),
        ("size", 3),
        ("size", 1001),
        ("max_turns", 0),
        ("cell_pixels", 2),
        ("cell_pixels", 100_000),
        ("random_rooms", 1.5),
    ],
)
def test_impossible_fields_are_refused_with_their_value(field: str, value: float) -> None:
    build: Callable[..., Maze2D] = env
    with pytest.raises(ValueError, match=f"{field}={value}"):
        build(**{field: value})


RECORDED = json.loads((Path(__file__).parent / "data" / "visgym_maze_2d.json").read_text())


@pytest.mark.parametrize("recorded", RECORDED["episodes"], ids=lambda recorded: f"{len(recorded['steps'])} steps")
def test_every_recorded_step_of_visgyms_own_maze_has_the_same_effect(recorded: dict[str, Any]) -> None:
    """Mazes, actions and results recorded from VisGym's maze_2d, at the commit that the file names."""
    size = len(recorded["maze"])
    maze = Maze(
        size=size,
        walls=bytes(sign == "#" for row in recorded["maze"] for sign in row),
        start=recorded["start"][0] * size + recorded["start"][1],
        goal=recorded["goal"][0] * size + recorded["goal"][1],
    )
    episode = MazeEpisode(maze, cell_pixels=25, aligned=False, first_text="")
    for action, agent, done, reward, blocked in recorded["steps"]:
        outcome = episode.act(action)
        assert episode.state()["agent"] == agent
        assert (outcome.done, outcome.solved) == (done, reward == 1.0)
        assert (outcome.feedback == "Cannot move into a wall.") == blocked
