"""The run's own log survives crashes and bad numbers; wandb gets everything or, at worst, stands aside."""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from grpo import wandb_tracker
from grpo.interfaces import Tracker
from grpo.redact import redact
from grpo.tracking import NullTracker, RunLog, read_lines, rollout_row
from grpo.types import Score
from grpo.wandb_tracker import WandbTracker, key_present
from tests.fake_run import maze_image, rollout, turn

FAKE_KEY = "0123456789abcdef" * 2 + "01234567"


class Recorder(Tracker):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self, *, folder: str, name: str, config: Mapping[str, Any]) -> None:
        self.calls.append(("start", folder, name, config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(("log", step, dict(metrics)))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.calls.append(("samples", step, len(rows)))

    def finish(self, exit_code: int) -> None:
        self.calls.append(("finish", exit_code))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def row(step: int = 1, *, total: float = 0.5, **keywords: Any) -> Any:
    played = rollout(turn(**keywords), task="maze/train/3", sample=2)
    return rollout_row(step, played, Score(total=total, terms={"format": 1.0, "grounding": None}), -0.25)


# --- the log ---------------------------------------------------------------------------------------------------


def test_a_step_is_one_line_and_the_tracker_gets_the_same_numbers(tmp_path: Path) -> None:
    tracker = Recorder()
    log = RunLog(tmp_path, tracker)
    log.step(0, {"eval/all/pass_at_1": 0.5})
    loss: Any = np.float32(0.25)
    log.step(1, {"policy/loss": loss, "group/distinct_tasks": 16})
    log.finish(0)
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 0, "eval/all/pass_at_1": 0.5},
        {"step": 1, "policy/loss": 0.25, "group/distinct_tasks": 16.0},
    ]
    assert tracker.calls[1:] == [("log", 1, {"policy/loss": 0.25, "group/distinct_tasks": 16.0}), ("finish", 0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_a_number_that_is_not_finite_is_refused_by_name_and_nothing_is_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="policy/kl of step 3"):
        RunLog(tmp_path, NullTracker()).step(3, {"policy/loss": 0.1, "policy/kl": value})
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("value", ["0.5", None, True, [1.0]])
def test_a_metric_that_is_no_number_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="policy/kl of step 3"):
        RunLog(tmp_path, NullTracker()).step(3, {"policy/kl": value})


def test_a_rollout_row_tells_the_episode_turn_by_turn(tmp_path: Path) -> None:
    image = maze_image((1, 1), seed=0)
    RunLog(tmp_path, NullTracker()).rollouts(4, [row(4, images=(image,), solved=True, done=True)])
    (record,) = lines(tmp_path / "rollouts.jsonl")
    (only_turn,) = record.pop("turns")
    assert record == {
        "step": 4, "split": "train", "task": "maze/train/3", "sample": 2, "solved": True, "stop": "finished",
        "error": None, "total": 0.5, "terms": {"format": 1.0, "grounding": None}, "advantage": -0.25,
        "final_text": None,
    }  # fmt: skip
    assert only_turn["reply"] == "<observation>goal right</observation><action>right</action>"
    assert only_turn["state"] == {"player": [1, 1], "goal": [5, 5]}
    assert np.array_equal(np.asarray(Image.open(tmp_path / only_turn["images"][0])), image)


def test_an_image_seen_twice_is_stored_once(tmp_path: Path) -> None:
    same, other = maze_image((1, 1), seed=0), maze_image((1, 2), seed=0)
    rows = [row(1, images=(same, other)), row(2, images=(same.copy(),))]
    RunLog(tmp_path, NullTracker()).rollouts(1, rows)
    assert len(list((tmp_path / "images").iterdir())) == 2


def test_a_row_without_images_or_turns_is_written(tmp_path: Path) -> None:
    empty = rollout_row(1, rollout(stop="error"), Score(total=0.0, terms={}), None)
    RunLog(tmp_path, NullTracker()).rollouts(1, [empty, row(1)])
    assert [len(record["turns"]) for record in lines(tmp_path / "rollouts.jsonl")] == [0, 1]


def test_a_row_with_nan_is_refused_with_its_task(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="maze/train/3"):
        RunLog(tmp_path, NullTracker()).rollouts(1, [row(total=float("nan"))])


@given(reply=st.text())
def test_any_reply_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, reply: str) -> None:
    folder = tmp_path_factory.mktemp("run")
    RunLog(folder, NullTracker()).rollouts(1, [row(reply=reply)])
    assert next(read_lines(folder / "rollouts.jsonl"))["turns"][0]["reply"] == reply


def test_a_lone_surrogate_in_a_reply_is_written(tmp_path: Path) -> None:
    RunLog(tmp_path, NullTracker()).rollouts(1, [row(reply="\ud83d cut")])
    assert next(read_lines(tmp_path / "rollouts.jsonl"))["turns"][0]["reply"] == "\ud83d cut"


def test_crash_at_seven_and_resume_from_five_loses_and_doubles_no_step(tmp_path: Path) -> None:
    first = RunLog(tmp_path, NullTracker())
    for step in range(8):
        first.step(step, {"rollout/solved": step / 10})
        first.rollouts(step, [row(step)])
    resumed = RunLog(tmp_path, NullTracker())
    resumed.truncate(5)
    assert [line["step"] for line in lines(tmp_path / "rollouts.jsonl")] == [0, 1, 2, 3, 4, 5]
    for step in range(6, 9):
        resumed.step(step, {"rollout/solved": step / 10})
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_half_a_line_is_dropped_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = RunLog(tmp_path, NullTracker())
    log.step(1, {"rollout/solved": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rollout/sol')
    log.truncate(2)
    log.step(2, {"rollout/solved": 0.75})
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert "metrics.jsonl:2 is half a line" in caplog.text


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2"):
        RunLog(tmp_path, NullTracker()).truncate(3)


def test_resuming_before_anything_was_logged_is_no_error(tmp_path: Path) -> None:
    RunLog(tmp_path, NullTracker()).truncate(0)
    assert list(tmp_path.iterdir()) == []


# --- secrets ---------------------------------------------------------------------------------------------------


def test_secrets_are_hidden_by_key_by_value_and_in_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_AbCdEfGhIjKl")
    config = {
        "api_key": "x1",
        "nested": [{"aws_secret_access_key": "x2", "max_prompt_tokens": 4096, "token_limit": "all"}],
        "command": "login --with hf_AbCdEfGhIjKl",
        "proxy": "http://me:hunter2@proxy:8080/",
        "revision": "695e0514",
    }
    assert redact(config) == {
        "api_key": "***",
        "nested": [{"aws_secret_access_key": "***", "max_prompt_tokens": 4096, "token_limit": "all"}],
        "command": "login --with ***",
        "proxy": "http://***@proxy:8080/",
        "revision": "695e0514",
    }


# --- wandb -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, settings or service of the person who runs the tests is seen, and nothing leaves this machine."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "no_config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", "restored after the test")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")


def offline_records(folder: Path) -> list[Any]:
    """The records of every .wandb file below `folder`, oldest session first: LevelDB log blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    records = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, position, pending = path.read_bytes(), 7, b""
        while position + 7 <= len(data):
            if 32768 - position % 32768 < 7:
                position += 32768 - position % 32768
                continue
            _, length, kind = struct.unpack_from("<IHB", data, position)
            pending += data[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):
                record = Record()
                record.ParseFromString(pending)
                records.append(record)
                pending = b""
    return records


def history(folder: Path) -> list[dict[str, Any]]:
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in offline_records(folder)
        if record.WhichOneof("record_type") == "history"
    ]


def wandb_session(folder: Path, steps: range, *, mode: wandb_tracker.Mode = "auto", config: Any = None) -> WandbTracker:
    tracker = WandbTracker(project="mazes", entity=None, mode=mode)
    tracker.start(folder=str(folder), name="trial", config=config or {})
    log = RunLog(folder, tracker)
    for step in steps:
        log.step(step, {"reward/format/mean": step / 10})
    log.finish(0)
    return tracker


def test_without_a_key_wandb_records_offline_what_the_log_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tracker = WandbTracker(project="mazes", entity=None, mode="auto")
    tracker.start(folder=str(tmp_path), name="trial", config={"seed": 7, "api_key": "not-for-others"})
    log = RunLog(tmp_path, tracker)
    log.step(1, {"reward/format/mean": 0.5})
    log.rollouts(1, [row(1, images=(maze_image((1, 1), 0), maze_image((1, 2), 0))), row(1)])
    log.finish(0)
    assert tracker.faults == 0
    records = offline_records(tmp_path)
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, run.display_name, config["seed"], config["api_key"]) == ("mazes", "trial", 7, "***")
    metric_row, table_row = history(tmp_path)
    assert (metric_row["step"], metric_row["reward/format/mean"]) == (1, 0.5)
    assert (table_row["step"], table_row["rollouts/nrows"]) == (1, 2)
    table = json.loads(next(tmp_path.glob("wandb/offline-run-*/files/media/table/rollouts_*")).read_text())
    assert table["columns"][-7:] == ["turn", "image 1", "image 2", "text", "reply", "action", "feedback"]
    assert [line[-6:-4] for line in table["data"]] == [["Image", "Image"], [None, None]]
    staged = [path.read_bytes() for path in tmp_path.glob("wandb/data/artifacts/staging/*")]
    assert {path.read_bytes() for path in (tmp_path / "images").iterdir()} <= set(staged)
    (sync,) = [line for line in caplog.messages if "wandb sync" in line]
    assert Path(sync.split("wandb sync ")[1]).is_dir()


def test_every_metric_is_drawn_against_our_step(tmp_path: Path) -> None:
    wandb_session(tmp_path, range(1))
    metrics = [r.metric for r in offline_records(tmp_path) if r.WhichOneof("record_type") == "metric"]
    assert any((metric.glob_name, metric.step_metric) == ("*", "step") for metric in metrics)


def test_a_resumed_run_keeps_its_wandb_id_and_no_step_collides(tmp_path: Path) -> None:
    wandb_session(tmp_path, range(0, 8))
    time.sleep(1.1)  # wandb names its folders by the second
    wandb_session(tmp_path, range(6, 9))
    ids = {record.run.run_id for record in offline_records(tmp_path) if record.WhichOneof("record_type") == "run"}
    rows = history(tmp_path)
    assert len(ids) == 1
    assert [entry["step"] for entry in rows] == [0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8]
    assert len({entry["_step"] for entry in rows}) == 11
    assert [entry["_step"] for entry in rows] == sorted(entry["_step"] for entry in rows)


@pytest.fixture(params=["refuses", "answers 500", "says 401", "never answers"])
def unreachable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """WANDB_BASE_URL points at a loopback port that behaves as the parameter says."""
    monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    monkeypatch.setattr(wandb_tracker, "INIT_SECONDS", 2)
    if request.param == "refuses":
        yield
        return
    status = {"answers 500": b"500 Internal Server Error", "says 401": b"401 Unauthorized"}.get(request.param)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server, status), daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


def _serve(server: socket.socket, status: bytes | None) -> None:
    held = []
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        held.append(connection)
        if status is not None:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            held.pop().close()


@pytest.mark.usefixtures("unreachable")
def test_an_unreachable_service_costs_one_warning_and_the_data_is_kept_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = wandb_session(tmp_path, range(3))
    assert tracker.faults == 1
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING and "wandb failed" in r.message]
    assert FAKE_KEY not in caplog.text
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert [line["step"] for line in history(tmp_path)] == [0, 1, 2]


class BrokenRun:
    """A wandb run that fails at whatever it is asked."""

    def log(self, row: Mapping[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    def finish(self, exit_code: int) -> None:
        raise RuntimeError("the service died")


def test_a_wandb_that_fails_at_every_call_is_counted_and_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WandbTracker, "_open", lambda self, name, config: BrokenRun())
    tracker = wandb_session(tmp_path, range(3))
    assert tracker.faults == 4
    assert [r.message.split(";")[0] for r in caplog.records] == ["wandb failed at logging", "wandb failed 4 times"]
    assert len(lines(tmp_path / "metrics.jsonl")) == 3


def test_a_wandb_that_never_returns_holds_up_neither_steps_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(wandb_tracker, "FINISH_SECONDS", 0.1)
    monkeypatch.setattr(WandbTracker, "_open", lambda self, name, config: released.wait())
    tracker = wandb_session(tmp_path, range(3))
    released.set()
    assert tracker.faults == 1
    assert len(lines(tmp_path / "metrics.jsonl")) == 3


def test_a_full_queue_drops_and_counts_instead_of_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(wandb_tracker, "FINISH_SECONDS", 0.1)
    monkeypatch.setattr(wandb_tracker, "QUEUE_LENGTH", 2)
    monkeypatch.setattr(WandbTracker, "_open", lambda self, name, config: released.wait())
    tracker = wandb_session(tmp_path, range(5))
    released.set()
    assert tracker.faults >= 3
    assert len(lines(tmp_path / "metrics.jsonl")) == 5


def test_online_without_a_key_asks_nobody_and_records_offline(tmp_path: Path) -> None:
    tracker = wandb_session(tmp_path, range(2), mode="online")
    assert tracker.faults == 1
    assert [line["step"] for line in history(tmp_path)] == [0, 1]


def test_a_key_is_found_in_the_environment_and_in_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not key_present("https://api.wandb.ai")
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {FAKE_KEY}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert key_present("https://api.wandb.ai")
    assert not key_present("https://wandb.example.org")
    monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    assert key_present("https://wandb.example.org")


def test_tracking_is_imported_without_wandb() -> None:
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", "import sys, grpo.tracking; assert 'wandb' not in sys.modules"], check=True)
