"""Turn data that others made into a manifest for env=manifest: OUT/train.jsonl, OUT/eval.jsonl, OUT/images/.

    python scripts/convert_data.py parquet FILE… --out OUT --question question --answer answer --image image
    python scripts/convert_data.py llava FILE.json --image-folder FOLDER --out OUT
    python scripts/convert_data.py verl FILE.parquet --out OUT       # SkyRL's too: prompt, images, ground truth

`parquet` is what Hugging Face `datasets` writes. `llava` is JSON or JSON lines; of a conversation, the first question
and its answer are taken. Images are bytes, {bytes, path}, paths or data: addresses, one or a list of them.

Every row is checked as env=manifest will check it; what cannot be used is left out, named with its reason and counted,
and so is what is asked twice. Parquet wants the extra [data].
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.progress import track

from envs.data.images import identify
from envs.data.rows import RowError, read_row, shown

TOLD = 20
KINDS = ("auto", "choice", "number", "text", "json", "box", "point", "math")
SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8": "jpg", b"RIFF": "webp", b"GIF8": "gif", b"BM": "bmp"}
LONGEST_NUMBER = 64
"""Characters; the reward term reads no longer ones."""
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


class Unusable(ValueError):
    """Why a row is left out."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A row of the source: what a manifest's row says, with images as bytes."""

    fields: Mapping[str, Any]
    """`prompt` or `messages`, and what else there is: `id`, `system`."""
    images: Sequence[bytes]
    answer: Any


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 done, 1 nothing could be used, 2 the command or a file is wrong."""
    options = _parser().parse_args(arguments)
    try:
        total, rows = SOURCES[options.source](options)
        output = _Output(
            folder=options.out, held_out=options.held_out, kind=options.kind, instruction=options.instruction
        )
        with output:
            for number, row in enumerate(track(rows, total=total, description="converting"), start=1):
                output.add(number, row)
    except (OSError, ValueError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for line in output.summary():
        print(line)
    return 0 if output.written else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=tuple(SOURCES), help="the form of the files")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--kind", choices=KINDS, default="auto", help="auto: one capital letter is choice, a number number"
    )
    parser.add_argument(
        "--instruction", metavar="TEXT", help="added to each question, such as: 'Answer in <answer>…</answer>.'"
    )
    parser.add_argument("--held-out", type=float, default=0.1, metavar="SHARE", help="of the rows, by content (0.1)")
    parser.add_argument("--question", default="question", metavar="COLUMN", help="parquet: the question's column")
    parser.add_argument("--answer", default="answer", metavar="COLUMN", help="parquet: the answer's column")
    parser.add_argument(
        "--image",
        metavar="COLUMN",
        help="parquet: the column of the image or images (image or images, if there is one)",
    )
    parser.add_argument(
        "--image-folder", type=Path, metavar="FOLDER", help="where relative image paths start (where the FILE lies)"
    )
    return parser


Rows = Iterator[Callable[[], Question]]
"""Each reads one row, or raises Unusable."""


def _parquet(options: argparse.Namespace) -> tuple[int, Rows]:
    def question(row: Mapping[str, Any], folder: Path) -> Question:
        missing = [name for name in (options.question, options.answer) if row[name] is None]
        if missing:
            raise Unusable(f"column {missing[0]!r} is empty")
        column = options.image or ("image" if "image" in row else "images")
        images = _encoded(row.get(column), folder)
        return Question(fields={"prompt": str(row[options.question])}, images=images, answer=row[options.answer])

    return _table(options, [options.question, options.answer, *filter(None, [options.image])], question)


def _verl(options: argparse.Namespace) -> tuple[int, Rows]:
    def question(row: Mapping[str, Any], folder: Path) -> Question:
        judged = row.get("reward_model") or row.get("reward_spec")
        if not isinstance(judged, Mapping) or judged.get("ground_truth") is None:
            raise Unusable("there is no reward_model.ground_truth (verl) or reward_spec.ground_truth (SkyRL)")
        prompt = row["prompt"]
        if not isinstance(prompt, list) or not prompt:
            raise Unusable("column 'prompt' is no list of messages")
        messages = [{"role": turn["role"], "content": turn["content"]} for turn in prompt]
        images = _encoded(row.get("images"), folder)
        return Question(fields={"messages": messages}, images=images, answer=judged["ground_truth"])

    return _table(options, ["prompt"], question)


def _table(
    options: argparse.Namespace, columns: Sequence[str], question: Callable[[Mapping[str, Any], Path], Question]
) -> tuple[int, Rows]:
    """Rows of parquet files, a batch at a time. Raises ImportError, OSError, or ValueError for a column not there."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            "parquet files want pyarrow: pip install 'hydra-grpo[data]', or pip install pyarrow"
        ) from error
    opened = {path: parquet.ParquetFile(path) for path in options.files}
    for path, file in opened.items():
        known = file.schema_arrow.names
        if missing := [name for name in columns if name not in known]:
            raise ValueError(f"{path} has no column {missing[0]!r}; it has {', '.join(known)}")

    def rows() -> Rows:
        for path, file in opened.items():
            folder = options.image_folder or path.parent
            for batch in file.iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    yield lambda row=row, folder=folder: question(row, folder)

    return sum(file.metadata.num_rows for file in opened.values()), rows()


def _llava(options: argparse.Namespace) -> tuple[int, Rows]:
    records = [
        (record, options.image_folder or file.parent) for file in options.files for record in _json_records(file)
    ]

    def question(record: Any, folder: Path) -> Question:
        if not isinstance(record, Mapping):
            raise Unusable(f"is {type(record).__name__}, and no object with a conversation")
        if record.get("video") or record.get("videos"):
            raise Unusable("holds a video; only images can be shown")
        turns = [_said(turn) for turn in record.get("conversations") or record["messages"]]
        system = [text for role, text in turns if role == "system"]
        said = [(role, text) for role, text in turns if role != "system"]
        if [role for role, _ in said[:2]] != ["user", "assistant"]:
            raise Unusable("the conversation does not begin with a question and its answer")
        images = _encoded(record.get("image") or record.get("images"), folder)
        fields = {"prompt": said[0][1], **({"system": system[0]} if system else {})}
        if record.get("id") is not None:
            fields["id"] = str(record["id"])
        return Question(fields=fields, images=images, answer=said[1][1])

    return len(records), iter([lambda record=record: question(*record) for record in records])


def _json_records(file: Path) -> list[Any]:
    """A list in one JSON value, or one value a line. Raises OSError or ValueError."""
    content = file.read_bytes()
    try:
        found = json.loads(content)
    except ValueError:
        try:
            found = [json.loads(line) for line in content.splitlines() if line.strip()]
        except ValueError as error:
            raise ValueError(f"{file} is neither JSON nor JSON lines: {error}") from error
    return found if isinstance(found, list) else [found]


def _said(turn: Mapping[str, str]) -> tuple[str, str]:
    """Role and text, in LLaVA's words (from, value) or OpenAI's (role, content)."""
    role, text = (turn["from"], turn["value"]) if "from" in turn else (turn["role"], turn["content"])
    return ROLES.get(role, role), text


SOURCES: Mapping[str, Callable[[argparse.Namespace], tuple[int, Rows]]] = {
    "parquet": _parquet,
    "llava": _llava,
    "verl": _verl,
}


def _encoded(value: Any, folder: Path) -> list[bytes]:
    """The images in a cell: bytes, Hugging Face's {bytes, path}, a path, a data: address, or a list of them."""
    if value is None:
        return []
    if isinstance(value, list):
        return [content for item in value for content in _encoded(item, folder)]
    if isinstance(value, Mapping):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, str) and value.startswith("data:"):
        try:
            return [base64.b64decode(value.partition(",")[2], validate=True)]
        except binascii.Error as error:
            raise Unusable(f"an image's data: address is no base64: {error}") from error
    if isinstance(value, str) and value:
        return [(folder / value).read_bytes()]
    raise Unusable(f"an image is {type(value).__name__}; bytes, {{bytes, path}}, a path or a data: address are read")


@dataclass(kw_only=True)
class _Output:
    """The folder that is written, and what is told at the end."""

    folder: Path
    held_out: float
    kind: str
    instruction: str | None
    written: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)

    def __enter__(self) -> _Output:
        if not 0 <= self.held_out < 1:
            raise ValueError(f"--held-out {self.held_out} is a share; use 0 up to 1")
        (self.folder / "images").mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        names = ("train", "eval") if self.held_out else ("train",)
        self._files = {
            name: self._stack.enter_context((self.folder / f"{name}.jsonl").open("w", encoding="utf-8"))
            for name in names
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, number: int, read: Callable[[], Question]) -> None:
        try:
            line, content, kind = self._line(read())
            if content in self.seen:
                raise Unusable("asks the same as a row before it")
        except (Unusable, RowError, OSError, KeyError, TypeError) as error:
            reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
            self.refused[re.sub(r"\d+", "…", reason)[:80]] += 1
            if len(self.told) < TOLD:
                self.told.append(f"row {number}: {reason}")
            return
        self.seen.add(content)
        name = "eval" if int.from_bytes(content[:4], "big") < self.held_out * 2**32 else "train"
        self._files[name].write(line)
        self.written[name] += 1
        self.kinds[kind] += 1

    def _line(self, question: Question) -> tuple[str, bytes, str]:
        """The manifest's line, the hash of what it shows, and its kind."""
        answer, kind = _answered(question.answer, self.kind)
        images = [self._image(content) for content in question.images]
        fields = question.fields if self.instruction is None else _instructed(question.fields, self.instruction)
        row = {**fields, "images": images, "answer": answer, "kind": kind}
        if row.get("id") in self.ids:
            del row["id"]  # other data may use a name twice; a manifest must not
        self.ids.add(row.get("id", ""))
        line = json.dumps(row, ensure_ascii=False)
        seen = shown(read_row(line.encode()))
        asked = repr((seen.asked, seen.images)).encode("utf-8", "surrogatepass")
        return f"{line}\n", hashlib.blake2b(asked, digest_size=16).digest(), kind

    def _image(self, content: bytes) -> str:
        """Named by its content, so that rows share it."""
        suffix = next((suffix for start, suffix in SUFFIXES.items() if content.startswith(start)), "img")
        name = f"images/{hashlib.sha256(content).hexdigest()[:24]}.{suffix}"
        path = self.folder / name
        if not path.exists():
            path.write_bytes(content)
            try:
                identify(str(path))
            except ValueError as error:
                path.unlink()
                raise Unusable(f"its image {error}") from error
        return name

    def summary(self) -> Iterator[str]:
        yield from self.told
        for reason, count in self.refused.most_common(TOLD):
            yield f"left out {count:,}: {reason}"
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.most_common())
        counts = ", ".join(f"{self.written[name]:,} rows in {self.folder / name}.jsonl" for name in self._files)
        yield f"written: {counts}{f' ({kinds})' if kinds else ''}; left out: {self.refused.total():,}"


def _instructed(fields: Mapping[str, Any], instruction: str) -> dict[str, Any]:
    """With the instruction behind the question, since data of others know nothing of the tag that answers stand in."""
    if "prompt" in fields:
        return {**fields, "prompt": f"{fields['prompt']}\n{instruction}"}
    *earlier, last = fields["messages"]
    content = last["content"]
    added = f"\n{instruction}"
    said = content + added if isinstance(content, str) else [*content, {"type": "text", "text": added}]
    return {**fields, "messages": [*earlier, {**last, "content": said}]}


def _answered(answer: Any, kind: str) -> tuple[Any, str]:
    """The answer as its kind wants it."""
    if kind in ("json", "box", "point") and isinstance(answer, str):
        try:
            return json.loads(answer), kind
        except ValueError as error:
            raise Unusable(f"its answer is no JSON, as kind {kind} wants: {error}") from error
    if kind != "auto":
        return answer, kind
    if isinstance(answer, str):
        answer = answer.strip()
        if re.fullmatch(r"[A-Z]", answer):
            return answer, "choice"
        # A leading zero is that of a code, such as 007.
        if len(answer) <= LONGEST_NUMBER and re.fullmatch(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]+)?", answer):
            return float(answer) if "." in answer else int(answer), "number"
        return answer, "text"
    if isinstance(answer, list) and all(isinstance(text, str) for text in answer):
        return answer, "text"
    if isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer):
        return answer, "number"
    raise Unusable(f"its answer is {type(answer).__name__}; say what it is with --kind")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
