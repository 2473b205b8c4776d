"""What run.json says of the code, whatever the files are called and however they are encoded."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from grpo import provenance


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in the project's place."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards/old.py").write_bytes(b"old = 1\n")
    who = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_code_that_git_does_not_know_is_recorded_whatever_it_is_called(project: Path) -> None:
    names = ("größe.py", "with space.py", 'quote".py', "line\nbreak.py")
    for name in names:
        (project / "rewards" / name).write_bytes(b"\xff\x00binary")
    digest = hashlib.sha256(b"\xff\x00binary").hexdigest()
    assert provenance.commit()["untracked"] == {f"rewards/{name}": digest for name in names}


@pytest.mark.parametrize("content", ["größer = 2\n".encode("latin-1"), b"\x00\xff\xfe", "größer = 2\n".encode()])
def test_a_change_in_any_encoding_is_recorded_and_another_change_is_another_record(
    content: bytes, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    (project / "rewards/old.py").write_bytes(content)
    first = provenance.commit()["dirty_diff"]
    (project / "rewards/old.py").write_bytes(content + b"\xf8")
    assert "rewards/old.py" in first
    assert provenance.commit()["dirty_diff"] not in (first, "", None)


def test_a_persons_own_git_settings_do_not_change_the_record(project: Path) -> None:
    (project / "rewards/old.py").write_bytes(b"old = 2\n")
    plain = provenance.commit()["dirty_diff"]
    for setting in (["color.ui", "always"], ["diff.external", "/bin/true"]):
        subprocess.run(["git", "config", *setting], cwd=project, check=True)
    assert provenance.commit()["dirty_diff"] == plain != ""


def test_without_git_there_is_no_commit_and_no_failure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project / "nothing"))
    assert provenance.commit() == {"commit": None, "dirty_diff": None, "untracked": {}}
