"""What the README says can be typed, composes; what it names, exists; the reward that it shows, works."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import configs
import pytest
from builders import transcript, turn

from grpo import compose, config

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| .+? \| (`.+`.*) \|$", README, flags=re.MULTILINE)
COMMANDS = [
    command for row in ROWS for command in re.findall(r"`([^`]+)`", row) if "=" in command and "$" not in command
]


@pytest.mark.parametrize("command", [c for c in COMMANDS if not re.search(r"FOLDER|WANDB", c)])
def test_a_command_of_the_readme_composes(command: str) -> None:
    words = shlex.split(command)
    if "hydra/sweeper=optuna" in words:
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    sweep = "-m" in words
    assert configs.typed([word for word in words if word != "-m"], sweep=sweep)


def test_the_readme_lists_commands() -> None:
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_a_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_layout_names_only_what_exists() -> None:
    layout = README.split("## How it is built")[1].split("```")[1]
    named = re.findall(r"[\w/]+\.py", layout)
    folders = ("", "grpo/", "launchers/")
    missing = [name for name in named if not any((ROOT / folder / name).exists() for folder in folders)]
    assert named
    assert missing == []


def test_the_reward_of_the_readme_is_one_file_and_one_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = README.split("```python\n")[1].split("```")[0]
    yaml = README.split("```yaml\n")[1].split("```")[0].replace("rewards.few_turns", "few_turns")
    (tmp_path / "few_turns.py").write_text(code)
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "maze_short.yaml").write_text(yaml)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "few_turns", raising=False)
    source = compose.Source(folder=ROOT / "conf", name="config", extra=tmp_path)
    run = config.parse(compose.script_config(source, ["reward=maze_short"]))
    few_turns = config.build_rewards(run)["few_turns"]
    assert few_turns(transcript(*[turn()] * 9)) == 1.0
    assert few_turns(transcript(*[turn()] * 12)) == pytest.approx(0.7)
