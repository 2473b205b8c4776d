"""Your own data: what a row may say, what is refused, what the model is shown, and how it is judged."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import configs
import numpy as np
import pytest
from manifest_files import SUM, built, faults, picture, sums
from PIL import Image

from envs.manifest import Manifest
from grpo.conversation import Sampling
from grpo.interfaces import Reward
from grpo.policy import Policy
from grpo.rollout import play
from grpo.types import Message, Transcript
from scripts import sample_data

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_row_becomes_a_question_with_its_images_and_the_answer_stays_behind(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    row = {
        "prompt": "Colour?",
        "images": ["a.png"],
        "answer": "secret",
        "kind": "text",
        "system": "Be short.",
        "id": "q1",
    }
    (task,) = built(tmp_path, [row]).tasks("train", 1, seed=0)
    episode = built(tmp_path, [row]).episode(task)
    seen = episode.observe()
    assert (task.id, seen.text, seen.before) == ("train/q1", "Colour?", (Message(role="system", text="Be short."),))
    assert [image.shape for image in seen.images] == [(32, 64, 3)]
    assert "secret" not in repr(seen)
    assert episode.state() == {"answer": "secret", "kind": "text", "image_sizes": [[64, 32]]}
    outcome = episode.act("It is <answer> Secret. </answer>")
    assert (outcome.action, outcome.done, outcome.solved) == ("Secret.", True, True)
    assert "secret" not in outcome.feedback.casefold()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("nonsense", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ({**SUM, "promt": "x"}, r"promt: is no key of a row; did you mean prompt\?"),
        ({**SUM, "Image": "x"}, r"Image: is no key of a row; did you mean images\?"),
        ({**SUM, "xyz": "x"}, "xyz: is no key of a row; there are prompt, messages, system, images, answer"),
        ({"prompt": "1?", "kind": "number"}, "answer: Field required"),
        ({**SUM, "answer": "two"}, "answer: the reference 'two' is no number"),
        ({**SUM, "answer": True}, "answer: kind number wants a finite number"),
        ({**SUM, "answer": 10**400}, "answer: kind number wants a finite number"),
        ('{"prompt": "?", "answer": NaN, "kind": "number"}', "answer: kind number wants a finite number"),
        ('{"prompt": "?", "answer": {"a": [NaN]}, "kind": "json"}', "answer: holds NaN or an infinity"),
        ({**SUM, "kind": "poem"}, "kind: 'poem' has no judge; env.judges has choice, number"),
        ({**SUM, "prompt": " "}, "prompt: is blank"),
        ({**SUM, "messages": []}, "prompt: wants either prompt or messages"),
        ({"answer": 2, "kind": "number"}, "prompt: wants either prompt or messages"),
        ({**SUM, "images": "a.png"}, "images: Input should be a valid array, got 'a.png'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "answer": 2, "kind": "number"},
            r"messages\.0\.content\.0: Input tag 'image_url' .* expected tags: 'text', 'image'",
        ),
        ({**SUM, "images": ["none.png"]}, "images: .*none.png: there is no such file"),
        ({**SUM, "images": ["train.jsonl"]}, "images: .*train.jsonl: is no image"),
        ({**SUM, "prompt": "<image> and <image>?", "images": ["a"]}, "images: are 1, but the text has 2 markers"),
        ({**SUM, "choices": ["1", "2"]}, "choices: belong to kind choice"),
        ({**SUM, "kind": "choice", "answer": "D", "choices": ["1", "2"]}, "answer: the reference 'D' is no option"),
        ({**SUM, "kind": "box", "answer": [5, 5, 1, 1]}, "answer: kind box wants a box"),
        ({**SUM, "kind": "text", "answer": []}, "answer: kind text wants a text, or a list"),
        ({**SUM, "id": ""}, "id: is empty"),
        (
            {"messages": [{"role": "assistant", "content": "x"}], "answer": 2, "kind": "number"},
            "messages: must end with one of the",
        ),
    ],
)
def test_a_bad_line_is_told_with_its_number_key_and_reason(tmp_path: Path, row: Any, told: str) -> None:
    found = faults(built(tmp_path, [*sums(0, 2), row]))
    assert len(found) == 1
    assert found[0][0] == "train_manifest"
    assert re.match(f"line 3: {told}", found[0][1]), found


def test_all_bad_lines_of_both_manifests_are_told_together_up_to_twenty_each(tmp_path: Path) -> None:
    found = faults(built(tmp_path, ["x"] * 50, ["y", *sums(0, 3)]))
    assert [key for key, _ in found] == ["train_manifest"] * 21 + ["eval_manifest"]
    assert found[20][1] == "and 30 more; 50 faults in all"


def test_faults_of_every_kind_are_told_together_in_the_order_of_their_lines(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    rows = [
        "nonsense",
        {**SUM, "images": ["gone.png"]},
        {**SUM, "id": "x", "prompt": "2?"},
        {**SUM, "images": ["a.png"]},
        {**SUM, "images": ["a.png"], "kind": "poem"},
        {**SUM, "id": "x", "prompt": "3?"},
        {**SUM, "prompt": "2?"},
    ]
    told = [problem for _, problem in faults(built(tmp_path, rows))]
    assert [text.split(":")[0] for text in told] == ["line 1", "line 2", "line 5", "line 6", "line 7"]
    assert told[1].endswith("gone.png: there is no such file")
    assert told[-2:] == [
        "line 6: id: is that of line 3 as well",
        "line 7: asks the same as line 3: same text, same images",
    ]


def test_leaks_are_told_together_with_bad_lines_of_either_manifest(tmp_path: Path) -> None:
    found = faults(built(tmp_path, ["x", *sums(0, 3)], [*sums(2, 20), "y"]))
    assert [(key, problem.split(":")[0]) for key, problem in found] == [
        ("train_manifest", "line 1"),
        ("eval_manifest", "line 21"),
        ("eval_manifest", "line 1"),
    ]
    assert found[2][1] == "line 1: asks the same as line 4 of train_manifest; remove one of them"


def test_rows_that_are_there_twice_are_refused_by_content_and_by_id(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "same.png")
    picture(tmp_path / "other.png", colour="blue")
    ask = {"prompt": "Colour?", "answer": "red", "kind": "text"}
    rows = [{**ask, "images": [name]} for name in ("a.png", "other.png", "same.png")]
    found = faults(built(tmp_path, [*rows, {**SUM, "id": "x"}, {**SUM, "prompt": "2?", "id": "x"}]))
    assert found == [
        ("train_manifest", "line 3: asks the same as line 1: same text, same images"),
        ("train_manifest", "line 5: id: is that of line 4 as well"),
    ]


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_are_no_faults(tmp_path: Path) -> None:
    env = built(tmp_path, [])
    lines = [json.dumps(row).encode() for row in sums(0, 3)]
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines))
    tasks = env.tasks("train", 3, seed=0)
    assert sorted((task.data["line"], task.data["text"]) for task in tasks) == [
        (1, "0 + 1?"),
        (3, "1 + 1?"),
        (5, "2 + 1?"),
    ]


def test_an_evaluation_row_that_is_trained_on_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "copy.png")
    leaked = {"prompt": "Colour?", "answer": "red", "kind": "text"}
    train = [*sums(0, 3), {**leaked, "images": ["a.png"]}]
    found = faults(built(tmp_path, train, [*sums(1000, 20), {**leaked, "images": ["copy.png"], "id": "new name"}]))
    assert found == [("eval_manifest", "line 21: asks the same as line 4 of train_manifest; remove one of them")]


@pytest.mark.parametrize(("held_out", "told"), [([], "holds no rows"), (sums(1000, 1), "none of its 1 rows falls to")])
def test_a_held_out_manifest_without_both_splits_is_refused(tmp_path: Path, held_out: list[Any], told: str) -> None:
    ((key, problem),) = faults(built(tmp_path, sums(0, 3), held_out))
    assert key == "eval_manifest"
    assert told in problem


def test_validation_and_test_are_what_the_hash_says_whatever_else_the_manifest_holds(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    few, many = built(tmp_path / "few", sums(0, 3)), built(tmp_path / "many", sums(0, 3), sums(995, 40))
    for split in ("validation", "test"):
        texts = [{task.data["text"] for task in env.tasks(split, 100, seed=0)} for env in (few, many)]
        assert texts[0] < texts[1]
    assert len(few.tasks("validation", 100, seed=0)) + len(few.tasks("test", 100, seed=0)) == 20


def test_more_training_tasks_than_rows_are_rounds_over_all_rows_with_names_of_their_own(tmp_path: Path) -> None:
    tasks = built(tmp_path, sums(0, 4)).tasks("train", 10, seed=0)
    assert len({task.id for task in tasks}) == 10
    assert [len({task.data["text"] for task in tasks[start : start + 4]}) for start in (0, 4)] == [4, 4]


def test_a_manifest_that_was_checked_is_not_read_through_again_until_an_image_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from envs import manifest

    picture(tmp_path / "a.png")
    env = built(tmp_path, [{**SUM, "images": ["a.png"]}, *sums(5, 3)])
    version = env.data_version()
    manifest._load.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("envs.data.index._Scan.read", lambda *_: pytest.fail("read again"))
        assert env.data_version() == version
    picture(tmp_path / "a.png", colour="blue")
    manifest._load.cache_clear()
    assert env.data_version() != version


def test_a_damaged_cache_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from envs import manifest

    env = built(tmp_path, sums(0, 3))
    version = env.data_version()
    for kept in (tmp_path / "cache").rglob("*.npy"):
        kept.write_bytes(kept.read_bytes()[:40])
    manifest._load.cache_clear()
    assert env.data_version() == version
    manifest._load.cache_clear()
    monkeypatch.setattr("envs.data.index._Scan.read", lambda *_: pytest.fail("read a third time"))
    assert env.data_version() == version


def test_workers_that_start_together_agree_and_share_the_tasks_out(tmp_path: Path) -> None:
    env = built(tmp_path, sums(0, 200))
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(_task_ids, [env] * 4))
    assert found == [found[0]] * 4
    shards = [set(ids[number::4]) for number, ids in enumerate(found)]
    assert len(set.union(*shards)) == sum(map(len, shards)) == 64


def _task_ids(env: Manifest) -> list[str]:
    return [task.id for task in env.tasks("train", 64, seed=3)]


def test_an_env_that_has_read_its_data_stays_small_when_it_is_sent_away(tmp_path: Path) -> None:
    env = built(tmp_path, sums(0, 500))
    env.tasks("train", 1, seed=0)
    assert len(pickle.dumps(env)) < 5000


def test_a_judge_that_breaks_at_a_reference_names_the_line(tmp_path: Path) -> None:
    class Broken(Reward):
        def __call__(self, transcript: Transcript) -> float | None:
            return float(transcript.turns[-1].state["answer"]["value"])

    env = replace(built(tmp_path, [{**SUM, "kind": "own"}]), judges={"own": Broken(), "number": Broken()})
    found = [problem for key, problem in faults(env) if key == "train_manifest"]
    assert found == ["line 1: answer: its judge raised TypeError: 'int' object is not subscriptable"]


def test_kinds_of_judges_are_components_and_their_faults_are_told_with_their_keys() -> None:
    (told,) = configs.refusal("env=manifest", "env.judges.number.decimal=x")
    assert told.startswith("env.judges.number.decimal: wants ")
    (told,) = configs.refusal("env=manifest", "env.judges.text._target_=rewards.text_match.TextMach")
    assert told.startswith(
        "env.judges.text._target_: 'rewards.text_match' has no class 'TextMach'; did you mean TextMatch"
    )


def test_an_image_that_cannot_be_decoded_ends_its_episodes_and_names_its_line(tmp_path: Path, policy: Policy) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "torn.png")
    whole = (tmp_path / "torn.png").read_bytes()
    (tmp_path / "torn.png").write_bytes(whole[:3000] + bytes(1000) + whole[4000:])
    env = built(tmp_path, [{**SUM, "images": ["torn.png"]}, *sums(5, 1)])
    tasks = sorted(env.tasks("train", 2, seed=0), key=lambda task: task.data["line"])
    rollouts = _played(policy, env, tasks)
    assert [rollout.transcript.stop for rollout in rollouts] == ["error", "error", "finished", "finished"]
    assert "train.jsonl, line 1: " in (rollouts[0].transcript.error or "")


def _played(policy: Policy, env: Manifest, tasks: Sequence[Any], *, max_prompt_tokens: int = 512) -> list[Any]:
    sampling = Sampling(temperature=1.0, greedy=False, max_completion_tokens=6)
    settings: dict[str, Any] = {"purpose": (0,), "max_prompt_tokens": max_prompt_tokens, "rows_at_once": 64}
    return play(policy, env, tasks, siblings=2, sampling=sampling, **settings)


def test_every_sample_keeps_its_own_images_whatever_it_is_batched_with(tmp_path: Path, policy: Policy) -> None:
    rng = np.random.default_rng(0)
    for name, (height, width) in {"a": (225, 225), "b": (275, 275), "c": (64, 96), "d": (40, 200)}.items():
        Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    shows = [[], ["a"], ["b", "c", "d"], ["c"], ["a", "b"]]
    rows = [{**SUM, "prompt": "What?" + "!" * n, "images": [f"{x}.png" for x in show]} for n, show in enumerate(shows)]
    env = built(tmp_path, rows)
    tasks = sorted(env.tasks("train", 5, seed=0), key=lambda task: task.data["line"])
    together = _played(policy, env, tasks)
    assert [len(rollout.trace.images) for rollout in together[::2]] == [0, 1, 3, 1, 2]
    shuffled = {r.transcript.task.id: r for r in _played(policy, env, tasks[::-1])[::2]}
    for task, rollout in zip(tasks, together[::2], strict=True):
        (alone, _) = _played(policy, env, [task])
        for other in (alone, shuffled[task.id]):
            assert other.trace.token_ids.tolist() == rollout.trace.token_ids.tolist()
            np.testing.assert_allclose(other.trace.logprobs, rollout.trace.logprobs, atol=1e-4)


def test_a_prompt_that_would_cut_an_image_is_left_out_and_the_others_are_played(
    tmp_path: Path, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    picture(tmp_path / "a.png", size=(512, 512))  # 16 x 16 visual tokens
    env = built(tmp_path, [{**SUM, "images": ["a.png"]}, *sums(5, 1)])
    tasks = sorted(env.tasks("train", 2, seed=0), key=lambda task: task.data["line"])
    rollouts = _played(policy, env, tasks, max_prompt_tokens=128)
    assert [rollout.transcript.stop for rollout in rollouts] == ["error", "error", "finished", "finished"]
    assert re.fullmatch(
        r"TooLong: it needs 2\d\d tokens with its images, and algorithm.max_prompt_tokens is 128",
        rollouts[0].transcript.error or "",
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once a task, without a traceback"


def test_what_comes_before_the_question_is_rendered_in_its_role(policy: Policy) -> None:
    before = (Message(role="system", text="Be short."), Message(role="assistant", text="Yes <|im_end|>."))
    text = policy.tokenizer.decode(policy.chat.first_turn("Go?", (), before))
    assert text.startswith(
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>assistant\nYes < |im_end|>.<|im_end|>\n"
    )


def test_the_shipped_sample_is_what_its_script_draws(tmp_path: Path) -> None:
    sample_data.write(tmp_path, rows=120, seed=0)
    shipped = configs.ROOT / "data/sample"
    for name in ("train.jsonl", "eval.jsonl"):
        assert (tmp_path / name).read_text() == (shipped / name).read_text()
    for path in sorted((tmp_path / "images").iterdir()):
        drawn, kept = (np.asarray(Image.open(p).convert("RGB")) for p in (path, shipped / "images" / path.name))
        assert np.array_equal(drawn, kept)
