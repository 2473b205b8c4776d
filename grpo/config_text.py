"""YAML in and out, so that a value means the same in a file, on the command line and in a saved config.

OmegaConf reads YAML 1.1: `012` is ten, `on` is true, `nan` is text, and the revision `695e0514` is infinity. Hydra's
command line knows none of that. So files are read here by the command line's rules, and a plain number under a key
that wants text stays the text that was written. `install` puts this reader in the place of OmegaConf's; there is no
public hook for it, and a test holds it to the versions that pyproject.toml pins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import omegaconf._utils
import yaml
from pydantic import BaseModel

_DIGITS = r"[0-9](?:_?[0-9])*"
_WHOLE = r"(?:0|[1-9](?:_?[0-9])*)"
_POINT = rf"(?:{_WHOLE}\.|{_WHOLE}?\.{_DIGITS})"
SCALARS = {
    "bool": re.compile(r"true|false", re.IGNORECASE),
    "int": re.compile(rf"[-+]?{_WHOLE}"),
    "float": re.compile(rf"[-+]?(?:{_POINT}|(?:{_WHOLE}|{_POINT})e[-+]?{_DIGITS}|\.?inf|\.?nan)", re.IGNORECASE),
    "null": re.compile(r"null|~|", re.IGNORECASE),
}
"""The grammar of hydra's OverrideLexer.g4, plus YAML's own spellings of null, infinity and not-a-number."""

_omegaconf_loader = omegaconf._utils.get_yaml_loader


def text_keys(model: type[BaseModel]) -> frozenset[str]:
    """Names of keys that hold text wherever they occur in `model`."""
    text: set[str] = set()
    other: set[str] = set()
    _sort_keys(model, text, other)
    return frozenset(text - other)


def _sort_keys(annotation: Any, text: set[str], other: set[str]) -> None:
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for argument in get_args(annotation):
            _sort_keys(argument, text, other)
        return
    for name, field in annotation.model_fields.items():
        (text if _holds_text(field.annotation) else other).add(field.alias or name)
        _sort_keys(field.annotation, text, other)


def _holds_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return all(option is str or option is type(None) for option in get_args(annotation))
    return annotation is str


def install(model: type[BaseModel]) -> None:
    """Read every YAML file of this process by the rules above; `model` says which keys hold text."""
    keys = text_keys(model)
    omegaconf._utils.get_yaml_loader = lambda: _loader(keys)


def _loader(keys: frozenset[str]) -> type[yaml.SafeLoader]:
    class Loader(_omegaconf_loader()):
        yaml_implicit_resolvers: ClassVar[Any] = {
            None: [(f"tag:yaml.org,2002:{tag}", _whole(rule)) for tag, rule in SCALARS.items()]
        }

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            for key, value in node.value:
                is_number = value.tag.rsplit(":", 1)[-1] in ("bool", "int", "float")
                if key.value in keys and isinstance(value, yaml.ScalarNode) and is_number:
                    value.tag = "tag:yaml.org,2002:str"
            return super().construct_mapping(node, deep=deep)

    Loader.yaml_implicit_resolvers["<"] = [("tag:yaml.org,2002:merge", re.compile("<<$"))]
    return Loader


def _whole(rule: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(rf"(?:{rule.pattern})\Z", rule.flags)


class _Dumper(yaml.SafeDumper):
    pass


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(r"[A-Za-z_/][\w./@+-]*( [\w./@+-]+)*", text, re.ASCII)
    ambiguous = re.fullmatch(r"true|false|yes|no|on|off|y|n|null|none|nan|inf", text, re.IGNORECASE)
    style = None if plain and not ambiguous else '"' if re.search(r"[^\x20-\x7e]", text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(container: Mapping[str, Any]) -> str:
    """YAML that every common loader reads alike: whatever is not plainly text is quoted, `1e-6` is `1.0e-06`."""
    return yaml.dump(_escaped(container), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def _escaped(value: Any) -> Any:
    """`${` as text, so that loading does not take it for an interpolation."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value)
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value
