"""Folders may have any name: it comes through Hydra's grammar and a shell as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from configs import CONF, typed
from hypothesis import given
from hypothesis import strategies as st
from test_cli import train

from grpo import cli, compose
from grpo.faults import ConfigError
from grpo.words import pasted, word

ODD = "dïr with, 'commas' = and {more}"


# Without $, which begins an interpolation even in quotes.
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n$"), min_size=1))
def test_any_path_comes_back_from_the_words_that_name_it(path: str) -> None:
    for told in (word("resume", path), *shlex.split(pasted("resume", path))):
        overrides, faults = compose.parse_words([told], None)
        assert not faults
        assert overrides[0].value() == path


def test_a_plain_path_is_written_plainly() -> None:
    assert pasted("resume", Path("/runs/maze/2026-11-30")) == "resume=/runs/maze/2026-11-30"
    assert pasted("resume", "s3://bucket/maze") == "resume=s3://bucket/maze"


@pytest.mark.parametrize("value", ["größe", "a b", "~/models/größe", "日本"])
def test_text_with_blanks_or_letters_beyond_ascii_needs_no_second_quotes(value: str) -> None:
    assert typed([f"model.name_or_path={value}"])[0].model.name_or_path == value


def test_a_resumed_run_is_found_under_an_odd_name_and_told_how_to_name_it(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    assert train(word("hydra.run.dir", folder), cwd=tmp_path).returncode == 0
    words = [word("resume", folder)]
    with pytest.raises(ConfigError, match="is finished") as error:
        cli.read(cli.flags(words), words, CONF)
    (told,) = shlex.split(str(error.value).split("from its adapter: ")[1])
    assert compose.parse_words([told], None)[0][0].value() == str(folder / "adapter")


def test_a_sweep_runs_in_a_folder_of_an_odd_name(tmp_path: Path) -> None:
    done = train("-m", "runtime.seed=1,2", word("hydra.sweep.dir", tmp_path / ODD), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / ODD).glob("*/result.json"))) == 2
