"""What the models of a config are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Refuses unknown keys, conversions ("8" is no number) and infinities."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def _text_or_null(text: str | None) -> str | None:
    if text is not None and text.strip().lower() in ("", "none"):
        raise ValueError(f"wants text or null, got {text!r}; nothing is written null")
    return text


OptionalText = Annotated[str | None, AfterValidator(_text_or_null)]
Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
