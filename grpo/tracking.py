"""The run's own log, and the tracker that may copy it to a service.

`metrics.jsonl` and `rollouts.jsonl` are always written, whatever the tracker does: every number of a run can be read
without an account. Each append opens, writes and closes the file, so that a killed run loses at most the line that it
was writing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from grpo.files import sync, write_text, writing
from grpo.interfaces import Tracker
from grpo.redact import hide
from grpo.wandb_tracker import WandbTracker

if TYPE_CHECKING:
    import numpy as np

    from grpo import schema
    from grpo.types import Rollout, Score, Turn

log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
ROLLOUTS_FILE = "rollouts.jsonl"
IMAGES_FOLDER = "images"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A sampled rollout, ready to be written."""

    record: Mapping[str, Any]
    """Its line of rollouts.jsonl."""
    images: Mapping[str, np.ndarray]
    """Path within the run folder -> uint8 height x width x 3, for every image that `record` names."""


def rollout_row(
    step: int, rollout: Rollout, score: Score, advantage: float | None, final_text: str | None = None
) -> Row:
    """The row of one rollout; `advantage` is None outside training, `final_text` the env's last drawing."""
    transcript = rollout.transcript
    paths = [[_image_path(image) for image in turn.observation.images] for turn in transcript.turns]
    record = {
        "step": step,
        "split": transcript.task.split,
        "task": transcript.task.id,
        "sample": rollout.sample,
        "solved": transcript.solved,
        "stop": transcript.stop,
        "error": None if transcript.error is None else hide(transcript.error),
        "total": score.total,
        "terms": dict(score.terms),
        "advantage": advantage,
        "turns": [_turn_record(turn, names) for turn, names in zip(transcript.turns, paths, strict=True)],
        "final_text": rollout.final_text,
    }
    images = {
        path: image
        for turn, names in zip(transcript.turns, paths, strict=True)
        for path, image in zip(names, turn.observation.images, strict=True)
    }
    return Row(record=record, images=images)


def _turn_record(turn: Turn, image_paths: Sequence[str]) -> dict[str, Any]:
    return {
        "text": turn.observation.text,
        "images": list(image_paths),
        "places": list(turn.observation.places),
        "state": dict(turn.state),
        "reply": turn.reply,
        "action": turn.outcome.action,
        "feedback": turn.outcome.feedback,
        "completion_tokens": turn.completion_tokens,
        "truncated": turn.truncated,
    }


def _image_path(image: np.ndarray) -> str:
    """Named by its content, so that siblings and repeated views share one file."""
    digest = hashlib.sha256(repr(image.shape).encode() + image.tobytes()).hexdigest()[:20]
    return f"{IMAGES_FOLDER}/{digest}.png"


class RunLog:
    """What a run writes while it trains. `tracker` is started by the caller and gets a copy of everything."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self._folder = folder
        self._tracker = tracker

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the line of `step`, evaluation included (step 0 is the start policy).

        Raises ValueError or TypeError, and writes nothing, if a metric is not a finite number.
        """
        numbers = {name: _finite(step, name, value) for name, value in metrics.items()}
        _append(self._folder / METRICS_FILE, {"step": step, **numbers})
        self._tracker.log(step, numbers)

    def rollouts(self, step: int, rows: Sequence[Row]) -> None:
        """Append one line a row and store the images that are not there yet. Raises ValueError for NaN in a row."""
        for row in rows:
            for path, image in row.images.items():
                _store_image(self._folder / path, image)
            _append(self._folder / ROLLOUTS_FILE, row.record)
        self._tracker.samples(step, [row.record for row in rows])

    def truncate(self, step: int) -> None:
        """Cut what was logged after `step`, before a run resumes from its checkpoint; half a line goes too."""
        for name in (METRICS_FILE, ROLLOUTS_FILE):
            path = self._folder / name
            if path.exists():
                _cut_after(path, step)

    def sync(self) -> None:
        """Wait until everything so far is on the disk: a checkpoint must not outlive the lines of its steps."""
        for name in (METRICS_FILE, ROLLOUTS_FILE):
            path = self._folder / name
            if path.exists():
                with writing(f"line of {name}", path, self._folder):
                    sync(path)

    def finish(self, exit_code: int) -> None:
        self._tracker.finish(exit_code)


def _finite(step: int, name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"metric {name} of step {step} is {value!r} ({type(value).__name__}); wanted a number: "
            "convert it where it is computed"
        )
    if not math.isfinite(value):
        raise ValueError(
            f"metric {name} of step {step} is {float(value)}; wanted a finite number: "
            "leave the metric out where it is undefined"
        )
    return float(value)


def _append(path: Path, record: Mapping[str, Any]) -> None:
    try:
        line = json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        where = {key: record[key] for key in ("step", "task", "sample") if key in record}
        raise ValueError(
            f"{path.name}: the line of {where} is not JSON ({error}); wanted finite numbers, text, lists"
        ) from error
    with writing(f"line of {path.name}", path, path.parent), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _store_image(path: Path, image: np.ndarray) -> None:
    if path.exists():
        return
    # Written aside: a run killed in between must not leave half an image under a name that promises the whole.
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    with writing("image", path, path.parent.parent):
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(aside, format="PNG")
        aside.replace(path)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a .jsonl file. A last line without its newline was cut by a crash: it is dropped and said.

    Raises ValueError for a line that is whole and yet not a JSON object.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                log.warning("%s:%d is half a line (%d characters), left by a crash; dropped", path, number, len(line))
                return
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}:{number} is not JSON ({error}); remove the line to go on without it"
                ) from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number} holds {type(record).__name__}, wanted an object; remove the line")
            yield record


def _cut_after(path: Path, step: int) -> None:
    records = list(read_lines(path))
    kept = [record for record in records if record["step"] <= step]
    if len(kept) < len(records):
        log.info("%s: cut %d lines after step %d", path.name, len(records) - len(kept), step)
    with writing(path.name, path, path.parent):
        write_text(path, "".join(json.dumps(record) + "\n" for record in kept))


class NullTracker(Tracker):
    """Copies nothing anywhere."""

    def start(self, *, folder: str, name: str, config: Mapping[str, Any]) -> None:
        pass

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        pass

    def finish(self, exit_code: int) -> None:
        pass


def make_tracker(config: schema.WandbTracker | schema.NoTracker) -> Tracker:
    if config.name == "none":
        return NullTracker()
    return WandbTracker(project=config.project, entity=config.entity, mode=config.mode)
