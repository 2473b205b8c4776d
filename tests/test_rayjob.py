"""One RayJob a trial through the Kubernetes API: held in queues, evicted, without its image, and accounted for."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import configs
import pytest
from hyperpod_stub import wait_for
from kuberay_stub import KubeRayStub
from ray_head import trivial_project
from rich.console import Console
from test_manifests import IMAGE

from launchers import clusters, sweep
from launchers.record import Job, TrialRecord


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeRayStub]:
    (tmp_path / "stub").mkdir()
    made = KubeRayStub(folder=tmp_path / "stub", project=trivial_project(tmp_path / "project"))
    for name, value in made.server.environment.items():
        monkeypatch.setenv(name, value)
    made.server.start()
    yield made
    for name in list(made.jobs):
        made.evict(name)
    made.server.stop()


def launch(tmp_path: Path, *seeds: int, **changes: object) -> tuple[list[TrialRecord], str]:
    settings = {
        **configs.typed(["cluster=hyperpod_rayjob", f"cluster.image={IMAGE}"])[0].cluster.model_dump(),
        "shared_dir": str(tmp_path / "shared"),
        "python": sys.executable,
        "start_minutes": 1,
        **changes,
    }
    runs = [configs.run({"runtime.seed": seed, "cluster": settings}) for seed in seeds]
    jobs = [
        Job(overrides=(f"seed={seed}",), folder=str(n), run=run)
        for n, (seed, run) in enumerate(zip(seeds, runs, strict=True))
    ]
    console = Console(file=io.StringIO(), width=400)
    records = sweep.launch(
        jobs,
        tmp_path / "sweep",
        cluster=clusters.connect(runs[0], console.print),
        policy=clusters.policy(runs[0]),
        stop_on_error=False,
        console=console,
    )
    assert isinstance(console.file, io.StringIO)
    return records, console.file.getvalue()


def test_trials_are_rayjobs_whose_results_come_home_and_failures_keep_their_words(
    stub: KubeRayStub, tmp_path: Path
) -> None:
    records, _ = launch(tmp_path, 1, 3, 2)
    assert [(each.state, each.objective) for each in records] == [
        ("finished", 0.1),
        ("failed", None),
        ("finished", 0.2),
    ]
    assert (records[1].reason or "").startswith("exit code 1: seed 3 is broken")
    assert (tmp_path / "sweep/0/output.log").read_text() == 'seed 1\nGRPO_RESULT {"objective": 0.1}\n'


def test_a_rayjob_that_is_taken_away_is_made_again_and_goes_on(stub: KubeRayStub, tmp_path: Path) -> None:
    def evict() -> None:
        name = wait_for(lambda: next((name for name, job in stub.jobs.items() if job.process), None))
        stub.evict(name)

    thread = threading.Thread(target=evict)
    thread.start()
    records, told = launch(tmp_path, 150)
    thread.join()
    assert [(each.state, each.attempts) for each in records] == [("finished", 2)]
    assert "its RayJob is gone: preempted, or deleted by someone" in told


def test_an_image_that_cannot_be_pulled_fails_in_time_and_by_name(stub: KubeRayStub, tmp_path: Path) -> None:
    stub.pull_fails = True
    (only,), _ = launch(tmp_path, 1, start_minutes=0.05)
    assert (only.state, only.cause) == ("failed", "not started")
    assert "not started within 0.05 minutes: head: ImagePullBackOff: Back-off pulling image" in (only.reason or "")
    assert len(stub.deleted) == 1
