"""Data that others made becomes a manifest that trains; what cannot be used is named."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import configs
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from grpo import config
from scripts import convert_data


def png(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(buffer, "PNG")
    return buffer.getvalue()


def table(path: Path, rows: list[dict[str, Any]]) -> str:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def lines(folder: Path, name: str = "train") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_a_hugging_face_table_becomes_a_manifest_that_can_be_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    colours = ["red", "blue", "green", "white"]
    rows = [
        {"question": f"<image>Question {n}?", "answer": str(n), "image": {"bytes": png(colours[n % 4]), "path": None}}
        for n in range(60)
    ]
    file = table(tmp_path / "data.parquet", [*rows, rows[0], {**rows[1], "answer": None}])
    out = tmp_path / "out"
    assert convert_data.main(["parquet", file, "--out", str(out), "--held-out", "0.3"]) == 0
    told = capsys.readouterr().out
    assert "row 61: asks the same as a row before it" in told
    assert "row 62: column 'answer' is empty or not there" in told
    assert "(60 number); left out: 2" in told
    assert len(list((out / "images").iterdir())) == 4
    words = ["env=manifest", f"env.train_manifest={out}/train.jsonl", f"env.eval_manifest={out}/eval.jsonl"]
    env = config.build_env(configs.typed(words)[0])
    (task,) = env.tasks("train", 1, seed=0)
    episode = env.episode(task)
    seen = episode.observe()
    assert (seen.text.startswith("Question"), seen.places, seen.images[0].shape) == (True, (0,), (30, 40, 3))
    assert episode.act(episode.expert() or "").solved


def test_verl_and_skyrl_rows_keep_their_messages(tmp_path: Path) -> None:
    prompt = [{"role": "system", "content": "Think."}, {"role": "user", "content": "<image>What is x?"}]
    verl = {
        "prompt": prompt,
        "images": [{"bytes": png("red"), "path": None}],
        "reward_model": {"style": "rule", "ground_truth": "1/2"},
    }
    skyrl = {"prompt": [{"role": "user", "content": "2 + 2?"}], "reward_spec": {"method": "rule", "ground_truth": "4"}}
    files = [table(tmp_path / "verl.parquet", [verl]), table(tmp_path / "skyrl.parquet", [skyrl])]
    assert convert_data.main(["verl", *files, "--out", str(tmp_path), "--kind", "math", "--held-out", "0"]) == 0
    first, second = lines(tmp_path)
    assert (first["messages"], first["answer"], first["kind"]) == (prompt, "1/2", "math")
    assert (second["messages"][0]["content"], second["images"]) == ("2 + 2?", [])
    assert not (tmp_path / "eval.jsonl").exists()


def test_llava_conversations_give_their_first_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "red.png").write_bytes(png("red"))
    (tmp_path / "bad.png").write_bytes(b"no image")
    turns = [
        {"from": "human", "value": "<image>\nWhich colour?"},
        {"from": "gpt", "value": "Red"},
        {"from": "human", "value": "Sure?"},
    ]
    records = [
        {"id": 7, "image": "red.png", "conversations": turns},
        {"id": 8, "image": "gone.png", "conversations": turns},
        {"id": 9, "image": "bad.png", "conversations": turns},
        {"id": 10, "conversations": turns[1:]},
        {"id": 11},
        {"id": 7, "image": "red.png", "conversations": [{"from": "human", "value": "Again?"}, turns[1]]},
    ]
    (tmp_path / "llava.json").write_text(json.dumps(records))
    command = ["llava", f"{tmp_path}/llava.json", "--image-folder", str(tmp_path), "--out", str(tmp_path / "out")]
    assert convert_data.main([*command, "--held-out", "0"]) == 0
    row, again = lines(tmp_path / "out")
    assert "id" not in again
    assert (row["id"], row["prompt"], row["answer"], row["kind"]) == ("7", "<image>\nWhich colour?", "Red", "text")
    told = capsys.readouterr().out
    assert "row 2: [Errno 2] No such file or directory" in told
    assert "row 3: its image is no image" in told
    assert "row 4: the conversation does not begin with a question" in told
    assert "row 5: KeyError 'conversations'" in told
    assert len(list((tmp_path / "out" / "images").iterdir())) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "wanted"),
    [
        (" B ", "auto", ("B", "choice")),
        ("1815", "auto", (1815, "number")),
        ("-2.5", "auto", (-2.5, "number")),
        ("1,815", "auto", ("1,815", "text")),
        (["a", "b"], "auto", (["a", "b"], "text")),
        ("[1, 2, 3, 4]", "box", ([1, 2, 3, 4], "box")),
        ("3", "text", ("3", "text")),
    ],
)
def test_what_an_answer_is_taken_for(answer: Any, kind: str, wanted: Any) -> None:
    assert convert_data._answered(answer, kind) == wanted


def test_a_file_that_is_none_is_refused_and_nothing_usable_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert_data.main(["llava", f"{tmp_path}/none.json", "--out", str(tmp_path)]) == 2
    assert "none.json" in capsys.readouterr().err
    file = table(tmp_path / "x.parquet", [{"frage": "?"}])
    assert convert_data.main(["parquet", file, "--out", str(tmp_path)]) == 1
    assert "column 'question' is empty or not there; there are frage" in capsys.readouterr().out
