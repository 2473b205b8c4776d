"""The peer of the maze benchmark: VisGym's own maze_2d, 9x9 at 225x225 pixels.

Runs under an interpreter of its own, because VisGym occupies the name gymnasium:
    PYTHONPATH=VISGYM_CHECKOUT python visgym_maze.py count result.json repeats
Needs numpy, pygame, cloudpickle, typing-extensions and farama-notifications, and nothing of this project.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium  # pyright: ignore[reportMissingImports]

MOVES = [f"('move', {direction})" for direction in range(4)]


def measure(env: Any, count: int) -> dict[str, float]:
    """Events per CPU second; resets and steps return the frame, so each includes its drawing."""
    rates = {}
    start = time.process_time()
    for seed in range(count):
        env.reset(seed=seed)
    rates["reset"] = count / (time.process_time() - start)

    steps, seconds = 0, 0.0
    for seed in range(count):
        env.reset(seed=seed)
        actions = env.solve()[:-1]
        start = time.process_time()
        for action in actions:
            env.step(action)
        seconds += time.process_time() - start
        steps += len(actions)
    rates["new_steps"] = steps / seconds

    env.reset(seed=0)
    rng = random.Random(0)
    actions = [rng.choice(MOVES) for _ in range(10 * count)]
    start = time.process_time()
    for action in actions:
        env.step(action)
    rates["walk_steps"] = len(actions) / (time.process_time() - start)

    start = time.process_time()
    for seed in range(count):
        env.reset(seed=seed)
        rewards = [env.step(action)[1] for action in env.solve()]
        assert rewards[-1] == 1.0, f"the expert failed on seed {seed}"
    rates["episodes"] = count / (time.process_time() - start)
    return rates


if __name__ == "__main__":
    # Without the wrappers of gymnasium.make, which would only slow it down.
    maze = gymnasium.make("maze_2d/easy").unwrapped
    assert maze.reset(seed=0)[0].shape == (225, 225, 3)
    measure(maze, 20)  # warm up
    Path(sys.argv[2]).write_text(json.dumps([measure(maze, int(sys.argv[1])) for _ in range(int(sys.argv[3]))]))
