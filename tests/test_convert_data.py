"""Data that others made becomes a manifest that trains; what cannot be used is named."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import configs
import pyarrow
import pytest
from PIL import Image, ImageColor
from pyarrow import parquet

from envs.data.rows import read_row, shown
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
    assert "row 62: column 'answer' is empty" in told
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
    assert "row 5: has no 'messages'" in told
    assert len(list((tmp_path / "out" / "images").iterdir())) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "wanted"),
    [
        (" B ", "auto", ("B", "choice")),
        ("1815", "auto", (1815, "number")),
        ("-2.5", "auto", (-2.5, "number")),
        ("1,815", "auto", ("1,815", "text")),
        ("007", "auto", ("007", "text")),
        ("0.5", "auto", (0.5, "number")),
        ("9" * 64, "auto", (int("9" * 64), "number")),
        ("9" * 400, "auto", ("9" * 400, "text")),
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
    assert convert_data.main(["parquet", file, "--out", str(tmp_path)]) == 2
    assert f"{file} has no column 'question'; it has frage" in capsys.readouterr().err
    asked = table(tmp_path / "y.parquet", [{"question": "?", "answer": None, "picture": None}])
    assert convert_data.main(["parquet", asked, "--out", str(tmp_path), "--image", "pictures"]) == 2
    assert "has no column 'pictures'; it has question, answer, picture" in capsys.readouterr().err
    assert convert_data.main(["parquet", asked, "--out", str(tmp_path)]) == 1
    assert "row 1: column 'answer' is empty" in capsys.readouterr().out
    (tmp_path / "bad.json").write_text("[{\n")
    assert convert_data.main(["llava", f"{tmp_path}/bad.json", "--out", str(tmp_path)]) == 2
    assert "bad.json is neither JSON nor JSON lines" in capsys.readouterr().err


def test_images_may_be_bytes_paths_or_addresses_one_or_many(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(png("red"))
    (tmp_path / "blue.png").write_bytes(png("blue"))
    address = f"data:image/png;base64,{base64.b64encode(png('green')).decode()}"
    ways: list[tuple[list[Any], list[str]]] = [
        ([png("red"), png("blue")], ["red", "blue"]),
        ([{"bytes": None, "path": "blue.png"}], ["blue"]),
        (["red.png", address], ["red", "green"]),
        ([], []),
    ]
    for number, (images, colours) in enumerate(ways):
        file = table(tmp_path / f"{number}.parquet", [{"question": "Colours?", "answer": "?", "images": images}])
        out = tmp_path / f"out{number}"
        assert convert_data.main(["parquet", file, "--out", str(out), "--held-out", "0"]) == 0
        (row,) = lines(out)
        shown = [Image.open(out / name).convert("RGB").getpixel((0, 0)) for name in row["images"]]
        assert shown == [ImageColor.getrgb(colour) for colour in colours]
    broken = table(tmp_path / "broken.parquet", [{"question": "?", "answer": "x", "image": "data:image/png;base64,?"}])
    assert convert_data.main(["parquet", broken, "--out", str(tmp_path / "none")]) == 1


def test_verl_messages_in_parts_keep_the_places_of_their_images(tmp_path: Path) -> None:
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "What is x?"}]
    row = {
        "prompt": [{"role": "user", "content": parts}],
        "images": [{"bytes": png("red"), "path": None}],
        "reward_model": {"ground_truth": "4"},
    }
    odd = [{**row, "reward_model": None}, {**row, "prompt": None}]
    file = table(tmp_path / "parts.parquet", [row, *odd])
    assert convert_data.main(["verl", file, "--out", str(tmp_path), "--held-out", "0"]) == 0
    (written,) = lines(tmp_path)
    seen = shown(read_row(json.dumps(written).encode()))
    assert (seen.text, seen.places, len(seen.images)) == ("What is x?", (0,), 1)


@pytest.mark.parametrize("content", ["What is x?", [{"type": "text", "text": "What is x?"}]])
def test_an_instruction_stands_behind_each_question(tmp_path: Path, content: Any) -> None:
    turns = [{"from": "human", "value": "What is x?"}, {"from": "gpt", "value": "4"}]
    (tmp_path / "data.json").write_text(json.dumps([{"conversations": turns}]))
    row = {"prompt": [{"role": "user", "content": content}], "reward_model": {"ground_truth": "4"}}
    file = table(tmp_path / "verl.parquet", [row])
    for source, path in (("llava", f"{tmp_path}/data.json"), ("verl", file)):
        out = tmp_path / source
        more = ["--held-out", "0", "--instruction", "Answer in <answer>…</answer>."]
        assert convert_data.main([source, path, "--out", str(out), *more]) == 0
        (written,) = lines(out)
        seen = shown(read_row(json.dumps(written).encode()))
        assert seen.text == "What is x?\nAnswer in <answer>…</answer>."


def test_json_lines_and_openais_words_are_read_and_videos_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "red.png").write_bytes(png("red"))
    said = [{"role": "user", "content": "Which? <image>"}, {"role": "assistant", "content": "Red"}]
    records = [
        {"messages": said, "images": ["red.png"]},
        {"conversations": [{"from": "human", "value": "<video>?"}, {"from": "gpt", "value": "x"}], "video": "a.mp4"},
        ["no object"],
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert convert_data.main(["llava", str(file), "--out", str(tmp_path / "out"), "--held-out", "0"]) == 0
    (row,) = lines(tmp_path / "out")
    assert (row["prompt"], row["answer"], len(row["images"])) == ("Which? <image>", "Red", 1)
    told = capsys.readouterr().out
    assert "row 2: holds a video" in told
    assert "row 3: is list, and no object" in told


def test_an_image_that_is_cut_off_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"{n}?", "answer": "x", "image": png("red")[: len(png("red")) - n]} for n in (0, 30)]
    file = table(tmp_path / "cut.parquet", rows)
    assert convert_data.main(["parquet", file, "--out", str(tmp_path), "--held-out", "0"]) == 0
    assert len(lines(tmp_path)) == 1
    assert "row 2: its image cannot be decoded" in capsys.readouterr().out
