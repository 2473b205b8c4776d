"""Questions about images (or none), one JSON object a line: your own data. The README shows a row.

Whether an answer is right is judged by reward terms that the config names, one for each kind of answer; `solved` means
that the term of the row's kind gave 1.0. So the same code judges and pays, and this file knows no way of comparing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from random import Random
from typing import Any

import numpy as np

from envs.data import images
from envs.data.index import TOLD, Index, open_index, repeats
from envs.data.rows import Row, RowError, shown
from grpo.interfaces import DataError, Env, Episode, Reward
from grpo.types import Message, Observation, Outcome, Split, Task, Transcript, Turn

LONGEST_ANSWER = 10_000
"""Characters. What stands in the answer's place and is longer is no answer, so that no term ever judges a megabyte."""

REMEMBERED = 100_000
"""Distinct answers that are known to be comparable, while a manifest is checked."""


@dataclass(frozen=True, kw_only=True)
class Manifest(Env):
    """Rows of `eval_manifest` are validation tasks if the hash of what they show is even, and test tasks if it is odd:
    no row changes sides when others come or go. A row that both manifests hold is refused.
    """

    train_manifest: str
    """A JSON-lines file: a path, relative to the repository's root, or an s3:// address."""
    eval_manifest: str
    max_turns: int
    answer_tag: str | None
    """The answer is what stands in the one `<tag>…</tag>` of the reply; two of them are no answer. null: it is the
    whole reply."""
    max_pixels: int
    """Larger images are scaled down to it."""
    judges: Mapping[str, Reward]
    """Kind of answer -> the reward term that compares it with the reference."""

    def __post_init__(self) -> None:
        if self.max_turns != 1:
            raise ValueError(f"max_turns={self.max_turns}: a question is answered in one turn; use 1")
        if self.train_manifest == self.eval_manifest:
            raise ValueError(f"train_manifest and eval_manifest are the same ({self.train_manifest}); hold tasks out")
        if self.answer_tag is not None and not self.answer_tag.isidentifier():
            raise ValueError(
                f"answer_tag={self.answer_tag!r} is no tag name; write it without brackets, such as answer"
            )
        if self.max_pixels < 1024:
            raise ValueError(f"max_pixels={self.max_pixels} leaves nothing to see; use 1024 or more")
        if not self.judges:
            raise ValueError("judges is empty, so no answer could be right; name a reward term for each kind of answer")

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        train, held_out, sides = _loaded(self)
        rng = Random(f"{split}/{seed}")
        if split == "train":
            # More than there are: all of them, then all of them again under other names, which draw other replies.
            rounds, rest = divmod(count, len(train))
            chosen = [rng.sample(range(len(train)), len(train)) for _ in range(rounds)]
            chosen.append(rng.sample(range(len(train)), rest))
            return [_task(train, row, split, again) for again, rows in enumerate(chosen) for row in rows]
        rows = sides[split]
        return [_task(held_out, int(row), split, 0) for row in rng.sample(rows.tolist(), min(count, len(rows)))]

    def episode(self, task: Task) -> ManifestEpisode:
        return ManifestEpisode(task, self)

    def min_turns(self, task: Task) -> int | None:
        return 1

    def data_version(self) -> str | None:
        train, held_out, _ = _loaded(self)
        return f"{train.version[:32]}-{held_out.version[:32]}"


class ManifestEpisode(Episode):
    """One question, asked once."""

    def __init__(self, task: Task, env: Manifest) -> None:
        self._data, self._env = task.data, env
        self._task = task
        self._done = False

    def observe(self) -> Observation:
        before = tuple(Message(role=role, text=text) for role, text in self._data["before"])
        return Observation(
            text=self._data["text"],
            images=tuple(image for image, _ in self._images),
            before=before,
            places=tuple(self._data["places"]),
        )

    def state(self) -> Mapping[str, Any]:
        sizes = [list(size) for _, size in self._images]
        optional = {key: self._data[key] for key in ("choices", "facts") if self._data[key] is not None}
        return {"answer": self._data["answer"], "kind": self._data["kind"], "image_sizes": sizes, **optional}

    def act(self, reply: str) -> Outcome:
        if self._done:
            raise RuntimeError("this episode has ended; make another one with env.episode(task)")
        answer = find_answer(reply, self._env.answer_tag)
        state = self.state()
        judge = self._env.judges[state["kind"]]
        value = judge(_one_turn(self._task, self.observe(), state, reply, answer))
        self._done = True
        feedback = "No answer was found." if answer is None else "The question is answered."
        return Outcome(action=answer, feedback=feedback, done=True, solved=value is not None and value >= 1.0)

    def expert(self) -> str | None:
        answer = self._data["answer"]
        first = answer[0] if self._data["kind"] == "text" and isinstance(answer, list) else answer
        text = first if isinstance(first, str) else _json(first)
        return text if self._env.answer_tag is None else f"<{self._env.answer_tag}>{text}</{self._env.answer_tag}>"

    def text(self) -> str:
        return f"{self._data['text']}\nreference: {_json(self._data['answer'])} ({self._data['kind']})"

    @cached_property
    def _images(self) -> list[tuple[np.ndarray, tuple[int, int]]]:
        try:
            return [images.load(path, self._env.max_pixels) for path in self._data["images"]]
        except (OSError, ValueError) as error:
            raise type(error)(f"{self._data['manifest']}, line {self._data['line']}: {error}") from error


def find_answer(reply: str, tag: str | None) -> str | None:
    """What stands in the one `<tag>…</tag>` of `reply`, or the whole of it; None if it is empty or implausibly long.

    Linear in the length of the reply.
    """
    if tag is not None:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if reply.count(opening) != 1 or reply.count(closing) != 1:
            return None
        reply = reply[reply.index(opening) + len(opening) : reply.index(closing)]
    answer = reply.strip()
    return answer if 0 < len(answer) <= LONGEST_ANSWER else None


def _one_turn(
    task: Task, observation: Observation, state: Mapping[str, Any], reply: str, answer: str | None
) -> Transcript:
    outcome = Outcome(action=answer, feedback="", done=True, solved=False)
    turn = Turn(
        observation=observation, state=state, reply=reply, completion_tokens=0, truncated=False, outcome=outcome
    )
    return Transcript(task=task, turns=(turn,), stop="finished", error=None)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _task(index: Index, number: int, split: Split, again: int) -> Task:
    row = index.row(number)
    seen = shown(row)
    content = index.content_N16[number].tobytes()
    side = "train" if split == "train" else "eval"
    repeat = f"#{again + 1}" if again else ""
    return Task(
        id=f"{side}/{row.id or content.hex()[:16]}{repeat}",
        split=split,
        seed=int.from_bytes(content[:6], "big"),
        data={
            "manifest": index.address,
            "line": int(index.lines_N[number]),
            "text": seen.text,
            "before": [[message.role, message.text] for message in seen.before],
            "images": index.image_paths(seen),
            "places": list(seen.places),
            "answer": row.answer,
            "kind": row.kind,
            "choices": row.choices,
            "facts": row.facts,
            "tags": row.tags,
        },
    )


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """Judges with a hash, which a mapping has not."""

    name: str
    judges: Mapping[str, Reward] = field(compare=False)


_Loaded = tuple[Index, Index, Mapping[Split, np.ndarray]]


def _loaded(env: Manifest) -> _Loaded:
    """Both manifests, and the rows of each held-out split. Raises DataError."""
    judged = _Judged(name=repr(sorted(env.judges.items())), judges=env.judges)
    return _load(env.train_manifest, env.eval_manifest, judged)


@lru_cache(maxsize=4)
def _load(train_address: str, eval_address: str, judged: _Judged) -> _Loaded:
    found: dict[str, Index] = {}
    faults: list[tuple[str, str]] = []
    for key, address in (("train_manifest", train_address), ("eval_manifest", eval_address)):
        try:
            found[key], told = open_index(address, key, _Check(judged.judges), judged.name)
            faults += told
        except DataError as error:
            faults += error.faults
    if len(found) == 2:
        faults += _leaks(found["train_manifest"], found["eval_manifest"])
    if faults:
        raise DataError(faults)
    train, held_out = found["train_manifest"], found["eval_manifest"]
    odd = held_out.content_N16[:, 0] % 2 == 1
    sides: dict[Split, np.ndarray] = {"validation": np.flatnonzero(~odd), "test": np.flatnonzero(odd)}
    for split, rows in sides.items():
        if not len(rows):
            faults.append(("eval_manifest", f"none of its {len(held_out)} rows falls to {split}; add some"))
    if faults:
        raise DataError(faults)
    return train, held_out, sides


def _leaks(train: Index, held_out: Index) -> Iterator[tuple[str, str]]:
    both = repeats(np.concatenate([train.content_N16, held_out.content_N16]))
    pairs = [(first, second) for first, second in both if first < len(train) <= second]
    for first, second in pairs[:TOLD]:
        here, there = held_out.lines_N[second - len(train)], train.lines_N[first]
        yield "eval_manifest", f"line {here}: asks the same as line {there} of train_manifest; remove one of them"
    if len(pairs) > TOLD:
        yield "eval_manifest", f"and {len(pairs) - TOLD:,} more; {len(pairs):,} rows are in both"


class _Check:
    """Can a row's reference be compared with? Asked by judging an empty answer, once for each distinct reference."""

    def __init__(self, judges: Mapping[str, Reward]) -> None:
        self._judges = judges
        self._sound: set[tuple[str, str]] = set()

    def __call__(self, row: Row) -> None:
        judge = self._judges.get(row.kind)
        if judge is None:
            raise RowError("kind", f"{row.kind!r} has no judge; env.judges has {', '.join(self._judges)}")
        name = (row.kind, repr((row.answer, row.choices)))
        if name in self._sound:
            return
        state = {"answer": row.answer, "kind": row.kind, **({"choices": row.choices} if row.choices else {})}
        try:
            judge(_one_turn(_NO_TASK, _NOTHING, state, "", ""))
        except ValueError as error:
            raise RowError("answer", str(error)) from error
        # A judge may be anybody's code; what it stumbles over is a line of the data.
        except Exception as error:
            raise RowError("answer", f"its judge raised {type(error).__name__}: {error}") from error
        if len(self._sound) < REMEMBERED:
            self._sound.add(name)


_NO_TASK = Task(id="check", split="train", seed=0, data={})
_NOTHING = Observation(text="", images=())
