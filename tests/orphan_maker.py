"""A run that leaves processes behind, as one with vLLM does: `orphan_maker.py FOLDER plain|ray [ADDRESS]`.

Writes the pids of them to FOLDER/pids, then waits until FOLDER/end is there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo.engines import orphans

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def plain(_: Mapping[str, str], address: str | None) -> list[int]:
    """A child with a session of its own, and a fork, as SkyRL's router is one."""
    started = subprocess.Popen(SLEEP, start_new_session=True)
    forked = os.fork()
    if forked == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    return [started.pid, forked]


def with_ray(environment: Mapping[str, str], address: str | None) -> list[int]:
    """An actor whose child is as vLLM's engine: spawned, with a title, and ending by nobody's death."""
    import ray

    if address is None:
        ray.init(num_cpus=1, include_dashboard=False, runtime_env={"env_vars": dict(environment)})
    else:
        ray.init(address=address, runtime_env={"env_vars": {**environment, "PYTHONPATH": os.environ["PYTHONPATH"]}})

    class Server:
        def __init__(self) -> None:
            from orphan_maker import engine  # by its name: what this file defines as the run's is not the worker's

            spawn = multiprocessing.get_context("spawn")
            titled = spawn.Event()
            self.engine = spawn.Process(target=engine, args=(titled,))
            self.engine.start()
            titled.wait(60)

        def pids(self) -> list[int]:
            assert self.engine.pid is not None
            return [os.getpid(), self.engine.pid]

    server: Any = ray.remote(num_cpus=0)(Server).remote()
    keep.append(server)
    return ray.get(server.pids.remote())


keep: list[Any] = []
"""What would end if nothing held it."""


def engine(titled: Any) -> None:
    from ray import _raylet

    _raylet.setproctitle("VLLM::EngineCore")  # pyright: ignore[reportAttributeAccessIssue]
    titled.set()
    time.sleep(600)


def main(folder: Path, make: Callable[[Mapping[str, str], str | None], list[int]], address: str | None) -> None:
    orphans.PATIENCE_SECONDS = 0.5
    with orphans.ended_with_this_process() as environment:
        pids = make(environment, address)
        (folder / "pids.part").write_text(json.dumps(pids))
        (folder / "pids.part").rename(folder / "pids")
        while not (folder / "end").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), {"plain": plain, "ray": with_ray}[sys.argv[2]], *(sys.argv[3:] or [None]))
