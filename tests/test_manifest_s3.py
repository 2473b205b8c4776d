"""A manifest and its images in S3, over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import configs
import numpy as np
import pytest
from PIL import Image
from s3_server import BUCKET, S3, s3_server

from envs import manifest
from envs.data import images, s3
from envs.manifest import Manifest
from grpo import config
from grpo.interfaces import DataError

TRAIN, EVAL = f"s3://{BUCKET}/data/train.jsonl", f"s3://{BUCKET}/data/eval.jsonl"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAABCDEFGHIJKLMNOP")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-must-not-show")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    with s3_server() as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.address)
        forget()
        yield running
    forget()


def forget() -> None:
    for memory in (s3._client, images._listing, images.load, manifest._load):
        memory.cache_clear()


def put(server: S3, key: str, content: bytes) -> None:
    server.direct.put_object(Bucket=BUCKET, Key=key, Body=content)


def picture(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(buffer, "PNG")
    return buffer.getvalue()


def filled(server: S3, *names: str) -> Manifest:
    """One training row for each image name."""
    train = [
        {"prompt": f"Colour {n}?", "images": [name], "answer": "red", "kind": "text"} for n, name in enumerate(names)
    ]
    held_out = [{"prompt": f"{n} + 1?", "answer": n + 1, "kind": "number"} for n in range(20)]
    for key, rows in (("train", train), ("eval", held_out)):
        put(server, f"data/{key}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    (run,) = configs.typed(["env=manifest", f"env.train_manifest={TRAIN}", f"env.eval_manifest={EVAL}"])
    env = config.build_env(run)
    assert isinstance(env, Manifest)
    return env


def test_images_relative_to_the_manifest_and_by_address_are_shown_and_fetched_once(server: S3) -> None:
    put(server, "data/images/a.png", picture("red"))
    put(server, "elsewhere/b.png", picture("blue"))
    env = filled(server, "images/a.png", f"s3://{BUCKET}/elsewhere/b.png")
    tasks = sorted(env.tasks("train", 2, seed=0), key=lambda task: task.data["line"])
    colours = [env.episode(task).observe().images[0][0, 0].tolist() for task in tasks]
    assert colours == [[255, 0, 0], [0, 0, 255]]
    images.load.cache_clear()
    before = len([seen for seen in server.seen if seen.method == "GET" and seen.key.endswith(".png")])
    assert np.array_equal(env.episode(tasks[0]).observe().images[0][0, 0], [255, 0, 0])
    assert len([seen for seen in server.seen if seen.method == "GET" and seen.key.endswith(".png")]) == before


def test_an_object_that_changes_is_another_version_of_the_data(server: S3) -> None:
    put(server, "data/a.png", picture("red"))
    env = filled(server, "a.png")
    version = env.data_version()
    forget()
    assert env.data_version() == version
    put(server, "data/a.png", picture("blue"))
    forget()
    assert env.data_version() != version
    (task,) = env.tasks("train", 1, seed=0)
    assert env.episode(task).observe().images[0][0, 0].tolist() == [0, 0, 255]


def test_what_is_not_there_is_told_by_name_and_no_secret_with_it(server: S3) -> None:
    env = filled(server, "gone.png")
    server.direct.delete_object(Bucket=BUCKET, Key="data/eval.jsonl")
    with pytest.raises(DataError) as caught:
        env.tasks("train", 1, seed=0)
    (train, held_out) = caught.value.faults
    assert train == ("train_manifest", f"line 1: images: s3://{BUCKET}/data/gone.png: there is no such file")
    assert held_out[0] == "eval_manifest"
    assert held_out[1].startswith(f"{EVAL} cannot be read: ")
    assert "a-secret" not in str(caught.value)


def test_a_download_that_breaks_off_leaves_nothing_and_is_tried_again(server: S3) -> None:
    put(server, "data/a.png", picture("red"))
    env = filled(server, "a.png")
    (task,) = env.tasks("train", 1, seed=0)
    server.fault = lambda request: "cut" if request.method == "GET" and request.key.endswith("a.png") else None
    with pytest.raises(OSError, match=r"train\.jsonl, line 1: s3://runs/data/a\.png"):
        env.episode(task).observe()
    server.fault = lambda request: None
    assert env.episode(task).observe().images[0].shape == (30, 40, 3)
