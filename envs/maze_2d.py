"""Find the way through a maze that is seen as a picture; plays like VisGym's maze_2d.

Rules and protocol are VisGym's (same grid, corners, colours, actions and 1/0 success on `stop`), so a policy trained
on one plays the other. The splits are by the *layout's* hash, not by seed: a 7x7 maze has only 192 layouts, and
seed-disjoint splits would share them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import Any, ClassVar, Literal

import numpy as np

from envs.drawing import distinct
from grpo.interfaces import Env, Episode
from grpo.types import Observation, Outcome, Split, Task

DIRECTIONS: tuple[str, ...] = ("right", "up", "left", "down")
"""In the order of the tuple form: `('move', 0)` is right."""

LARGEST, LONGEST_SIDE = 99, 4096
"""Cells and pixels a side; more is no picture that a model reads, and checking its tasks would take minutes."""

WALL_COLOUR = (169, 169, 169)
PATH_COLOUR = (255, 255, 255)
GOAL_COLOUR = (255, 0, 0)
AGENT_COLOUR = (0, 0, 255)

MOVED = "Action executed successfully."
BLOCKED = "Cannot move into a wall."
NOT_UNDERSTOOD = "No valid action found. End the reply with <action>left|right|up|down|stop</action>."
ENDED = "The episode has ended."

_TUPLE = re.compile(r"\(\s{0,8}['\"]?(\w{1,16})['\"]?\s{0,8},\s{0,8}['\"]?(\w{1,16})['\"]?\s{0,8}\)", re.ASCII)
_TUPLE_ACTIONS = {("move", str(index)): name for index, name in enumerate(DIRECTIONS)} | {("stop", "stop"): "stop"}
_KEYWORDS = frozenset((*DIRECTIONS, "stop"))


def parse_action(reply: str) -> str | None:
    """The action in a reply: `right`, `up`, `left`, `down`, `stop`, or None if there is none.

    Two spellings: a keyword or tuple in the last `<action>…</action>`, else the first tuple `('move', 0)` in the text.
    A first tuple that is no action makes the reply invalid; no later one is picked in its place. Linear in the length.
    """
    return _parse_short(reply) if len(reply) <= 128 else _parse(reply)


def _parse(reply: str) -> str | None:
    text = reply.lower()
    end = text.rfind("</action>")
    start = text.rfind("<action>", 0, end) if end >= 0 else -1
    if start >= 0:
        text = text[start + len("<action>") : end].strip()
        if text in _KEYWORDS:
            return text
    match = _TUPLE.search(text)
    return _TUPLE_ACTIONS.get((match[1], match[2])) if match else None


# The replies of a trained policy are few and short; a step is about twice as fast for not parsing them again.
_parse_short = lru_cache(maxsize=4096)(_parse)


@dataclass(frozen=True, kw_only=True)
class Maze2D(Env):
    """Mazes of `size` x `size` cells, walls included, with rooms at odd coordinates."""

    size: int
    max_turns: int
    cell_pixels: int
    aligned: bool
    """Add one wall row and column at the bottom and right, so that every 2 x 2 cells are one visual token when
    `cell_pixels` is the model's patch size. For tiny models; VisGym's picture has none."""
    random_rooms: float
    """Share of tasks whose start and goal are any two rooms; the others use opposite corners, as VisGym does."""
    instructions: Literal["full", "brief"]
    """`brief` for models whose vocabulary makes a long prompt expensive."""
    expert_replies: ClassVar[tuple[str, ...]] = tuple(f"<action>{name}</action>" for name in (*DIRECTIONS, "stop"))

    def __post_init__(self) -> None:
        if not 5 <= self.size <= LARGEST or self.size % 2 == 0:
            raise ValueError(f"size={self.size} must be odd, so that rooms lie at odd coordinates, from 5 to {LARGEST}")
        if self.cell_pixels < 4:
            raise ValueError(f"cell_pixels={self.cell_pixels} leaves no room for the circle; use 4 or more")
        if (self.size + 1) * self.cell_pixels > LONGEST_SIDE:
            most = LONGEST_SIDE // (self.size + 1)
            raise ValueError(
                f"cell_pixels={self.cell_pixels} makes pictures of {self.size * self.cell_pixels:,} pixels a side; "
                f"use {most} or less at size={self.size}"
            )
        if self.max_turns < 1:
            raise ValueError(f"max_turns={self.max_turns} allows no reply; use 1 or more")
        if not 0.0 <= self.random_rooms <= 1.0:
            raise ValueError(f"random_rooms={self.random_rooms} is a share; use 0 to 1")

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        return distinct(self._draws(split, seed), count)

    def _draws(self, split: Split, seed: int) -> Iterator[Task]:
        rng = Random(f"{split}/{seed}")
        while True:
            task_seed = rng.getrandbits(48)
            maze = self._maze(task_seed)
            if maze.split == split:
                yield Task(id=f"maze_2d_{self.size}/{maze.name}", split=split, seed=task_seed, data={})

    def episode(self, task: Task) -> MazeEpisode:
        return MazeEpisode(self._maze(task.seed), self.cell_pixels, self.aligned, self._first_text)

    def min_turns(self, task: Task) -> int:
        maze = self._maze(task.seed)
        return maze.distances[maze.start] + 1

    def _maze(self, seed: int) -> Maze:
        return _maze(self.size, seed, self.random_rooms)

    @cached_property
    def _first_text(self) -> str:
        return _FULL.format(size=self.size) if self.instructions == "full" else _BRIEF


_BRIEF = "Blue circle to red square. <action>left|right|up|down|stop</action>"
_FULL = """You are in a {size}x{size} maze. Walls are gray and paths are white. You are the blue circle; \
your goal is to reach the red square.

Available actions:
1. 'move': go one cell in one of four directions. Format: `('move', direction)` where direction is an integer:
   - 0=right, 1=up, 2=left, 3=down
2. 'stop': end the episode. Format: `('stop', 'stop')`

Success: you stop on the red square.

Give exactly one action in each reply, as a tuple such as ('move', 0) or ('stop', 'stop'), or as one word in tags: \
<action>left</action>, where the word is one of left, right, up, down, stop."""


class MazeEpisode(Episode):
    """One walk through one maze; positions are flat cell indices, row * size + column."""

    def __init__(self, maze: Maze, cell_pixels: int, aligned: bool, first_text: str) -> None:
        self._maze = maze
        self._picture = maze.picture(cell_pixels, aligned)
        self._cell = maze.start
        self._text = first_text
        self._done = False

    def observe(self) -> Observation:
        return Observation(text=self._text, images=(self._picture.frame(self._cell),))

    def state(self) -> Mapping[str, Any]:
        maze = self._maze
        open_ways = [name for name, step in zip(DIRECTIONS, maze.steps, strict=True) if maze.is_open(self._cell + step)]
        return {"agent": maze.coordinates(self._cell), "goal": maze.coordinates(maze.goal), "open": open_ways}

    def act(self, reply: str) -> Outcome:
        if self._done:
            raise RuntimeError("this episode has ended; make another one with env.episode(task)")
        action = parse_action(reply)
        if action == "stop":
            self._done = True
            self._text = ENDED
            return _outcome(action, ENDED, True, self._cell == self._maze.goal)
        if action is None:
            self._text = NOT_UNDERSTOOD
            return _outcome(None, NOT_UNDERSTOOD, False, False)
        target = self._cell + self._maze.steps[DIRECTIONS.index(action)]
        if self._maze.is_open(target):
            self._cell = target
            self._text = MOVED
        else:
            self._text = BLOCKED
        return _outcome(action, self._text, False, False)

    def expert(self) -> str:
        if self._cell == self._maze.goal:
            return "<action>stop</action>"
        return f"<action>{self._maze.way(self._cell)}</action>"

    def text(self) -> str:
        return self._maze.text(self._cell)


@lru_cache(maxsize=256)
def _outcome(action: str | None, feedback: str, done: bool, solved: bool) -> Outcome:
    return Outcome(action=action, feedback=feedback, done=done, solved=solved)


@dataclass(frozen=True, kw_only=True, eq=False)
class Maze:
    size: int
    walls: bytes
    """One byte a cell, row by row: 1 is wall."""
    start: int
    goal: int

    @cached_property
    def digest(self) -> bytes:
        """Of the layout alone: mazes that differ only in start and goal share it, and so share their split."""
        return hashlib.blake2b(self.walls, digest_size=8).digest()

    @property
    def name(self) -> str:
        return f"{self.digest.hex()}/{self.start}-{self.goal}"

    @property
    def split(self) -> Split:
        share = int.from_bytes(self.digest, "big") % 20
        return "train" if share < 13 else "validation" if share < 15 else "test"

    @cached_property
    def steps(self) -> tuple[int, int, int, int]:
        """What each direction adds to a flat index."""
        return (1, -self.size, -1, self.size)

    def is_open(self, cell: int) -> bool:
        return not self.walls[cell]

    def coordinates(self, cell: int) -> list[int]:
        return list(divmod(cell, self.size))

    @cached_property
    def distances(self) -> dict[int, int]:
        """Moves from each open cell to the goal, by breadth-first search."""
        distances = {self.goal: 0}
        frontier = [self.goal]
        for cell in frontier:
            for step in self.steps:
                neighbour = cell + step
                if not self.walls[neighbour] and neighbour not in distances:
                    distances[neighbour] = distances[cell] + 1
                    frontier.append(neighbour)
        return distances

    def way(self, cell: int) -> str:
        """The direction that shortens the way to the goal (a maze is a tree: there is just one)."""
        nearer = self.distances[cell] - 1
        return next(
            name for name, step in zip(DIRECTIONS, self.steps, strict=True) if self.distances.get(cell + step) == nearer
        )

    def picture(self, cell_pixels: int, aligned: bool) -> Picture:
        return _picture(self, cell_pixels, aligned)

    def text(self, agent: int) -> str:
        """The maze in characters: # wall, A agent, T goal."""
        signs = ["#" if wall else " " for wall in self.walls]
        signs[self.goal] = "T"
        signs[agent] = "A"
        return "\n".join("".join(signs[row * self.size : (row + 1) * self.size]) for row in range(self.size))


class Picture:
    """Frames of one maze, each drawn once and then shared by all episodes that pass there."""

    def __init__(self, maze: Maze, cell_pixels: int, aligned: bool) -> None:
        self._size, self._pixels = maze.size, cell_pixels
        kinds = np.frombuffer(maze.walls, dtype=np.uint8).reshape(maze.size, maze.size).copy()
        kinds.flat[maze.goal] = 2
        if aligned:
            kinds = np.pad(kinds, ((0, 1), (0, 1)), constant_values=1)
        # Widened before and heightened after colouring: whole rows are then copied, twice as fast as pixels.
        self._background = _COLOURS[kinds.repeat(cell_pixels, axis=1)].repeat(cell_pixels, axis=0)
        self._on_path, self._on_goal = _agent_tiles(cell_pixels)
        self._goal = maze.goal
        self._frames: dict[int, np.ndarray] = {}

    def frame(self, agent: int) -> np.ndarray:
        """uint8[height, width, 3], read-only, with the agent on the given cell."""
        frame = self._frames.get(agent)
        if frame is None:
            frame = self._background.copy()
            row, column = divmod(agent, self._size)
            pixels = self._pixels
            tile = self._on_goal if agent == self._goal else self._on_path
            frame[row * pixels : (row + 1) * pixels, column * pixels : (column + 1) * pixels] = tile
            frame.setflags(write=False)
            self._frames[agent] = frame
        return frame


_COLOURS = np.array([PATH_COLOUR, WALL_COLOUR, GOAL_COLOUR], dtype=np.uint8)

# Siblings play the same maze at the same time, so a short memory serves them all; 64 pictures of 225 x 225 pixels
# with every frame drawn are about 300 MB.
_picture = lru_cache(maxsize=64)(Picture)


@lru_cache(maxsize=16)
def _agent_tiles(cell_pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """The agent's cell on a path and on the goal: a circle, a quarter cell in radius, placed as pygame places it."""
    offsets = np.arange(cell_pixels) + 0.5 - cell_pixels // 2
    disc = offsets[:, None] ** 2 + offsets[None, :] ** 2 <= (cell_pixels // 4) ** 2
    colours = np.array([PATH_COLOUR, GOAL_COLOUR], dtype=np.uint8)
    on_path, on_goal = np.where(disc[:, :, None], np.array(AGENT_COLOUR, dtype=np.uint8), colours[:, None, None, :])
    return on_path, on_goal


@lru_cache(maxsize=1024)
def _maze(size: int, seed: int, random_rooms: float) -> Maze:
    rng = Random(seed)
    walls = _wilson(size, rng)
    if rng.random() < random_rooms:
        rooms = [row * size + column for row in range(1, size, 2) for column in range(1, size, 2)]
        start, goal = rng.sample(rooms, 2)
    else:
        first, last = size + 1, size * (size - 1) - 2
        right, below = 2 * size - 2, size * (size - 2) + 1
        start, goal = rng.choice([(first, last), (last, first), (right, below), (below, right)])
    return Maze(size=size, walls=walls, start=start, goal=goal)


def _wilson(size: int, rng: Random) -> bytes:
    """A uniform spanning tree over the rooms, by Wilson's loop-erased random walks (STOC 1996).

    Each room outside the tree walks at random until it meets the tree, keeping only its last exit from every room it
    passed, which erases the loops; the kept way is then carved.
    """
    ways, cells = _grid(size)
    walls = bytearray(b"\1" * (size * size))
    in_tree = bytearray(len(cells))
    exits = [(0, 0)] * len(cells)
    root = rng.randrange(len(cells))
    in_tree[root] = 1
    walls[cells[root]] = 0
    random = rng.random
    for first in range(len(cells)):
        room = first
        while not in_tree[room]:
            options = ways[room]
            exits[room] = way = options[int(random() * len(options))]
            room = way[0]
        room = first
        while not in_tree[room]:
            in_tree[room] = 1
            following, wall_step = exits[room]
            walls[cells[room]] = 0
            walls[cells[room] + wall_step] = 0
            room = following
    return bytes(walls)


@lru_cache(maxsize=16)
def _grid(size: int) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """For each room its ways out, as (next room, step to the wall between them), and its cell."""
    rooms = (size - 1) // 2
    ways = [
        [
            (row * rooms + column + room_step, wall_step)
            for allowed, room_step, wall_step in (
                (column < rooms - 1, 1, 1),
                (row > 0, -rooms, -size),
                (column > 0, -1, -1),
                (row < rooms - 1, rooms, size),
            )
            if allowed
        ]
        for row in range(rooms)
        for column in range(rooms)
    ]
    cells = [(2 * row + 1) * size + 2 * column + 1 for row in range(rooms) for column in range(rooms)]
    return ways, cells
