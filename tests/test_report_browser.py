"""Both reports in a real browser without a network: drawn without an error, and every control does what it says.

Chromium comes from the system (Debian: `apt-get install chromium`); only its driver is a Python package.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_run import build_run
from fake_sweep import build_sweep
from playwright.sync_api import Browser, Page, sync_playwright

from grpo.report import build

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = [path for name in NAMES if (path := shutil.which(name))]
    assert found, f"the report is tested in a real browser, and none of {', '.join(NAMES)} is installed"
    with sync_playwright() as driver:
        # Containers run tests as root, where Chromium wants this; the page is our own.
        opened = driver.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must not log an error, and must not ask for anything but its own file."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else faults.append(asked.url))
    yield page
    page.close()
    assert faults == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(build_run(tmp_path_factory.mktemp("browser") / "run", steps=40))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(build_sweep(tmp_path_factory.mktemp("browser") / "sweep", trials=10))


def test_a_runs_page_draws_every_panel_and_tells_its_alarms(page: Page, run: Path) -> None:
    page.goto(run.as_uri())
    assert page.locator("h1").inner_text() == "maze_laptop"
    panels = page.locator(".panels .card")
    assert panels.count() == page.locator(".panels canvas").count() > 20
    assert "shaping up solved flat, steps 18 to 22" in page.locator(".alarms").inner_text()
    assert "of the groups carried a signal" in page.locator("#group-advice").inner_text()


def test_the_viewer_steps_through_turns_siblings_groups_and_filters(page: Page, run: Path) -> None:
    page.goto(run.as_uri())
    page.get_by_label("split").select_option("train")
    assert page.locator(".sibling").count() == 4
    turns = page.locator(".turns button")
    turns.nth(1).click()
    assert turns.nth(1).get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowLeft")
    assert turns.nth(0).get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowDown")
    assert page.locator(".sibling").nth(1).get_attribute("aria-pressed") == "true"
    image = page.locator(".picture img")
    assert image.evaluate("image => image.naturalWidth") == 98
    before = page.locator("select[data-name=group]").input_value()
    page.get_by_role("button", name="next").click()
    assert page.locator("select[data-name=group]").input_value() != before
    page.get_by_label("outcome").select_option("unsolved")
    assert "✗ not solved" in page.locator(".episode").locator("..").inner_text()


def test_the_viewer_marks_where_an_image_stands_in_its_text(page: Page, tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", steps=3)
    rows = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    for turn in (turn for row in rows for turn in row["turns"]):
        turn |= {"text": "\U0001f600 or ?", "places": [1]}  # the emoji is one character, and two of JavaScript's units
    (folder / "rollouts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    page.goto(build(folder).as_uri())
    assert (
        page.locator(".field", has_text="observation").locator("pre").first.inner_text() == "\U0001f600[image 1] or ?"
    )


def test_a_sweeps_table_sorts_by_any_column_and_chooses_a_trial(page: Page, sweep: Path) -> None:
    page.goto(sweep.as_uri())
    assert "9 finished, 1 failed" in page.locator("header").inner_text()
    rows = page.locator(".trials tbody tr")
    assert rows.count() == 10
    best = rows.first.get_attribute("data-trial")
    assert page.locator("#trial").inner_text().startswith(f"trial {best}: algorithm.group_size=")
    page.get_by_title("sort by seconds").click()
    assert rows.first.get_attribute("data-trial") == "0"
    page.get_by_title("sort by seconds").click()
    assert rows.first.get_attribute("data-trial") == "9"
    page.get_by_title("sort by objective").click()
    assert rows.last.get_attribute("data-trial") == "9"  # it has none
    rows.last.get_by_role("button").click()
    assert "out of memory" in page.locator("#trial + p").inner_text()
    rows.first.get_by_role("button").click()
    assert page.locator(".panels canvas").count() > 20
    assert page.locator(".picture img").count() >= 1


def test_a_drag_along_an_axis_keeps_the_trials_that_pass_there(page: Page, sweep: Path) -> None:
    page.goto(sweep.as_uri())
    axis = page.locator("g[data-axis='adapter.rank'] .grip").bounding_box()
    assert axis is not None
    middle = axis["x"] + axis["width"] / 2
    page.mouse.move(middle, axis["y"] + axis["height"] - 2)
    page.mouse.down()
    page.mouse.move(middle, axis["y"] + axis["height"] * 0.9, steps=4)
    page.mouse.up()
    kept = page.locator(".trials tbody tr:visible")
    # Rank 8 is at the foot of the axis: trials 0, 3, 6 and the failed 9.
    assert sorted(row.get_attribute("data-trial") or "" for row in kept.all()) == ["0", "3", "6", "9"]
    assert page.locator(".parallel .trial.out").count() == 6
    page.mouse.click(middle, axis["y"] + 20)
    assert kept.count() == 10


def test_a_line_chooses_its_trial(page: Page, sweep: Path) -> None:
    page.goto(sweep.as_uri())
    page.locator(".parallel .trial", has_text="trial 4:").dispatch_event("click")
    assert page.locator("#trial").inner_text().startswith("trial 4:")
    assert page.locator(".trials tr.chosen").get_attribute("data-trial") == "4"
