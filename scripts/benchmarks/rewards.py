"""Evaluations a second of each text term, in this process: half right answers, half what a tired model writes.

The goal is one core's. `math` and terms in worker processes are left out: there a library or a pipe is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from grpo.interfaces import Reward
from grpo.types import Observation, Outcome, Task, Transcript, Turn
from rewards.action_validity import ActionValidity
from rewards.answer_format import AnswerFormat
from rewards.box_iou import BoxIou
from rewards.brevity import Brevity
from rewards.field_match import FieldMatch
from rewards.json_schema import JsonSchema
from rewards.multiple_choice import MultipleChoice
from rewards.numeric import Numeric
from rewards.point_in_box import PointInBox
from rewards.redundancy import Redundancy
from rewards.safety import Safety
from rewards.task_success import TaskSuccess
from rewards.text_match import TextMatch
from rewards.visual_grounding import VisualGrounding
from scripts.benchmarks.measure import Goal, Result, Stopwatch, alone

GOAL = 20_000
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["name", "year"],
}
PERSON = {"name": "Ada Lovelace", "year": 1815}
GRADED: tuple[tuple[str, Reward, Any, str], ...] = (
    ("multiple_choice", MultipleChoice(), "B", "B. Paris"),
    (
        "numeric",
        Numeric(
            absolute_tolerance=1e-6, relative_tolerance=0.0, decimal=".", thousands=",", units={"": 1.0, "km": 1e3}
        ),
        1234.5,
        "1,234.5",
    ),
    (
        "text_match",
        TextMatch(ignore=("case", "space", "punctuation", "width")),
        "The Eiffel Tower",
        "the eiffel tower.",
    ),
    ("field_match", FieldMatch(), PERSON, json.dumps(PERSON)),
    ("json_schema", JsonSchema(schema=SCHEMA), PERSON, json.dumps(PERSON)),
    (
        "box_iou",
        BoxIou(reference_frame="thousand", answer_frame="thousand", threshold=None),
        [1, 2, 30, 40],
        "[1,2,31,41]",
    ),
    ("point_in_box", PointInBox(reference_frame="thousand", answer_frame="thousand"), [1, 2, 30, 40], "[15, 20]"),
    ("answer_format", AnswerFormat(tags=("answer",)), 0, "3"),
    ("visual_grounding", VisualGrounding(facts=()), 0, "3"),
    ("brevity", Brevity(free_tokens=40, max_tokens=400), 0, "3"),
    ("redundancy", Redundancy(), 0, "3"),
    ("safety", Safety(forbidden=("rm -rf", "password"), forbidden_actions=()), 0, "3"),
    ("action_validity", ActionValidity(), 0, "3"),
    ("task_success", TaskSuccess(), 0, "3"),
)
"""(name, term, reference, an answer that is right)."""


def measure(options: argparse.Namespace) -> Result:
    rates = {
        name: median(_rate(term, reference, answer, options.evaluations) for _ in range(options.repeats))
        for name, term, reference, answer in GRADED
    }
    goal = Goal(of="ours", sense="at least", value=GOAL)
    return Result(
        name="rewards",
        peer="",
        figures=tuple(alone(name, "evaluations / CPU s", rate, goal) for name, rate in rates.items()),
        details={"evaluations": options.evaluations, "rates": rates},
    )


def _rate(term: Reward, reference: Any, answer: str, evaluations: int) -> float:
    transcripts = list(itertools.islice(_transcripts(reference, answer), evaluations))
    watch = Stopwatch()
    for transcript in transcripts:
        term(transcript)
    return evaluations / watch.spent().cpu


def _transcripts(reference: Any, answer: str) -> Iterator[Transcript]:
    """Each different from the one before, so that nothing is answered from a memory."""
    task = Task(id="benchmark", split="train", seed=0, data={})
    state = {"answer": reference, "choices": ["Rome", "Paris", "Oslo"], "facts": {"red": 3, "blue": 2}}
    for number in itertools.count():
        said = answer if number % 2 else f"{answer} or {number}?"
        thought = f"I see {number} shapes. The red ones are three, the blue ones are two; nothing else is there."
        reply = f"<observation>red 3, blue {number}</observation>{thought} <answer>{said}</answer>"
        outcome = Outcome(action=said, feedback="", done=True, solved=False)
        shown = Observation(text="How many?", images=())
        turn = Turn(observation=shown, state=state, reply=reply, completion_tokens=60, truncated=False, outcome=outcome)
        yield Transcript(task=task, turns=(turn,), stop="finished", error=None)
