"""No secret reaches a file or a message: planted in the environment, on the command line, in YAML, in a diff."""

from __future__ import annotations

import logging
from pathlib import Path

import configs
import pytest
from test_cli import train
from test_local_engine import SMALL

from grpo import provenance
from grpo.console import Console
from grpo.redact import hide_in_code, secret_faults
from grpo.run import run

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBYaDExample",
    "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz012345",
}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def leaks(folder: Path) -> list[tuple[str, str]]:
    """(file, name of the secret) for each file under `folder` that holds one."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        (str(path), name) for path in files for name, value in SECRETS.items() if value.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    "word",
    [
        "engine.overrides.x_api_key=abcd1234",
        "+engine.overrides.hf_token=abcd1234",
        "++hydra.job.env_set.AWS_SECRET_ACCESS_KEY=abcd1234",
        "password=abcd1234",
        "engine.overrides={x_api_key: abcd1234}",
        "engine.overrides={generator: {auth: {token: abcd1234}}}",
        "model.name_or_path=https://me:abcd1234@hub/model",
    ],
)
def test_a_secret_on_the_command_line_is_refused_by_its_key_and_never_shown(word: str, tmp_path: Path) -> None:
    done = train("engine=skyrl", word, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    key = word.lstrip("+").split("=")[0]
    assert done.stderr.startswith(f"config error: {key}")
    assert "leave the" in done.stderr
    assert "abcd1234" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", SECRETS)
def test_a_value_that_repeats_a_secret_of_the_environment_is_refused(variable: str, tmp_path: Path) -> None:
    for word in (f"name={SECRETS[variable]}", f"name=${{oc.env:{variable}}}", f"runtime.stepz={SECRETS[variable]}"):
        done = train(word, cwd=tmp_path)
        assert done.returncode == 2
        assert variable in done.stderr or "name: becomes a folder's name" in done.stderr
        assert SECRETS[variable] not in done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_secret_in_a_preset_is_refused_too(tmp_path: Path) -> None:
    preset = tmp_path / "more/experiment/mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\nengine: {overrides: {trainer: {api_key: abcd1234}}}\n")
    done = train("--config-dir", "more", "experiment=mine", "engine=skyrl", "dry_run=true", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "engine.overrides.trainer.api_key: names a secret" in done.stderr
    assert "abcd1234" not in done.stderr


def test_words_of_a_model_and_counts_are_no_secrets() -> None:
    innocent = {"overrides.pad_token": "<pad>", "max_prompt_tokens": "4096", "token": None, "key": "abc", "steps": 3}
    assert secret_faults(innocent.items()) == []


def test_a_diff_keeps_its_code_and_loses_what_is_assigned_to_secret_names() -> None:
    diff = f"""\
+API_KEY = "abcd-1234-efgh"
+aws_secret_access_key: {SECRETS["AWS_SECRET_ACCESS_KEY"]}X
+client = Client("ghp_abcdefghijklmnopqrst1234")
+token = self.tokenizer.end_token
+max_prompt_tokens: 123456789012345678
+url = "s3://me:pass@host"
"""
    assert (
        hide_in_code(diff)
        == """\
+API_KEY = ***
+aws_secret_access_key: ***
+client = Client("***")
+token = self.tokenizer.end_token
+max_prompt_tokens: 123456789012345678
+url = "s3://***@host"
"""
    )


def test_a_traceback_goes_to_the_log_without_the_secret_in_it(tmp_path: Path) -> None:
    with Console(1).logging_to(tmp_path / "train.log"):
        log = logging.getLogger("grpo.test")
        try:
            raise ValueError(f"cannot sign in with {SECRETS['HF_TOKEN']}")
        except ValueError:
            log.exception("signing in with %s failed", SECRETS["WANDB_API_KEY"])
    written = (tmp_path / "train.log").read_text()
    assert "ValueError: cannot sign in with ***" in written
    assert leaks(tmp_path) == []


@pytest.mark.slow
def test_a_real_run_with_planted_secrets_leaves_none_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff = "".join(f'+key = "{value}"\n' for value in SECRETS.values())
    monkeypatch.setattr(provenance, "_git", lambda *words: diff if words[0] == "diff" else "0123abc")
    wandb = {"name": "wandb", "project": "p", "entity": None, "mode": "offline"}
    run(configs.run(SMALL | {"runtime.steps": 1, "tracker": wandb}), tmp_path, ["runtime.steps=1"])
    assert "+key" in (tmp_path / "run.json").read_text()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert leaks(tmp_path) == []
