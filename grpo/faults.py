"""Faults of a config, each with its full key, what is wanted, what came, and the nearest right name.

All faults of a run are told at once: a person who mends one key per start gives up on the third.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a section (key: value)",
    "tuple_type": "a list",
}
BOUNDS = {"greater_than": (">", "gt"), "greater_than_equal": (">=", "ge"), "less_than": ("<", "lt")} | {
    "less_than_equal": ("<=", "le")
}
REASONS = {
    "top_p": "cutting the distribution would bias the importance ratio; algorithm.temperature is what may change",
    "gradient_accumulation_steps": "it follows from rows, devices and runtime.per_device_batch_size; see dry_run=true",
} | {
    name: "it would bias the importance ratio; algorithm.temperature is what may change"
    for name in ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
}
"""Keys that people bring from other frameworks and that are missing here on purpose."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    key: str
    """Full dotted key; empty where the fault belongs to no key."""
    problem: str

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}" if self.key else self.problem


class ConfigError(ValueError):
    """A config or command that nothing was started for; `faults` has every reason."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(dict.fromkeys(faults))
        super().__init__("config error: " + "\n".join(map(str, self.faults)))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, or None."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return close[0] if close else None


def guess(name: str, names: Iterable[str]) -> str:
    """`; did you mean x?` for the nearest of `names`, else an empty text."""
    meant = nearest(name, names)
    return f"; did you mean {meant}?" if meant else ""


def show(value: object) -> str:
    """A value as YAML spells it, cut to a line's length."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def explain(error: ValidationError, model: type[BaseModel], data: Mapping[str, Any], prefix: str = "") -> list[Fault]:
    """One fault for each of pydantic's errors about `data`, read as `model`; `prefix` is the full key of `data`."""
    return [_fault(detail, model, data, prefix) for detail in error.errors()]


def _fault(detail: Any, model: type[BaseModel], data: Mapping[str, Any], prefix: str) -> Fault:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    path = _keys_only(detail["loc"], data)
    key = join(prefix, *path)
    if kind == "missing":
        return Fault(key=key, problem=f"missing{_takes(model, data, path[:-1], prefix)}")
    if kind == "extra_forbidden":
        return _unknown_key(key, path, model, data, prefix)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = context["discriminator"].strip("'")
        choices = [option for option in _tags(_annotation(model, data, path), tag)]
        came = context.get("tag")
        wanted = f"wants one of {', '.join(map(repr, choices))}"
        if came is None:
            return Fault(key=f"{key}.{tag}", problem=f"missing; {wanted}")
        return Fault(key=f"{key}.{tag}", problem=f"{wanted}, got {came!r}{guess(came, choices)}")
    if kind in ("model_type", "model_attributes_type", "dataclass_type", "dict_type"):
        hint = (
            "; single keys are changed with a dot, group options exist only in conf/" if isinstance(value, str) else ""
        )
        return Fault(key=key, problem=f"wants a section (key: value), got {show(value)}{hint}")
    if kind == "value_error":
        return Fault(key=key, problem=str(context["error"]))
    return Fault(
        key=key, problem=f"wants {_wanted(kind, context, detail['msg'])}, got {show(value)}{_null_hint(value)}"
    )


def _wanted(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in BOUNDS:
        sign, name = BOUNDS[kind]
        return f"a number {sign} {context[name]:.10g}"
    if kind == "literal_error":
        return "one of " + context["expected"].replace(" or ", ", ")
    if kind in ("string_too_short", "too_short"):
        return "at least one character" if kind == "string_too_short" else "at least one entry"
    return WANTED.get(kind, message)


def _null_hint(value: object) -> str:
    if value in ("None", "none", "~"):
        return "; nothing is written null"
    return "; text that looks like a number is written in quotes" if isinstance(value, float) and value > 1e100 else ""


def _unknown_key(key: str, path: Sequence[str], model: type[BaseModel], data: Mapping[str, Any], prefix: str) -> Fault:
    name = path[-1]
    if name in REASONS:
        return Fault(key=key, problem=f"no such key; {REASONS[name]}")
    meant = nearest(name, names_at(model, data, path[:-1]))
    if meant is None:
        elsewhere = {other.rsplit(".", 1)[-1]: other for other in all_keys(model, data)}
        close = nearest(name, elsewhere)
        meant = elsewhere[close] if close else None
    told = f"; did you mean {meant}?" if meant else _takes(model, data, path[:-1], prefix)
    return Fault(key=key, problem=f"no such key{told}")


def _takes(model: type[BaseModel], data: Mapping[str, Any], path: Sequence[str], prefix: str) -> str:
    names = names_at(model, data, path)
    section = join(prefix, *path).rpartition(".")[2]
    return f" ({section or 'a run'} takes {', '.join(names)})" if names else ""


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _keys_only(location: Sequence[int | str], data: object) -> list[str]:
    """Pydantic's location without the tags that it adds at a union: they are no keys of the config."""
    path: list[str] = []
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(data, Mapping) and (part in data or last):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
        else:
            continue
        path.append(str(part))
    return path


def names_at(model: type[BaseModel], data: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    """The keys that the section at `path` takes; empty where they are free."""
    annotation: Any = model
    value: Any = data
    for part in path:
        section = _section(annotation, value)
        if section is None:
            return []
        annotation = section[part] if part in section else section.get("*")
        value = value[part] if isinstance(value, Mapping) and part in value else None
    section = _section(annotation, value)
    return [name for name in section if name != "*"] if section else []


def all_keys(model: type[BaseModel], data: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> list[str]:
    """Every full key that a run with `data`'s choices takes."""
    keys = []
    for name in names_at(model, data, prefix):
        keys.append(".".join((*prefix, name)))
        keys.extend(all_keys(model, data, (*prefix, name)))
    return keys


def _annotation(model: type[BaseModel], data: Mapping[str, Any], path: Sequence[str]) -> Any:
    annotation: Any = model
    for part in path:
        section = _section(annotation, data)
        annotation = section[part] if section and part in section else None
        data = data[part] if isinstance(data, Mapping) and part in data else {}
    return annotation


def _section(annotation: Any, value: Any) -> dict[str, Any] | None:
    """{key: its annotation} of a section; `*` stands for any key."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}
    origin = get_origin(annotation)
    if origin is Annotated:
        return _section(get_args(annotation)[0], value)
    if origin is dict:
        return {"*": get_args(annotation)[1]}
    if origin is Union or type(annotation).__name__ == "UnionType":
        options = [option for option in get_args(annotation) if option is not type(None)]
        chosen = [option for option in options if _is_chosen(option, value)]
        return _section(chosen[0], value) if chosen else None
    return None


def _is_chosen(option: Any, value: Any) -> bool:
    if not (isinstance(option, type) and issubclass(option, BaseModel) and isinstance(value, Mapping)):
        return False
    return any(
        get_origin(field.annotation) is Literal and name in value and value[name] in get_args(field.annotation)
        for name, field in option.model_fields.items()
        if name in ("name", "type")
    )


def _tags(annotation: Any, tag: str) -> list[str]:
    return [get_args(option.model_fields[tag].annotation)[0] for option in get_args(annotation)]
