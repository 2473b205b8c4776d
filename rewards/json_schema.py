"""Pays for an answer that is JSON of the agreed shape.

The shape is judged, not whether the values are right: alone this term is earned by any well-formed answer, so a preset
should gate it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpo.interfaces import Reward
from grpo.types import Transcript
from rewards.answers import read_json


@dataclass(frozen=True, kw_only=True)
class JsonSchema(Reward):
    """1.0 if the last turn's answer is one JSON value, nothing else, that fits `schema` (JSON Schema 2020-12).

    Draft 2020-12 by the jsonschema library; a `$ref` that leads outside `schema` is refused, nothing is downloaded.
    """

    schema: Mapping[str, Any]

    def __post_init__(self) -> None:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from referencing.exceptions import Unresolvable

        try:
            Draft202012Validator.check_schema(dict(self.schema))
            for reference in _references(self.schema):
                self._validator._resolver.lookup(reference)
        except SchemaError as error:
            raise ValueError(f"schema: {error.message}, at {error.json_path}") from error
        except Unresolvable as error:
            raise ValueError(f"schema: $ref {error.ref!r} leads outside the schema; nothing is downloaded") from error

    def __call__(self, transcript: Transcript) -> float | None:
        if not transcript.turns:
            return None
        answer = transcript.turns[-1].outcome.action
        if answer is None:
            return 0.0
        value = read_json(answer)
        return 1.0 if value is not ... and self._fits(value) else 0.0

    def _fits(self, value: Any) -> bool:
        try:
            return self._validator.is_valid(value)
        except RecursionError:  # a schema that refers to itself follows the answer as deep as it goes
            return False

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import Draft202012Validator
        from referencing import Registry

        return Draft202012Validator(dict(self.schema), registry=Registry())

    def __getstate__(self) -> dict[str, Any]:
        # The validator holds what cannot be pickled, and is made again where it is wanted.
        return {"schema": self.schema}


def _references(schema: Any) -> list[str]:
    if isinstance(schema, Mapping):
        own = [value for key, value in schema.items() if key == "$ref" and isinstance(value, str)]
        return own + [reference for value in schema.values() for reference in _references(value)]
    return [reference for item in schema for reference in _references(item)] if isinstance(schema, list) else []
