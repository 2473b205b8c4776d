"""What every reward term must do: those of each conf/reward/*.yaml, and the others of the project.

A yaml of your own is tested here as soon as it exists.
"""

import math
import pickle
from pathlib import Path

import pytest
from builders import image, replies, transcript, turn
from hydra import compose, initialize_config_dir

from grpo.config import build_rewards, parse, plain
from grpo.interfaces import Reward
from grpo.reward import Mixture
from grpo.types import Transcript
from rewards.action_validity import ActionValidity
from rewards.box_iou import BoxIou
from rewards.brevity import Brevity
from rewards.field_match import FieldMatch
from rewards.json_schema import JsonSchema
from rewards.math_answer import MathAnswer
from rewards.multiple_choice import MultipleChoice
from rewards.numeric import Numeric
from rewards.point_in_box import PointInBox
from rewards.redundancy import Redundancy
from rewards.safety import Safety
from rewards.text_match import TextMatch
from rewards.visual_grounding import VisualGrounding

CONF = Path(__file__).parent.parent / "conf"
PRESETS = sorted(path.stem for path in (CONF / "reward").glob("*.yaml"))
OTHER_TERMS: list[Reward] = [
    ActionValidity(),
    Brevity(free_tokens=4, max_tokens=40),
    Redundancy(),
    Safety(forbidden=("rm -rf",), forbidden_actions=("delete",)),
    VisualGrounding(facts=("agent", "goal", "open")),
    VisualGrounding(facts=()),
    BoxIou(reference_frame="pixel", answer_frame="thousand", threshold=None),
    FieldMatch(),
    JsonSchema(schema={"type": "object"}),
    MathAnswer(timeout_seconds=1.0),
    MultipleChoice(),
    Numeric(absolute_tolerance=0.0, relative_tolerance=0.0, decimal=".", thousands=",", units={"": 1.0}),
    PointInBox(reference_frame="normalised", answer_frame="normalised"),
    TextMatch(ignore=("case",)),
]
TRANSCRIPTS: dict[str, Transcript] = {
    "solved": transcript(turn(images=(image(),)), turn(reply="<action>stop</action>", done=True, solved=True)),
    "stopped": transcript(turn(reply="<action>stop</action>", action="stop", done=True)),
    "empty": transcript(stop="token_limit"),
    "errored": transcript(turn(), stop="error", error="ValueError: boom"),
    "errored_at_once": transcript(stop="error", error="ValueError: boom"),
    "cut": transcript(turn(reply="<action>ri", action=None, tokens=512, truncated=True), stop="turn_limit"),
    "hostile": replies("", "\x00", "<action>" * 1000, "(" * 3000, '{"a":', "\ud800", "9" * 5000),
}
"""Every way in which an episode can end, and text that a tired model may write."""


def preset(name: str) -> Mixture:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        run = parse(plain(compose("config", overrides=[f"reward={name}"])))
    weights = {term: settings.weight for term, settings in run.reward.terms.items()}
    return Mixture(terms=build_rewards(run), weights=weights, gate=run.reward.gate)


@pytest.fixture(scope="module")
def mixtures() -> dict[str, Mixture]:
    return {name: preset(name) for name in PRESETS}


def check(term: Reward, played: Transcript) -> None:
    value = term(played)
    assert value is None or (type(value) is float and math.isfinite(value))
    assert term(played) == value
    assert pickle.loads(pickle.dumps(term))(played) == value


@pytest.mark.parametrize("case", TRANSCRIPTS)
@pytest.mark.parametrize("name", PRESETS)
def test_every_term_of_a_preset_gives_the_same_finite_number_or_none(mixtures, name: str, case: str) -> None:
    for term in mixtures[name].terms.values():
        check(term, TRANSCRIPTS[case])
    assert math.isfinite(mixtures[name](TRANSCRIPTS[case], where=case).total)


@pytest.mark.parametrize("case", TRANSCRIPTS)
@pytest.mark.parametrize("term", OTHER_TERMS, ids=lambda term: type(term).__name__)
def test_every_other_term_gives_the_same_finite_number_or_none(term: Reward, case: str) -> None:
    check(term, TRANSCRIPTS[case])


@pytest.mark.parametrize("name", PRESETS)
def test_solving_pays_more_than_stopping_at_once_under_every_preset(mixtures, name: str) -> None:
    totals = {case: mixtures[name](TRANSCRIPTS[case], where=case).total for case in ("solved", "stopped")}
    assert totals["solved"] > totals["stopped"]


def test_the_shipped_presets_pay_what_their_comments_say(mixtures) -> None:
    def totals(name: str) -> list[float]:
        return [mixtures[name](TRANSCRIPTS[case], where=case).total for case in ("solved", "stopped", "cut")]

    assert totals("maze_strict") == [1.2, 0.0, 0.0]
    assert totals("maze_shaped") == [1.0, 0.2, 0.0]
    assert totals("maze_task_only") == [1.0, 0.0, 0.0]
    assert totals("vqa_strict") == [1.0, 0.0, 0.0]  # its tag is <answer>
