"""What a trial costs beside its own work: our launcher against a bare client loop and against waiting `ray job submit`.

All three run the same program, which ends at once, on one local head. Ours runs two at a time, and so does the bare
loop; the command line tool waits for each. The seconds are of the wall, from the first submission to the last result.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console

from grpo import compose, config
from grpo.cluster_schema import RayCluster
from grpo.config import RunConfig
from launchers import clusters, package, record, sweep
from launchers.ray_jobs import RayJobs
from launchers.record import Job
from scripts.benchmarks.measure import Figure, Goal, Result
from scripts.benchmarks.ray_head import BIN, Head, running

AT_ONCE = 2
PROGRAM = """
import json, pathlib, sys
folder = pathlib.Path(next(word for word in sys.argv if word.startswith("hydra.run.dir=")).partition("=")[2])
(folder / "result.json").write_text(json.dumps({"objective": 1.0}))
"""


def measure(options: argparse.Namespace) -> Result:
    with running() as head, tempfile.TemporaryDirectory() as scratch:
        os.environ["RAY_AUTH_TOKEN"] = head.token
        project = _project(Path(scratch) / "project")
        _bare(head, project, AT_ONCE)  # the first jobs of a head are slow
        rounds = [
            (
                _ours(head, project, Path(scratch) / f"sweep_{number}", options.trials),
                _bare(head, project, options.trials),
            )
            for number in range(options.repeats)
        ]
        ours, bare = (median(each) for each in zip(*rounds, strict=True))
        waiting = _waiting(head, project, min(options.trials, 5))
        before = _memory_mib()
        many = _ours(head, project, Path(scratch) / "many", options.many)
        grown = _memory_mib() - before
    figures = (
        _figure("a trial, two at a time, against a bare client loop", ours, bare, 1 / 1.15),
        _figure("a trial, against the waiting ray job submit", ours, waiting, 2),
        Figure(name=f"a trial of a sweep of {options.many}, all with results", unit="s", ours=many),
        Figure(name="growth of the launcher's memory in it", unit="MiB", ours=grown),
    )
    details = {"rounds": rounds, "waiting": waiting, "many": many, "grown_mib": grown}
    return Result(name="launch", peer="Ray's own client", figures=figures, details=details)


def _figure(name: str, ours: float, peer: float, goal: float) -> Figure:
    wanted = Goal(of="ratio", sense="at least", value=goal)
    return Figure(name=name, unit="s", ours=ours, peer=peer, ratio=peer / ours, goal=wanted)


def _project(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("conf", "grpo", "rewards", "envs", "pyproject.toml"):
        (folder / name).symlink_to(package.ROOT / name)
    shutil.copytree(package.ROOT / "launchers", folder / "launchers", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "train.py").write_text(PROGRAM)
    return folder


def _ours(head: Head, project: Path, folder: Path, trials: int) -> float:
    """Seconds a trial. Raises RuntimeError if one has no result."""
    jobs = [Job(overrides=(f"seed={n}",), folder=str(n), run=run) for n, run in enumerate(_runs(head, trials))]
    settings = jobs[0].run.cluster
    assert isinstance(settings, RayCluster)
    console = Console(file=io.StringIO())
    cluster = RayJobs(settings, settings.address, token=head.token, say=console.print, root=project)
    policy = clusters.policy(jobs[0].run)
    started = time.monotonic()
    records = sweep.launch(jobs, folder, cluster=cluster, policy=policy, stop_on_error=False, console=console)
    seconds = time.monotonic() - started
    if any(each.objective != 1.0 for each in record.read(folder)) or len(records) != trials:
        raise RuntimeError(f"{sum(each.objective == 1.0 for each in records)} of {trials} results")
    return seconds / trials


def _runs(head: Head, trials: int) -> list[RunConfig]:
    words = ["cluster=ray", f"cluster.address={head.address}", f"cluster.python={sys.executable}", "tracker=none"]
    source = compose.Source(folder=package.ROOT / "conf", name="config", extra=None)
    data = compose.script_config(source, [*words, f"cluster.max_concurrent={AT_ONCE}"])
    return [config.parse({**data, "runtime": {**data["runtime"], "seed": seed}}) for seed in range(trials)]


def _bare(head: Head, project: Path, trials: int) -> float:
    """A loop over Ray's client: submit, ask ten times a second, read the result; as short as it can be written."""
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(head.address, headers={"Authorization": f"Bearer {head.token}"})
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(project / "train.py", scratch)
        started = time.monotonic()
        waiting, active = [Path(scratch) / f"out_{number}" for number in range(trials)], {}
        while waiting or active:
            while waiting and len(active) < AT_ONCE:
                folder = waiting.pop()
                folder.mkdir()
                line = f"{sys.executable} train.py hydra.run.dir={folder}"
                active[client.submit_job(entrypoint=line, runtime_env={"working_dir": scratch})] = folder
            for job in [job for job in active if client.get_job_status(job).is_terminal()]:
                assert json.loads((active.pop(job) / "result.json").read_text())["objective"] == 1.0
            time.sleep(0.1)
        return (time.monotonic() - started) / trials


def _waiting(head: Head, project: Path, trials: int) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(project / "train.py", scratch)
        started = time.monotonic()
        for number in range(trials):
            folder = Path(scratch) / f"out_{number}"
            folder.mkdir()
            words = ["job", "submit", "--address", head.address, "--working-dir", scratch, "--"]
            line = [sys.executable, "train.py", f"hydra.run.dir={folder}"]
            subprocess.run([str(BIN / "ray"), *words, *line], env=head.environment, check=True, capture_output=True)
        return (time.monotonic() - started) / trials


def _memory_mib() -> float:
    """The most that this process has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
