"""What the GPU proofs claim: figures that do not hold are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_proof import show, table


def lines(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "rollout/solved": 0.5, "perf/step_seconds": 2.0} if step else {"step": 0} for step in steps]


def rows(start: float, trained: float, high: float) -> list[dict[str, Any]]:
    return [
        {"policy": policy, "decoding": decoding, "solved": solved, "low": 0.0, "high": high}
        for decoding in ("greedy", "T=1")
        for policy, solved in (("start", start), ("trained", trained))
    ]


@pytest.mark.parametrize(
    ("steps", "test", "told"),
    [
        ((0, 1, 2, 3), rows(0.7, 0.97, 0.99), []),
        ((0, 1, 2, 3), rows(0.7, 0.92, 0.97), []),  # 0.95 is in its interval
        ((0, 1, 3), rows(0.7, 0.97, 0.99), ["steps [0, 1, 3], wanted each of 0 to 3 once"]),
        ((0, 1, 1, 2, 3), rows(0.7, 0.97, 0.99), ["steps [0, 1, 1, 2, 3], wanted each of 0 to 3 once"]),
        ((0, 1, 2, 3), rows(0.7, 0.8, 0.9), ["solved 0.800 after 0.700, wanted more, and 0.95 in the interval"]),
        ((0, 1, 2, 3), rows(0.97, 0.97, 0.99), ["solved 0.970 after 0.970, wanted more, and 0.95 in the interval"]),
        ((0, 1, 2, 3), [], ["no test split was played"]),
    ],
)
def test_a_claim_that_does_not_hold_is_named(
    steps: tuple[int, ...], test: list[dict[str, Any]], told: list[str]
) -> None:
    assert show.faults(lines(*steps), test, 3, 0.95) == told


def test_a_run_that_was_cut_is_shown_as_far_as_it_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines(0, 1)))
    assert show.main(["--steps", "3", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "1 steps" in said and "step    2.00 s on average of 1" in said
    assert show.main(["--steps", "3", str(tmp_path / "nothing")]) == 1


def test_the_first_step_is_warm_up_and_the_sides_are_compared_by_gpu_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    phases = dict.fromkeys(table.PHASES, 1.0)
    seconds = [("ours", 9.0), ("recipe", 3.0), ("ours", 2.0), ("recipe", 5.0), ("ours", 2.0)]
    assert table.table([{"side": side, "gpu_seconds": each, **phases} for side, each in seconds]) == 2.0
    assert "the recipe takes 2.00 times the GPU-seconds of ours" in capsys.readouterr().out
    assert table.table([{"side": "ours", "gpu_seconds": 9.0, **phases}]) == 0.0
