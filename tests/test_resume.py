"""Whether a run goes on, with what, and what is written down; by the command line, with a run that trains nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import configs
import pytest
from test_cli import folders, train

from grpo import config, lock, provenance, resume
from grpo.faults import ConfigError


def refused(*words: str, cwd: Path) -> list[str]:
    """The faults of a command that must end with 2."""
    done = train(*words, cwd=cwd)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr.removeprefix("config error: ").splitlines()


def stopped(tmp_path: Path, *words: str, steps_done: int = 0) -> Path:
    """A run that was killed after its checkpoint of `steps_done`."""
    assert train(*words, cwd=tmp_path).returncode == 0
    (folder,) = folders(tmp_path)
    (folder / "result.json").unlink()
    (folder / "run.json").write_text(json.dumps(provenance.of_run(config.load(folder))))
    if steps_done:
        checkpoint(folder, steps_done)
    return folder


def checkpoint(folder: Path, step: int) -> None:
    target = folder / f"checkpoints/step_{step:06d}"
    target.mkdir(parents=True)
    (target / "DONE").write_text("{}")


def test_resume_goes_on_in_the_same_folder_with_its_own_config(tmp_path: Path) -> None:
    folder = stopped(tmp_path, "adapter.rank=8", "algorithm=dapo")
    assert train(f"resume={folder}", cwd=tmp_path).returncode == 0
    assert folders(tmp_path) == [folder]
    kept = config.load(folder)
    assert (kept.adapter.model_dump()["rank"], kept.algorithm.name) == (8, "dapo")


def test_resume_wants_a_run_folder_that_exists(tmp_path: Path) -> None:
    assert refused("resume=nowhere", cwd=tmp_path) == [
        "resume: wants a run folder (with its config.yaml), got 'nowhere'"
    ]


def test_a_finished_run_is_not_resumed_and_the_ways_on_are_told(tmp_path: Path) -> None:
    train(cwd=tmp_path)
    (folder,) = folders(tmp_path)
    (told,) = refused(f"resume={folder}", "runtime.steps=80", "resume_accepts_changes=true", cwd=tmp_path)
    assert "It has no checkpoint left to go on from. For a new phase" in told
    checkpoint(folder, 60)
    (told,) = refused(f"resume={folder}", cwd=tmp_path)
    assert told == (
        f"resume: {folder} is finished: 60 steps done, eval/all/pass_at_1 0.002; there is nothing left to resume. "
        f"For more steps: resume={folder} runtime.steps=80 resume_accepts_changes=true. "
        f"For a new phase from its adapter: adapter.start_from={folder}/adapter"
    )
    assert refused(f"resume={folder}", "runtime.steps=80", cwd=tmp_path) == [told]
    assert refused(f"resume={folder}", "resume_accepts_changes=true", cwd=tmp_path) == [told]
    assert train(f"resume={folder}", "runtime.steps=80", "resume_accepts_changes=true", cwd=tmp_path).returncode == 0


def test_all_changes_are_refused_together_each_with_old_and_new_value(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    record = json.loads((folder / "run.json").read_text())
    record["code_hashes"]["task_success"] = "abc"
    (folder / "run.json").write_text(json.dumps(record | {"commit": "another"}))
    faults = refused(f"resume={folder}", "runtime.steps=80", "adapter.rank=8", "algorithm.clip_low=0.1", cwd=tmp_path)
    assert [fault.split(": ")[0] for fault in faults] == [
        "adapter.rank",
        "algorithm.clip_low",
        "runtime.steps",
        "code_hashes.task_success",
    ]
    assert "was 16 when the run started, now 8; a resumed run goes on as it was: this can never change" in faults[0]
    assert "was 60 when the run started, now 80" in faults[2]
    assert "resume_accepts_changes=true" in faults[2]
    assert "was 'abc' when the run started, now '" in faults[3]


@pytest.mark.parametrize("word", ["adapter.rank=8", "model.revision=abc", "adapter.target_modules=all-linear"])
def test_what_can_never_change_is_refused_even_then(word: str, tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    faults = refused(f"resume={folder}", word, "resume_accepts_changes=true", cwd=tmp_path)
    assert all("this can never change on resume" in fault for fault in faults)


def test_fewer_steps_than_are_done_are_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path, steps_done=40)
    words = (f"resume={folder}", "resume_accepts_changes=true")
    assert refused(*words, "runtime.steps=39", cwd=tmp_path) == [
        "runtime.steps: 39 is below the 40 steps that the run has done; give 40 or more"
    ]
    assert train(*words, "runtime.steps=40", cwd=tmp_path).returncode == 0


def test_another_base_is_refused_even_where_changes_are_accepted(tmp_path: Path) -> None:
    folder = stopped(tmp_path, steps_done=20)
    record = json.loads((folder / "run.json").read_text())
    now = record["base"]["tokenizer"]
    (folder / "run.json").write_text(json.dumps(record | {"base": record["base"] | {"tokenizer": "older"}}))
    found = resume.faults(folder, configs.run({"resume": str(folder), "resume_accepts_changes": True}))
    assert [str(fault) for fault in found] == [
        f"base.tokenizer: was 'older' when the run started, now '{now}': the run is no longer made from the same; "
        "restore it (the adapter belongs to it)"
    ]


def test_accepted_changes_are_written_down_and_hold_for_the_next_resume(tmp_path: Path) -> None:
    folder = stopped(tmp_path, steps_done=20)
    (folder / "result.json").write_text("{}")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"data_version": "older"}))
    before = (folder / "config.yaml").read_text()
    changes = {"runtime.steps": 80, "resume": str(folder), "resume_accepts_changes": True}
    resume.enter(folder, configs.run(changes))
    after = json.loads((folder / "run.json").read_text())
    (change,) = after["changes"]
    assert change.pop("time").endswith("+00:00")
    assert change == {
        "after_step": 20,
        "config": {"runtime.steps": [60, 80]},
        "made_from": {"data_version": ["older", None]},
    }
    assert after["data_version"] is None
    assert (folder / "config.before_step_21.yaml").read_text() == before
    assert config.load(folder) == configs.run({"runtime.steps": 80})
    assert not (folder / "result.json").exists()
    assert resume.faults(folder, configs.run({"runtime.steps": 80, "resume": str(folder)})) == []


def test_a_config_edited_by_hand_is_refused_until_the_change_is_accepted(tmp_path: Path) -> None:
    folder = stopped(tmp_path, "adapter.rank=8", steps_done=20)
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace("kl_coefficient: 0.0", "kl_coefficient: 0.5"))
    (told,) = refused(f"resume={folder}", cwd=tmp_path)
    assert told.startswith("config_hash: was '")
    assert "config.yaml in its folder was edited; restore it, or add resume_accepts_changes=true" in told
    resume.enter(folder, config.load(folder))
    assert train(f"resume={folder}", cwd=tmp_path).returncode == 0
    (change,) = json.loads((folder / "run.json").read_text())["changes"]
    assert (change["after_step"], list(change["made_from"])) == (20, ["config_hash"])


def test_another_commit_or_package_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = stopped(tmp_path)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"commit": "older", "packages": {"torch": "1.0"}}))
    now = configs.run({"resume": str(folder)})
    assert resume.faults(folder, now) == []
    with caplog.at_level("WARNING", logger="grpo"):
        resume.enter(folder, now)
    assert "resumed with another commit: 'older' when the run started" in caplog.text
    assert "another packages.torch: '1.0'" in caplog.text
    assert "changes" not in json.loads((folder / "run.json").read_text())


def test_a_run_killed_before_run_json_was_written_gets_it_at_resume(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    (folder / "run.json").unlink()
    resume.enter(folder, configs.run({"resume": str(folder)}))
    assert json.loads((folder / "run.json").read_text())["seed"] == 0


def test_a_second_process_is_refused_and_told_the_first_one_and_a_killed_one_never_blocks(tmp_path: Path) -> None:
    stub = [sys.executable, str(configs.ROOT / "tests/stub_train.py"), "runtime.seed=6", "hydra.run.dir=run"]
    first = subprocess.Popen(stub, cwd=tmp_path)
    wait_for(tmp_path / "run/config.yaml", tmp_path / "run" / lock.LOCK)
    (told,) = refused("resume=run", cwd=tmp_path)
    who = f"process {first.pid} on {socket.gethostname()}"
    assert told == f"resume: {who} is at work in {tmp_path}/run; wait for its end, or stop it, then resume"
    first.send_signal(signal.SIGKILL)
    first.wait()
    with lock.held(tmp_path / "run"):
        pass
    assert not (tmp_path / "run" / lock.LOCK).exists()


def test_a_holder_that_ends_while_it_is_asked_for_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / lock.LOCK).write_text(json.dumps({"pid": 7, "host": socket.gethostname()}))

    def ends(file: object, how: int) -> None:
        (tmp_path / lock.LOCK).unlink()
        raise BlockingIOError

    monkeypatch.setattr(lock.fcntl, "flock", ends)
    assert lock.holder(tmp_path) == 7


def test_whoever_interrupts_a_run_is_told_how_it_goes_on(tmp_path: Path) -> None:
    stub = [sys.executable, str(configs.ROOT / "tests/stub_train.py"), "runtime.seed=6", "hydra.run.dir=run"]
    process = subprocess.Popen(stub, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run/asleep")
    (tmp_path / "run/checkpoints/step_000020").mkdir(parents=True)
    (tmp_path / "run/checkpoints/step_000020/DONE").touch()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert told.splitlines()[-2:] == [f"resume={tmp_path}/run goes on from step_000020", "interrupted"]
    assert process.returncode == 1


def wait_for(*paths: Path) -> None:
    for _ in range(600):
        if all(path.exists() and path.read_text() for path in paths):
            return
        time.sleep(0.05)
    raise AssertionError(f"{paths} never came")


def test_without_locks_on_the_file_system_the_holders_pid_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(file: object, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    here = socket.gethostname()
    (tmp_path / lock.LOCK).write_text(json.dumps({"pid": os.getppid(), "host": here}))
    with pytest.raises(ConfigError, match=f"process {os.getppid()} on {here} is at work"), lock.held(tmp_path):
        pass
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / lock.LOCK).write_text(json.dumps({"pid": ended.pid, "host": here}))
    with lock.held(tmp_path):
        assert json.loads((tmp_path / lock.LOCK).read_text())["pid"] == os.getpid()
    (tmp_path / lock.LOCK).write_text(json.dumps({"pid": 1, "host": "another-node"}))
    with lock.held(tmp_path):
        assert "process 1 on another-node had it last: make sure that it has ended" in caplog.text


def test_a_run_of_an_older_version_goes_on_once_it_is_given_the_key_that_it_lacks(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace("  keep_checkpoints: 2\n", "  gone_since: 1\n"))
    told = "\n".join(refused(f"resume={folder}", cwd=tmp_path))
    assert "runtime.keep_checkpoints: missing" in told
    assert "give it: runtime.keep_checkpoints=VALUE" in told
    assert "take it away: '~runtime.gone_since'" in told
    words = (f"resume={folder}", "runtime.keep_checkpoints=3", "~runtime.gone_since")
    assert refused(*words, cwd=tmp_path)[0].startswith("runtime.gone_since: was 1 when the run started, now null")
    assert train(*words, "resume_accepts_changes=true", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_damaged_record_of_a_run_is_named_with_both_ways_on(content: str, tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    (folder / "run.json").write_text(content)
    (told,) = refused(f"resume={folder}", cwd=tmp_path)
    assert told.startswith(f"resume: {folder / 'run.json'} is damaged")
    (folder / "run.json").unlink()
    assert train(f"resume={folder}", cwd=tmp_path).returncode == 0


def test_a_sweep_is_not_resumed_as_a_run_and_the_right_word_is_told(tmp_path: Path) -> None:
    assert train("-m", "runtime.seed=1,2", "hydra.sweep.dir=many", cwd=tmp_path).returncode == 0
    (told,) = refused("resume=many", cwd=tmp_path)
    assert told.endswith(
        f"a sweep: the sweep's own command with hydra.sweep.dir={tmp_path / 'many'} runs what is missing"
    )


def test_a_folder_that_cannot_even_be_looked_up_is_a_fault_of_its_key(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (told,) = refused("resume=loop", cwd=tmp_path)
    assert told.startswith("resume: 'loop' cannot be read: ")
