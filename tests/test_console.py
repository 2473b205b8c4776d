from __future__ import annotations

import logging
from pathlib import Path

import pytest

from grpo.alarms import Alarm
from grpo.console import Console

METRICS = {
    "reward/total/mean": 1.0,
    "rollout/solved": 0.75,
    "group/zero_gradient": 0.25,
    "policy/loss": -0.001,
    "policy/grad_norm": 0.1,
    "rollout/turns": 9.5,
    "perf/step_seconds": 2.0,
    "perf/tokens_per_second": 9000.0,
}


def row(policy: str) -> dict[str, object]:
    terms = {"task_success": 0.9, "answer_format": None}
    return {
        "policy": policy,
        "decoding": "greedy",
        "solved": 0.9,
        "low": 0.85,
        "high": 0.94,
        "episodes": 160,
        "reward": 1.1,
        "terms": terms,
        "turns": 10.0,
    }


def test_a_step_is_one_line_with_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(steps=25)
    with console.logging_to(tmp_path / "train.log"):
        console.step(3, METRICS, ())
    printed = capsys.readouterr().out
    assert printed == (
        "step  3/25  reward 1.000  solved 0.750  no signal 25%  loss -0.0010  grad 0.100  turns 9.5  2.0 s  "
        "9,000 tokens/s\n"
    )
    assert printed.strip() in (tmp_path / "train.log").read_text()


def test_an_alarm_is_said_when_it_comes_up_and_again_after_it_was_gone(tmp_path: Path) -> None:
    console, alarm = Console(steps=25), Alarm(name="no_signal", message="nothing to compare")
    with console.logging_to(tmp_path / "train.log"):
        for raised in ((alarm,), (alarm,), (), (alarm,)):
            console.step(1, METRICS, raised)
    assert (tmp_path / "train.log").read_text().count("ALARM no_signal: nothing to compare") == 2


def test_the_closing_table_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    summary = {"rows": [row("start"), row("trained")], "tokens_per_second": 9000.0, "seconds": 60.0}
    Console(steps=1).closing_table(summary)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("trained greedy") and "0.900 (0.85-0.94)" in line for line in lines)
    assert "…" not in "".join(lines)


def test_the_trace_of_a_failure_is_in_the_file_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Console(steps=1).logging_to(tmp_path / "train.log"):
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("grpo.run").exception("the run ended early")
    assert "ValueError: broken" in (tmp_path / "train.log").read_text()
    assert capsys.readouterr().out == ""
