"""Local sweeps: a process a trial, failures told and not hidden, the same command again runs what is missing."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import configs
import pytest
from rich.console import Console
from test_cli import train

from grpo.config import ConfigError
from launchers import local, record, sweep, table, trial
from launchers.cluster import Attempt
from launchers.local import LocalProcesses
from launchers.record import Job, TrialRecord

QUICK = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
seed = int(folder.joinpath("config.yaml").read_text().split("seed: ")[1].split()[0])
folder.joinpath("starts").open("a").write("x")
print("seed", seed)
if seed == 3:
    sys.exit("seed 3 is broken")
if seed != 4:
    folder.joinpath("result.json").write_text(json.dumps({"objective": float("nan") if seed == 5 else seed / 10}))
"""


def quick(folder: Path) -> list[str]:
    """A trial that takes milliseconds; its objective is a tenth of its seed."""
    return [sys.executable, "-c", QUICK, str(folder)]


def job(seed: int, number: int) -> Job:
    return Job(overrides=(f"runtime.seed={seed}",), folder=str(number), run=configs.run({"runtime.seed": seed}))


def launch(folder: Path, *seeds: int, stop: bool = False) -> tuple[list[TrialRecord], str]:
    console = Console(file=io.StringIO(), width=400)
    jobs = [job(seed, number) for number, seed in enumerate(seeds)]
    cluster = LocalProcesses(quick)
    records = sweep.launch(jobs, folder, cluster=cluster, policy=local.POLICY, stop_on_error=stop, console=console)
    assert isinstance(console.file, io.StringIO)
    return records, console.file.getvalue()


def test_trials_run_in_order_and_their_objectives_come_back(tmp_path: Path) -> None:
    records, _ = launch(tmp_path, 2, 1)
    assert [(record.folder, record.state, record.objective) for record in records] == [
        ("0", "finished", 0.2),
        ("1", "finished", 0.1),
    ]
    assert (tmp_path / "0/output.log").read_text() == "seed 2\n"


def test_a_failure_is_told_when_it_happens_and_hides_no_other(tmp_path: Path) -> None:
    records, told = launch(tmp_path, 3, 4, 5, 1)
    assert [record.state for record in records] == ["failed", "failed", "failed", "finished"]
    reasons = [record.reason or "" for record in records]
    assert reasons[0].startswith("exit code 1: seed 3 is broken; see ")
    assert reasons[1].startswith("it left no objective in ")
    assert reasons[2] == "its objective is no finite number: nan"
    assert told.index("seed 3 is broken") < told.index("trial 1: runtime.seed=4 started")


def test_a_killed_trial_is_a_failed_one(tmp_path: Path) -> None:
    kill = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    console = Console(file=io.StringIO())
    cluster = LocalProcesses(lambda folder: kill)
    (killed,) = sweep.launch(
        [job(1, 0)], tmp_path, cluster=cluster, policy=local.POLICY, stop_on_error=False, console=console
    )
    assert (killed.reason or "").startswith("killed by SIGKILL: no output")


def test_stop_on_error_says_how_many_were_not_run(tmp_path: Path) -> None:
    records, told = launch(tmp_path, 1, 3, 2, 6, stop=True)
    assert [record.state for record in records] == ["finished", "failed", "waiting", "waiting"]
    assert "2 trial(s) were not run" in told


def test_the_same_sweep_again_runs_only_what_has_no_result(tmp_path: Path) -> None:
    launch(tmp_path, 1, 3)
    records, told = launch(tmp_path, 1, 3, 2)
    assert [record.state for record in records] == ["finished", "failed", "finished"]
    assert "trial 0: runtime.seed=1 finished" in told and "(done before)" in told
    assert (tmp_path / "0/starts").read_text() == "x"
    assert (tmp_path / "1_attempt_1/output.log").exists()
    assert (tmp_path / "1/starts").read_text() == "x"


def test_trials_are_known_by_their_config_and_not_by_their_place(tmp_path: Path) -> None:
    launch(tmp_path, 1, 2)
    records, _ = launch(tmp_path, 2, 7, 1)
    assert [(record.folder, record.objective) for record in records] == [("1", 0.2), ("2", 0.7), ("0", 0.1)]


def test_a_trial_with_a_checkpoint_is_resumed_in_place(tmp_path: Path) -> None:
    launch(tmp_path, 3)
    (tmp_path / "0/checkpoints/step_000010").mkdir(parents=True)
    (tmp_path / "0/checkpoints/step_000010/DONE").touch()
    assert trial.command(tmp_path / "0")[-1] == f"resume={tmp_path}/0"
    launch(tmp_path, 3)
    assert (tmp_path / "0/starts").read_text() == "xx"


def test_names_and_folders_do_not_make_another_trial() -> None:
    elsewhere = configs.run({"name": "other", "runtime.output_dir": "/tmp/x"})
    assert record.fingerprint(elsewhere) == record.fingerprint(configs.run())
    assert record.fingerprint(configs.run({"adapter.rank": 8})) != record.fingerprint(configs.run())


def test_two_processes_do_not_work_on_one_sweep(tmp_path: Path) -> None:
    with record.locked(tmp_path), pytest.raises(ConfigError, match="another process runs the trials"):
        launch(tmp_path, 1)


def test_the_closing_table_is_sorted_by_the_objective_and_written_as_csv(tmp_path: Path) -> None:
    launch(tmp_path, 1, 3, 7)
    console = Console(file=io.StringIO(), width=200)
    assert table.finish(tmp_path, console) == 1
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [(row["runtime.seed"], row["objective"], row["state"]) for row in rows] == [
        ("7", "0.7", "finished"),
        ("1", "0.1", "finished"),
        ("3", "", "failed"),
    ]


def sweep_folder(where: Path) -> Path:
    (folder,) = where.glob("outputs/maze/sweep_*")
    return folder


def test_a_sweep_from_the_command_line_ends_with_1_after_a_failure_and_goes_on_when_given_its_folder(
    tmp_path: Path,
) -> None:
    words = ["-m", "tracker=none", "runtime.seed=3,1", "algorithm.learning_rate=1e-3,2e-3"]
    done = train(*words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    folder = sweep_folder(tmp_path)
    trials = json.loads((folder / "sweep.json").read_text())["trials"]
    assert [trial["state"] for trial in trials] == ["failed", "failed", "finished", "finished"]
    # A trial is told by what was swept, and by nothing else that was typed.
    assert trials[0]["overrides"] == ["runtime.seed=3", "algorithm.learning_rate=0.001"]
    assert "exit code 1: RuntimeError: seed 3 is broken" in done.stdout
    again = train(
        "-m",
        "tracker=none",
        "runtime.seed=1",
        "algorithm.learning_rate=1e-3,2e-3",
        f"hydra.sweep.dir={folder}",
        cwd=tmp_path,
    )
    assert again.stdout.count("(done before)") == 2
    assert sweep_folder(tmp_path) == folder


def test_a_sweep_with_one_impossible_trial_starts_none(tmp_path: Path) -> None:
    done = train("-m", "algorithm.group_size=4,1", cwd=tmp_path)
    assert done.returncode == 2
    assert "in 1 of 2 trials: algorithm.group_size=1" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_optimising_sweeper_gets_the_objective(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    optuna = ["hydra/sweeper=optuna", "hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=3"]
    done = train("-m", *optuna, "hydra.sweeper.n_jobs=1", "algorithm.learning_rate=choice(1e-3,2e-3)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = (sweep_folder(tmp_path) / "optimization_results.yaml").read_text()
    records = record.read(sweep_folder(tmp_path))
    assert f"best_value: {max(record.objective or 0 for record in records)}" in found


def test_an_unknown_answer_to_failures_is_refused(tmp_path: Path) -> None:
    done = train("-m", "runtime.seed=0,1", "hydra.launcher.on_error=halt", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "config error: hydra.launcher.on_error: wants 'continue' or 'stop', got 'halt'\n",
    )


def test_an_interrupt_stops_the_running_trial_and_records_it(tmp_path: Path) -> None:
    command = [sys.executable, str(configs.ROOT / "tests/stub_train.py"), "-m", "runtime.seed=6,1"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("outputs/maze/sweep_*/0/overrides.txt")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "trial 0 interrupted; the same command with hydra.sweep.dir=" in told
    assert [record.state for record in record.read(sweep_folder(tmp_path))] == ["interrupted", "waiting"]


ORPHAN = """
import json, pathlib, sys, time
from grpo import lock
folder = pathlib.Path(sys.argv[1])
with lock.held(folder):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
    folder.joinpath("result.json").write_text(json.dumps({"objective": 0.5}))
"""


def orphan(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """A trial at work whose sweep was killed."""
    folder.mkdir(parents=True)
    words = [sys.executable, "-c", ORPHAN, str(folder), str(seconds)]
    process = subprocess.Popen(words, cwd=configs.ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def running(sweep: Path, seed: int) -> record.TrialRecord:
    records: list[TrialRecord] = []
    record.place(job(seed, 0), records)
    found = dataclasses.replace(records[0], state="running", attempts=1, started=time.time())
    record.write(sweep, [found])
    return found


def test_a_trial_that_outlived_its_killed_sweep_is_waited_for_and_not_started_twice(tmp_path: Path) -> None:
    process = orphan(tmp_path / "0", 3)
    running(tmp_path, 1)
    (found,), _ = launch(tmp_path, 1)
    assert (found.state, found.objective, found.attempts) == ("finished", 0.5, 1)
    assert not (tmp_path / "0/starts").exists()
    assert process.wait(timeout=20) == 0


def test_a_trial_that_outlived_its_killed_sweep_can_be_stopped(tmp_path: Path) -> None:
    process = orphan(tmp_path / "0", 60)
    known, cluster = running(tmp_path, 1), LocalProcesses(quick)
    attempt = Attempt(sweep=tmp_path, folder="0", number=1, fingerprint=known.fingerprint, run=job(1, 0).run)
    assert cluster.status(attempt).phase == "running"
    cluster.stop(attempt)
    assert cluster.status(attempt).phase == "lost"
    assert process.wait(timeout=20) != 0


def test_only_a_sweep_of_which_nothing_was_sent_is_withdrawn(tmp_path: Path) -> None:
    for name in ("unsent/0/config.yaml", "unsent/multirun.yaml", "sent/sweep.json", "other/0/train.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [record.withdraw(tmp_path / name) for name in ("unsent", "sent", "other")] == [True, False, False]
    assert not (tmp_path / "unsent").exists()
    (tmp_path / "busy").mkdir()
    with record.locked(tmp_path / "busy"):
        assert not record.withdraw(tmp_path / "busy")
