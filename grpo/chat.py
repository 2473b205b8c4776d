"""From observations to token ids through the model's own chat template, one turn at a time.

Turns are appended and never rendered again, so the ids that were sampled are the ids that are trained on. That is
only right for templates that leave earlier turns alone; `ChatRenderer` probes this once and refuses others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from grpo.types import Message, interleaved

IMAGE_PAD = "<|image_pad|>"
_REPLY = "reply"


class ChatRenderer:
    """Renders user turns for one tokenizer.

    `grids` are (height, width) in visual tokens, one an image; `places` say where in the text they stand
    (`grpo.types.Observation`).
    """

    def __init__(self, tokenizer: Any, model_name: str) -> None:
        self._tokenizer = tokenizer
        self._model_name = model_name
        self.image_token: int = tokenizer.convert_tokens_to_ids(IMAGE_PAD)
        self.end_token: int = tokenizer.eos_token_id
        self.first_turn = lru_cache(maxsize=4096)(self._first_turn)
        self.next_turn = lru_cache(maxsize=4096)(self._next_turn)
        self._next_turn("probe", ())

    def _first_turn(
        self,
        text: str,
        grids: tuple[tuple[int, int], ...],
        before: tuple[Message, ...] = (),
        places: tuple[int, ...] = (),
    ) -> list[int]:
        """Token ids of a conversation's start: what came before, the user's turn and the opening of the assistant's."""
        earlier = [{"role": message.role, "content": self._plain(message.text)} for message in before]
        return self._encode(self._render([*earlier, self._user(text, len(grids), places)]), grids)

    def _next_turn(self, text: str, grids: tuple[tuple[int, int], ...], places: tuple[int, ...] = ()) -> list[int]:
        """Token ids between the end marker of a reply and the start of the next reply.

        Raises ValueError if the template does not simply append.
        """
        opening = [self._user("?", 0, ())]
        before = self._render(opening) + _REPLY + self._tokenizer.eos_token
        user = self._user(text, len(grids), places)
        after = self._render([*opening, {"role": "assistant", "content": _REPLY}, user])
        if not after.startswith(before):
            raise ValueError(
                f"the chat template of {self._model_name} changes earlier turns when one is added (templates of "
                "thinking models do); multi-turn training needs one that only appends: use an Instruct model"
            )
        return self._encode(after[len(before) :], grids)

    def encode_reply(self, text: str) -> list[int]:
        """The canonical token ids of a reply, without its end marker."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a reply, its end marker left out."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] == self.end_token else token_ids
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _render(self, messages: list[dict[str, Any]]) -> str:
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def _plain(self, text: str) -> str:
        """An environment may quote what the model wrote; a special token spelled out there must not become one."""
        for special in self._tokenizer.all_special_tokens:
            text = text.replace(special, special.replace("<|", "< |"))
        return text

    def _user(self, text: str, images: int, places: tuple[int, ...]) -> dict[str, Any]:
        parts = [
            {"type": "image"} if piece is None else {"type": "text", "text": self._plain(piece)}
            for piece in interleaved(text, places, [None] * images)
        ]
        return {"role": "user", "content": parts}

    def _encode(self, text: str, grids: tuple[tuple[int, int], ...]) -> list[int]:
        pieces = text.split(IMAGE_PAD)
        if len(pieces) != len(grids) + 1:
            raise ValueError(
                f"the chat template of {self._model_name} made {len(pieces) - 1} image placeholders for {len(grids)} "
                f"images: {text[:200]!r}"
            )
        expanded = pieces[0]
        for (height, width), piece in zip(grids, pieces[1:], strict=True):
            expanded += IMAGE_PAD * (height * width) + piece
        return self._tokenizer.encode(expanded, add_special_tokens=False)
