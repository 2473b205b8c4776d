"""A sweep's page holds every trial and stays small however many there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_sweep import build_sweep

from grpo import report_sweep
from grpo.report_data import group_advice, raised_alarms
from grpo.report_sweep import payload

SETTINGS = {
    "algorithm.group_size": "4",
    "env.max_turns": "12",
    "reward.terms.task_success.weight": "1.0",
    "reward.terms.answer_format.weight": "0.2",
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sweep(tmp_path_factory.mktemp("sweep"), trials=4)


def test_every_trial_is_there_with_what_was_swept_and_how_it_ended(sweep: Path) -> None:
    data = payload(sweep)
    assert data["swept"] == [
        "algorithm.group_size",
        "algorithm.kl_coefficient",
        "adapter.rank",
        "runtime.seed",
    ]
    first, _, _, failed = data["trials"]
    assert first["words"] == {
        "algorithm.group_size": "4",
        "algorithm.kl_coefficient": "0.0",
        "adapter.rank": "8",
        "runtime.seed": "0",
    }
    assert first["figures"]["test, greedy"] == 0.96
    assert first["figures"]["objective"] == 0.5
    assert first["figures"]["alarms"] == 1
    assert (failed["state"], failed["reason"]) == ("failed", "exit code 1: out of memory")
    assert (failed["steps"], failed["episodes"], failed["figures"]["objective"]) == ([], [], None)


def test_a_figure_of_training_is_the_mean_of_its_last_five_steps(sweep: Path) -> None:
    lines = [json.loads(line) for line in (sweep / "0/metrics.jsonl").read_text().splitlines()]
    expected = sum(line["rollout/solved"] for line in lines[-5:]) / 5
    assert payload(sweep)["trials"][0]["figures"]["solved, training"] == pytest.approx(expected)


def test_curves_are_thinned_evenly_and_keep_what_was_evaluated(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_sweep, "MOST_STEPS", 6)
    trial = payload(sweep)["trials"][0]
    # Six of 0..20 at even distances, and the evaluations at 0, 10 and 20.
    assert trial["steps"] == [0, 4, 8, 10, 12, 16, 20]
    assert {len(values) for values in trial["series"].values()} == {7}
    assert trial["series"]["eval/all/pass_at_1"][3] is not None


def test_episodes_share_one_limit(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = payload(sweep)
    monkeypatch.setattr(report_sweep, "EPISODE_BYTES", 4 * 30_000)
    small = payload(sweep)
    for trial, less in zip(whole["trials"][:3], small["trials"][:3], strict=True):
        assert 0 < len(less["episodes"]) < len(trial["episodes"]) <= trial["episodes_total"] == less["episodes_total"]
        assert len(json.dumps([less["episodes"], less["images"]])) < 40_000


def test_an_alarm_is_told_in_the_sentence_of_its_first_step() -> None:
    stopping = {"rollout/solved": 0.1, "rollout/early_stop": 0.75}
    lines = [{"step": step, "alarm/early_stop": float(step >= 5)} | stopping for step in range(1, 8)]
    (alarm,) = raised_alarms(lines, SETTINGS)
    assert alarm["spans"] == [[5, 7]]
    assert alarm["message"].startswith("0.75 of the episodes were ended by the model itself, unsolved")


@pytest.mark.parametrize(
    ("dead", "solved", "told"),
    [
        (0.2, 0.5, "algorithm.group_size=4 is large enough"),
        (0.9, 0.9, "harder tasks would teach more than larger groups"),
        (1.0, 0.0, "larger groups will not help"),
        # 0.82^4 + 0.18^4 = 0.453; 0.82^8 = 0.204; 0.82^16 = 0.042.
        (0.6, 0.18, "55% at 4, 80% at 8, 96% at 16 would be expected: raise algorithm.group_size"),
    ],
)
def test_the_share_of_groups_with_a_signal_comes_with_advice(dead: float, solved: float, told: str) -> None:
    lines = [{"step": step, "group/zero_gradient": dead, "rollout/solved": solved} for step in range(1, 9)]
    assert told in (group_advice(lines, SETTINGS) or "")


def test_there_is_no_advice_before_there_are_steps() -> None:
    assert group_advice([{"step": 0, "eval/all/pass_at_1": 0.5}], SETTINGS) is None
