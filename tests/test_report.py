"""The report is one file that loads nothing, trusts no text, and tells what it left out."""

from __future__ import annotations

import base64
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo import report
from grpo.report import build, payload
from grpo.report_page import ASSETS
from grpo.report_panels import sections
from grpo.tracking import NullTracker, RunLog, rollout_row
from grpo.types import Score
from tests.fake_run import build_run, maze_image, played_row, rollout, turn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("report") / "run", steps=40)


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A run that has only its config."""
    build_run(tmp_path, steps=1)
    for name in ("metrics.jsonl", "rollouts.jsonl", "run.json", "summary.json"):
        (tmp_path / name).unlink()
    return tmp_path


def page_data(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_page_is_one_file_that_may_load_nothing(run: Path) -> None:
    page = build(run).read_text()
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)\s*=\s*["\']?(https?:)?//', page)
    assert "{{" not in page.replace(json.dumps(page_data(page)), "")


def test_the_page_holds_what_the_run_folder_holds(run: Path) -> None:
    data = page_data(build(run).read_text())
    assert (data["title"], data["model"], data["algorithm"]) == ("maze_laptop", "assets/tiny", "grpo")
    assert (data["steps_done"], data["steps_planned"]) == (40, "40")
    assert ["LoRA rank", "16"] in data["key_settings"]
    assert ["model.revision", "695e0514"] in data["settings"]
    assert ["commit", "6d2e1f9c0ffee"] in data["provenance"]
    assert data["steps"] == list(range(41))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert data["series"]["reward/total/mean"][0] is None
    assert data["series"]["reward/total/mean"][7] == pytest.approx(lines[7]["reward/total/mean"], rel=1e-6)
    assert len(data["episodes"]) == data["episodes_total"] == 10 * 4 + 5 * 2


def test_the_closing_table_has_a_column_for_every_term(run: Path) -> None:
    closing = payload(run)["closing"]
    assert closing["columns"][:6] == ["policy", "decoding", "solved", "95 % interval", "episodes", "reward"]
    assert closing["columns"][6:9] == ["task_success", "answer_format", "action_validity"]
    assert closing["rows"][2][:4] == ["trained", "greedy", "0.960", "0.900 to 1.000"]


def test_solved_is_drawn_against_the_reachable_ceiling_and_every_term_with_its_spread(run: Path) -> None:
    panels = {panel["title"]: panel for section in payload(run)["sections"] for panel in section["panels"]}
    assert [curve["metric"] for curve in panels["Solved"]["curves"]] == [
        "rollout/solved",
        "eval/all/pass_at_1",
        "eval/ceiling",
    ]
    assert panels["Reward term: answer_format"]["curves"][0]["band"] == "reward/answer_format/std"


def test_a_curve_without_data_is_left_out() -> None:
    (section,) = sections(["rollout/solved", "eval/ceiling"])
    (panel,) = section.panels
    assert [curve.metric for curve in panel.curves] == ["rollout/solved", "eval/ceiling"]
    assert sections([]) == ()


def test_a_metric_that_no_panel_names_is_still_drawn() -> None:
    (section,) = sections(["skyrl/sync_seconds", "alarm/no_signal"])
    assert (section.title, [panel.title for panel in section.panels]) == ("Other metrics", ["skyrl/sync_seconds"])


def test_alarms_are_told_as_stretches_of_steps(fresh: Path) -> None:
    log = RunLog(fresh, NullTracker())
    for step, raised in enumerate([0, 1, 1, 0, 1]):
        log.step(step, {"alarm/no_signal": raised, "alarm/early_stop": 0})
    data = payload(fresh)
    assert data["alarms"] == [{"name": "no_signal", "spans": [[1, 2], [4, 4]], "message": None}]
    assert "alarm/no_signal" not in data["series"]


@pytest.mark.parametrize(
    "reply", ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "<!--<script>"]
)
def test_what_a_model_wrote_never_becomes_markup(fresh: Path, reply: str) -> None:
    row = rollout_row(
        1, rollout(turn(reply=reply, feedback=reply), task=reply), Score(total=0.0, terms={}), None, reply
    )
    RunLog(fresh, NullTracker()).rollouts(1, [row])
    page = build(fresh).read_text()
    assert reply not in page
    assert page_data(page)["episodes"][0]["turns"][0]["reply"] == reply


def test_no_script_of_the_page_makes_markup_from_text() -> None:
    ours = [path for path in ASSETS.glob("*.js") if path.name != "uplot.min.js"]
    assert len(ours) == 6
    for path in ours:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", path.read_text()), path


def test_an_image_is_embedded_once_however_often_it_is_shown(fresh: Path) -> None:
    image = maze_image((1, 1), seed=0)
    row = rollout_row(1, rollout(turn(images=(image,)), turn(images=(image,))), Score(total=0.0, terms={}), None)
    RunLog(fresh, NullTracker()).rollouts(1, [row, row])
    page = build(fresh).read_text()
    ((path, uri),) = page_data(page)["images"].items()
    assert page.count(uri) == 1
    assert base64.b64decode(uri.removeprefix("data:image/png;base64,")) == (fresh / path).read_bytes()


def test_a_missing_image_leaves_the_episode_in_place(fresh: Path) -> None:
    row = rollout_row(1, rollout(turn(images=(maze_image((1, 1), seed=0),))), Score(total=0.0, terms={}), None)
    RunLog(fresh, NullTracker()).rollouts(1, [row])
    for path in (fresh / "images").iterdir():
        path.unlink()
    data = payload(fresh)
    assert (len(data["episodes"]), data["images"]) == (1, {})


def test_a_large_run_is_sampled_in_whole_groups_evenly_over_the_steps(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "EPISODE_BYTES", 150_000)
    log, rng = RunLog(fresh, NullTracker()), random.Random(0)
    for step in range(1, 101):
        log.rollouts(step, [played_row(step, task=step, sample=s, split="train", skill=0.5, rng=rng) for s in range(2)])
    path = build(fresh)
    data = page_data(path.read_text())
    steps = [episode["step"] for episode in data["episodes"]]
    assert path.stat().st_size < 150_000 + 100_000
    assert data["episodes_total"] == 200
    assert 5 <= len(steps) // 2 < 100
    assert steps[::2] == steps[1::2] == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 100)
    gaps = [late - early for early, late in zip(steps[::2], steps[2::2], strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_episodes_too_large_for_the_page_are_left_out(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "EPISODE_BYTES", 10)
    RunLog(fresh, NullTracker()).rollouts(1, [rollout_row(1, rollout(turn()), Score(total=0.0, terms={}), None)])
    data = payload(fresh)
    assert (data["episodes"], data["episodes_total"]) == ([], 1)


def test_a_run_that_has_only_begun_gives_a_report(fresh: Path) -> None:
    data = page_data(build(fresh).read_text())
    assert (data["steps"], data["sections"], data["episodes"], data["closing"]) == ([], [], [], None)


def test_a_run_killed_in_the_middle_of_a_line_gives_a_report(tmp_path: Path) -> None:
    build_run(tmp_path, steps=3)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "roll')
    assert payload(tmp_path)["steps"] == [0, 1, 2, 3]


def test_a_secret_in_the_config_stays_out_of_the_page(fresh: Path) -> None:
    with (fresh / "config.yaml").open("a") as file:
        file.write("\nextra:\n  api_key: sesame-open\n")
    assert "sesame-open" not in build(fresh).read_text()


def test_the_same_folder_gives_the_same_page(run: Path) -> None:
    assert build(run).read_bytes() == build(run).read_bytes()


def test_the_script_prints_each_path_and_refuses_what_is_no_run_folder(run: Path, tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "scripts" / "report.py"
    done = subprocess.run([sys.executable, script, run, tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.split() == [str(run / "report.html")]
    assert "no config.yaml" in done.stderr


def test_the_vendored_chart_library_keeps_its_licence() -> None:
    assert "MIT License" in (ASSETS / "uplot.LICENSE").read_text()
