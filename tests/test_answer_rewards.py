"""The terms that compare an answer with a reference: values worked out by hand, and what a policy might try instead."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from builders import transcript, turn
from hypothesis import given
from hypothesis import strategies as st

from grpo.interfaces import Reward
from rewards.box_iou import BoxIou
from rewards.field_match import FieldMatch
from rewards.json_schema import JsonSchema
from rewards.math_answer import MathAnswer
from rewards.multiple_choice import MultipleChoice
from rewards.numeric import Numeric
from rewards.point_in_box import PointInBox
from rewards.text_match import TextMatch
from rewards.visual_grounding import VisualGrounding

ENGLISH = Numeric(absolute_tolerance=0.0, relative_tolerance=0.0, decimal=".", thousands=",", units={"": 1.0})
GERMAN = Numeric(absolute_tolerance=0.0, relative_tolerance=0.0, decimal=",", thousands=".", units={"": 1.0})
LENGTH = Numeric(
    absolute_tolerance=0.0, relative_tolerance=0.01, decimal=".", thousands="", units={"m": 1.0, "cm": 0.01}
)
MONEY = Numeric(absolute_tolerance=0.005, relative_tolerance=0.0, decimal=".", thousands=",", units={"": 1.0, "$": 1.0})
CHOICE = MultipleChoice()
EXACT = TextMatch(ignore=())
LOOSE = TextMatch(ignore=("case", "space", "punctuation", "accents", "width"))
IOU = BoxIou(reference_frame="thousand", answer_frame="thousand", threshold=None)
POINT = PointInBox(reference_frame="thousand", answer_frame="thousand")
MATH = MathAnswer(timeout_seconds=1.0)
PERSON = JsonSchema(
    schema={
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
TERMS: list[tuple[Reward, Any]] = [
    (ENGLISH, 3),
    (GERMAN, "1.234,5"),
    (CHOICE, "B"),
    (EXACT, "Paris"),
    (LOOSE, ["Paris", "the capital"]),
    (FieldMatch(), {"a": 1}),
    (PERSON, None),
    (IOU, [0, 0, 100, 100]),
    (POINT, [0, 0, 100, 100]),
]


def judged(term: Reward, answer: str | None, reference: Any, **state: Any) -> float | None:
    return term(transcript(turn(action=answer, state={"answer": reference} | state)))


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("1234.5", 1.0),
        ("1,234.5", 1.0),
        (" +1,234.50 ", 1.0),
        ("1.2345e3", 1.0),
        ("1234.50.", 0.0),
        ("3/4", 0.0),
        ("--1234.5", 0.0),
        ("1.234,5", 0.0),
        ("12,34.5", 0.0),  # thousands in twos
        ("1234.5 or 7", 0.0),
        ("1234.5, 7", 0.0),
        ("1234.6", 0.0),
        ("-1234.5", 0.0),
        ("\u0661\u0662\u0663\u0664.5", 0.0),  # Arabic digits are no 0-9
        ("\uff11234.5", 0.0),  # a full-width 1
        ("1234.5 m", 0.0),
        ("1e999", 0.0),
        ("nan", 0.0),
        ("Infinity", 0.0),
        ("0x4d2", 0.0),
        ("1_234.5", 0.0),
        ("9" * 5000, 0.0),
        ("", 0.0),
    ],
)
def test_an_english_number(answer: str, value: float) -> None:
    assert judged(ENGLISH, answer, 1234.5) == value


def test_one_text_is_another_number_in_another_country() -> None:
    assert [judged(term, "1.234", 1234) for term in (ENGLISH, GERMAN)] == [0.0, 1.0]
    assert [judged(term, "1.234", 1.234) for term in (ENGLISH, GERMAN)] == [1.0, 0.0]
    assert judged(GERMAN, "1.234,5", "1.234,5") == 1.0


def test_a_true_minus_sign_is_a_minus_sign() -> None:
    assert judged(ENGLISH, "\u22127", -7) == 1.0


def test_a_number_may_begin_or_end_with_its_decimal_separator() -> None:
    assert [judged(ENGLISH, text, reference) for text, reference in ((".5", 0.5), ("5.", 5), (".", 0))] == [
        1.0,
        1.0,
        0.0,
    ]


def test_long_numbers_are_compared_digit_for_digit() -> None:
    product = 98765432109876543210
    assert [judged(ENGLISH, str(product + off), product) for off in (0, 1)] == [1.0, 0.0]
    assert judged(ENGLISH, f"{product:,}", str(product)) == 1.0
    assert judged(ENGLISH, "0.3", 0.1 + 0.2) == 0.0  # 0.30000000000000004 is what it says
    assert judged(ENGLISH, "1e400", 10**300) == 0.0


def test_separators_that_do_not_break_and_curly_apostrophes_are_separators() -> None:
    french = Numeric(absolute_tolerance=0.0, relative_tolerance=0.0, decimal=",", thousands=" ", units={"": 1.0})
    swiss = Numeric(absolute_tolerance=0.0, relative_tolerance=0.0, decimal=".", thousands="'", units={"": 1.0})
    assert [judged(french, f"1{space}234,5", 1234.5) for space in " \u00a0\u202f\u2009"] == [1.0] * 4
    assert [judged(swiss, f"1{mark}234.5", 1234.5) for mark in ("'", "\u2019")] == [1.0, 1.0]


def test_units_are_converted_and_a_needed_unit_must_be_named() -> None:
    assert judged(LENGTH, "250 cm", 2.5) == 1.0
    assert judged(LENGTH, "2.52 m", 2.5) == 1.0  # within 1 %
    assert judged(LENGTH, "2.53m", 2.5) == 0.0
    assert judged(LENGTH, "2.5", 2.5) == 0.0
    assert judged(LENGTH, "cm 250 cm", 2.5) == 0.0
    assert judged(MONEY, "$1,234.50", 1234.5) == 1.0
    assert judged(MONEY, "1234.504", 1234.5) == 1.0
    assert [judged(MONEY, text, -5) for text in ("-$5", "$-5", "\u2212$5.00", "-$-5", "$5")] == [
        1.0,
        1.0,
        1.0,
        0.0,
        0.0,
    ]


def test_a_tolerance_of_nothing_around_zero_takes_zero_alone() -> None:
    relative = Numeric(absolute_tolerance=0.0, relative_tolerance=0.1, decimal=".", thousands="", units={"": 1.0})
    assert [judged(relative, text, 0) for text in ("0", "-0.0", "0.0001")] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"absolute_tolerance": -1.0}, "at least 0"),
        ({"absolute_tolerance": float("nan")}, "at least 0"),
        ({"relative_tolerance": float("inf")}, "finite"),
        ({"thousands": "."}, "must differ"),
        ({"units": {"m": 0.0}}, "one 'm' cannot be 0.0"),
        ({"units": {}}, "no answer could be right"),
    ],
)
def test_a_number_format_that_cannot_work_is_refused(fields: dict[str, Any], match: str) -> None:
    sound = {"absolute_tolerance": 0.0, "relative_tolerance": 0.0, "decimal": ".", "thousands": ",", "units": {"": 1.0}}
    with pytest.raises(ValueError, match=match):
        Numeric(**(sound | fields))


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("B", 1.0),
        ("b", 1.0),
        ("(B)", 1.0),
        ("B.", 1.0),
        ("Paris", 1.0),
        (" paris ", 1.0),
        ("B. Paris", 1.0),
        ("(b) Paris", 1.0),
        ("B. Rome", 0.0),
        ("A", 0.0),
        ("A or B", 0.0),
        ("A B", 0.0),
        ("A, B, C", 0.0),
        ("AB", 0.0),
        ("not A but B", 0.0),
        ("Paris Rome", 0.0),
        ("D", 0.0),
        ("\uff22", 0.0),
        ("", 0.0),
    ],
)
def test_a_choice_between_three_cities(answer: str, value: float) -> None:
    assert judged(CHOICE, answer, "B", choices=["Rome", "Paris", "Oslo"]) == value
    assert judged(CHOICE, answer, "Paris", choices=["Rome", "Paris", "Oslo"]) == value


def test_without_listed_choices_only_letters_count() -> None:
    assert [judged(CHOICE, text, "B") for text in ("B", "(b)", "Paris", "B. Paris")] == [1.0, 1.0, 0.0, 0.0]


def test_a_lone_letter_is_an_options_letter_and_not_its_text() -> None:
    assert [judged(CHOICE, text, "A", choices=["B", "A"]) for text in ("A", "B", "A. B")] == [1.0, 0.0, 1.0]


def test_exact_text_is_exact_and_loose_text_overlooks_what_it_says() -> None:
    assert [judged(EXACT, text, "Café") for text in ("Café", "Cafe\u0301", "café", "Café.")] == [1.0, 1.0, 0.0, 0.0]
    assert [judged(LOOSE, text, "Café") for text in ("CAFE!", " caf\u00e9 ", "\uff23afe", "Cafe bar")] == [1, 1, 1, 0]
    assert judged(LOOSE, "the capital", ["Paris", "the capital"]) == 1.0
    assert judged(LOOSE, "Paris the capital", ["Paris", "the capital"]) == 0.0


@pytest.mark.parametrize(
    ("reference", "right", "wrong"),
    [
        ("3.5", "3.5.", "35"),
        ("-5", "(-5)", "5"),
        ("5", '"5"', "\u20135"),
        ("50%", "50%!", "50"),
        ("12:30", "12:30", "1230"),
        ("C#", "c#", "C"),
        ("3/4", "'3/4'", "34"),
        ("Paris, 1999", "paris 1999", "Paris 199.9"),
        ("e-mail", "email", "e mail"),
    ],
)
def test_a_mark_that_changes_what_is_said_is_no_punctuation(reference: str, right: str, wrong: str) -> None:
    assert [judged(LOOSE, text, reference) for text in (right, wrong)] == [1.0, 0.0]


def test_fields_are_shared_out_and_a_spare_field_costs_as_a_wrong_one() -> None:
    wanted = {"name": "Ada Lovelace", "year": 1815, "tags": ["a", "b"], "alive": False}
    assert judged(FieldMatch(), json.dumps(wanted), wanted) == 1.0
    assert judged(FieldMatch(), '{"name": "ada  lovelace", "year": 1815.0}', wanted) == 0.5
    assert judged(FieldMatch(), '{"name": "Ada Lovelace", "year": 1815, "x": 1, "y": 2}', wanted) == 2 / 6
    assert judged(FieldMatch(), '{"alive": 0}', wanted) == 0.0  # 0 is a number, not false
    assert judged(FieldMatch(), '{"tags": ["b", "a"]}', wanted) == 0.0


@pytest.mark.parametrize(
    "answer",
    ['{"a": 2, "a": 1}', '{"a": NaN}', '{"a": 1e999}', '[{"a": 1}]', '{"a": 1} {"a": 1}', "{'a': 1}", "[" * 9999],
)
def test_what_is_no_single_clean_object_earns_nothing(answer: str) -> None:
    assert judged(FieldMatch(), answer, {"a": 1}) == 0.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('{"name": "Ada", "age": 36}', 1.0),
        ('{"name": "Ada", "age": 36, "x": 1}', 0.0),
        ('{"name": "Ada", "age": -1}', 0.0),
        ('{"name": "Ada", "age": "36"}', 0.0),
        ('{"name": "Ada"}', 0.0),
        ('```json\n{"name": "Ada", "age": 36}\n```', 0.0),
        ("", 0.0),
    ],
)
def test_json_of_the_agreed_shape(answer: str, value: float) -> None:
    assert judged(PERSON, answer, None) == value


def test_a_schema_that_is_none_or_leads_outside_is_refused() -> None:
    with pytest.raises(ValueError, match=r"schema: .*'integer ' is not valid"):
        JsonSchema(schema={"type": "integer "})
    with pytest.raises(ValueError, match="leads outside the schema"):
        JsonSchema(schema={"$ref": "https://example.com/schema.json"})
    inside = JsonSchema(schema={"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}})
    assert [judged(inside, text, None) for text in ("[1, 2]", '["1"]')] == [1.0, 0.0]


def test_an_answer_as_deep_as_its_schema_allows_does_not_raise() -> None:
    nested = JsonSchema(schema={"type": "array", "items": {"$ref": "#"}})
    assert judged(nested, "[" * 400 + "]" * 400, None) in (0.0, 1.0)
    assert judged(nested, "[[1]]", None) == 0.0


def test_iou_of_boxes_and_the_price_of_spare_ones() -> None:
    # 100 x 100 against the same, shifted by 50: 50*100 common, 15,000 in all.
    assert judged(IOU, "[50, 0, 150, 100]", [0, 0, 100, 100]) == pytest.approx(1 / 3)
    assert judged(IOU, "[0, 0, 100, 100]", [0, 0, 100, 100]) == 1.0
    assert judged(IOU, '{"bbox_2d": [0, 0, 100, 100], "label": "cat"}', [0, 0, 100, 100]) == 1.0
    assert judged(IOU, "[[0, 0, 100, 100], [200, 200, 300, 300]]", [0, 0, 100, 100]) == 0.5
    assert judged(IOU, "[[0, 0, 100, 100], [0, 0, 100, 100]]", [[0, 0, 100, 100], [200, 0, 300, 100]]) == 0.5
    assert judged(IOU, "[200, 0, 300, 100]", [0, 0, 100, 100]) == 0.0
    strict = BoxIou(reference_frame="thousand", answer_frame="thousand", threshold=0.5)
    assert [judged(strict, box, [0, 0, 100, 100]) for box in ("[50, 0, 150, 100]", "[0, 0, 100, 60]")] == [0.0, 1.0]


@pytest.mark.parametrize(
    "answer",
    [
        "0, 0, 100, 100",
        "[100, 100, 0, 0]",
        "[0, 0, 100]",
        "[0, 0, 100, NaN]",
        "[0, 0, 100, true]",
        "[0, 0, 1e308, 1e308]",
        "[]",
        "[[]]",
        json.dumps([[0, 0, 100, 100]] * 65),
        "9" * 9999,
        f"[0, 0, {'9' * 400}, 100]",
        "[" * 900 + "1" + "]" * 900,
    ],
)
def test_what_is_no_box_or_covers_everything_earns_next_to_nothing(answer: str) -> None:
    assert judged(IOU, answer, [0, 0, 100, 100]) == pytest.approx(0.0, abs=1e-9)


def test_frames_of_reference_and_answer_are_converted() -> None:
    shown = np.zeros((50, 100, 3), dtype=np.uint8)  # the file is 400 x 200, shown at a quarter

    def value(term: Reward, answer: str, reference: list[float]) -> float | None:
        state = {"answer": reference, "image_sizes": [[400, 200]]}
        return term(transcript(turn(action=answer, state=state, images=(shown,))))

    pixels = BoxIou(reference_frame="pixel", answer_frame="pixel", threshold=None)
    assert value(pixels, "[25, 0, 50, 50]", [100, 0, 200, 200]) == pytest.approx(1.0)
    qwen = BoxIou(reference_frame="pixel", answer_frame="thousand", threshold=None)
    assert value(qwen, "[250, 0, 500, 1000]", [100, 0, 200, 200]) == pytest.approx(1.0)
    shares = PointInBox(reference_frame="pixel", answer_frame="normalised")
    assert [value(shares, text, [100, 0, 200, 200]) for text in ("[0.3, 0.5]", "[0.6, 0.5]")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("frame", "reference", "told"),
    [
        ("thousand", [10, 10, 1600, 900], "reaches out of the frame thousand, 0 to 1000; is it in pixels"),
        ("thousand", [0.1, 0.1, 0.5, 1.0], "is a speck in the frame thousand, 0 to 1000; is it normalised"),
        ("normalised", [0, 0, 50, 50], "reaches out of the frame normalised, 0 to 1; is it in pixels"),
    ],
)
def test_a_reference_that_cannot_be_in_its_frame_is_an_error(frame: Any, reference: list[float], told: str) -> None:
    for term in (
        BoxIou(reference_frame=frame, answer_frame="thousand", threshold=None),
        PointInBox(reference_frame=frame, answer_frame="thousand"),
    ):
        with pytest.raises(ValueError, match=told):
            judged(term, "", reference)
        assert judged(term, "", [0.0, 0.0, 1.002, 1.0] if frame == "normalised" else [0, 0, 1003, 20]) == 0.0


def test_a_point_lies_in_the_box_or_not() -> None:
    answers = ("[50, 50]", '{"point_2d": [100, 100]}', "[101, 50]", "[50]", "50, 50", "[1e400, 0]", f"[{'9' * 400}, 0]")
    assert [judged(POINT, text, [0, 0, 100, 100]) for text in answers] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("term", "reference"), TERMS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "answer", ["(" * 9999, "\x00", "\ud800", "9" * 9999, "9" * 400, "<answer>3</answer>", "a" * 9999 + "!"]
)
def test_no_answer_makes_a_term_raise_or_pay(term: Reward, reference: Any, answer: str) -> None:
    assert judged(term, answer, reference) == 0.0


@given(answer=st.text(max_size=200) | st.from_regex(r"[\[\]{}0-9.,e:+\-\" ]{0,80}", fullmatch=True))
def test_any_text_gets_a_number_from_0_to_1(answer: str) -> None:
    for term, reference in TERMS:
        value = judged(term, answer, reference)
        assert value is not None and 0.0 <= value <= 1.0


@pytest.mark.parametrize(("term", "reference"), TERMS, ids=lambda value: type(value).__name__)
def test_no_answer_is_wrong_and_no_turn_is_not_judged(term: Reward, reference: Any) -> None:
    assert judged(term, None, reference) == 0.0
    assert term(transcript()) is None


def test_a_term_abstains_for_other_kinds_and_for_envs_without_a_reference() -> None:
    assert judged(ENGLISH, "3", "Paris", kind="text") is None
    assert judged(ENGLISH, "3", 3, kind="number") == 1.0
    assert ENGLISH(transcript(turn(action="right"))) is None


@pytest.mark.parametrize(
    ("term", "reference"),
    [
        (ENGLISH, "many"),
        (CHOICE, "both"),
        (FieldMatch(), [1]),
        (IOU, "here"),
        (POINT, [1, 2]),
        (LOOSE, "..."),
        (MATH, "$$"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_reference_that_makes_no_sense_is_an_error_and_not_a_wrong_answer(term: Reward, reference: Any) -> None:
    with pytest.raises(ValueError, match="the reference"):
        judged(term, "x", reference)


def test_grounding_takes_the_facts_that_a_task_lists() -> None:
    any_facts = VisualGrounding(facts=())
    reply = "<observation>red 3, big red 2, shape circle</observation>"
    state = {"facts": {"red": 3, "big red": 2, "shape": "circle", "blue": 1}}
    assert any_facts(transcript(turn(reply=reply, state=state))) == 0.75
    assert any_facts(transcript(turn(reply=reply, state={"answer": 3}))) is None
