"""The image is built from a base by digest, never tagged latest, and its digest is written down when it is pushed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import configs
import pytest

IMAGE = configs.ROOT / "launchers/image"
BASE = "rayproject/ray@sha256:" + "0f" * 32
DIGEST = "sha256:" + "ab" * 32


def project(tmp_path: Path) -> Path:
    """A committed copy of the image's folder: the scripts ask git what they build."""
    folder = tmp_path / "project"
    shutil.copytree(IMAGE, folder / "launchers/image", ignore=shutil.ignore_patterns("pushed.txt"))
    author = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def run(folder: Path, script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "launchers/image" / script), *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_a_build_names_base_and_commit(tmp_path: Path) -> None:
    folder = project(tmp_path)
    done = run(folder, "build.sh", "--base", BASE, "--tag", "hydra-grpo:2026-11-30", DOCKER="echo")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True).stdout.strip()
    assert done.returncode == 0, done.stderr
    assert f"--build-arg BASE_IMAGE={BASE} --build-arg COMMIT={commit} --tag hydra-grpo:2026-11-30 ." in done.stdout


@pytest.mark.parametrize(
    ("base", "tag", "said"),
    [
        ("rayproject/ray:2.56.0", "a:b", "wants an image by digest"),
        (BASE, "hydra-grpo:latest", "the tag latest can mean another image tomorrow"),
        (BASE, "hydra-grpo", "wants NAME:TAG"),
    ],
)
def test_what_could_change_under_its_name_is_refused(tmp_path: Path, base: str, tag: str, said: str) -> None:
    done = run(project(tmp_path), "build.sh", "--base", base, "--tag", tag, DOCKER="echo")
    assert done.returncode == 2
    assert said in done.stderr


def test_uncommitted_changes_are_not_built(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "launchers/image/Dockerfile").write_text("FROM scratch\n")
    done = run(folder, "build.sh", "--base", BASE, "--tag", "a:b", DOCKER="echo")
    assert (done.returncode, "uncommitted changes" in done.stderr) == (2, True)


def test_a_push_writes_the_digest_down(tmp_path: Path) -> None:
    folder = project(tmp_path)
    aws = tmp_path / "aws"
    answers = f"*identity*) echo 123456789012 ;; *describe-images*) echo {DIGEST} ;; *) echo secret-password ;;"
    aws.write_text(f'#!/bin/sh\ncase "$*" in {answers} esac\n')
    docker = tmp_path / "docker"
    # A login that left the password unread would end the program that writes it with SIGPIPE.
    docker.write_text('#!/bin/sh\ncase "$*" in *--password-stdin*) cat >/dev/null ;; esac\necho "$@"\n')
    for program in (aws, docker):
        program.chmod(0o755)
    words = ["--tag", "hydra-grpo:1", "--repository", "hydra-grpo", "--region", "us-west-2"]
    done = run(folder, "push.sh", *words, AWS=str(aws), DOCKER=str(docker))
    address = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/hydra-grpo@{DIGEST}"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == address
    assert (folder / "launchers/image/pushed.txt").read_text() == f"{address}\n"
    assert "secret-password" not in done.stdout
