"""Many conversations at once over one key-value cache that is kept from turn to turn.

All rows share the cache's columns: every append takes as many columns as its longest row needs, and a mask says
which are real, so short replies and different observations leave holes instead of forcing a copy. Finished rows are
dropped. Letters: B rows, C cached columns, Q new columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from grpo.policy import Policy
from grpo.positions import positions
from grpo.types import Observation, TokenTrace

Draws = Callable[[int, int], np.ndarray]
"""(row id, how many) -> that many uniform numbers in [0, 1), which do not depend on draws made before."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    temperature: float
    greedy: bool
    max_completion_tokens: int


@dataclass(frozen=True, kw_only=True)
class Reply:
    text: str
    token_ids: tuple[int, ...]
    truncated: bool


@dataclass
class _Row:
    """What one conversation has gathered; `id` is its place in the list that `start` was given."""

    id: int
    token_ids: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    images: list[np.ndarray] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    """Tokens that are part of the conversation but not yet in the cache: the last one sampled."""
    position: int = 0
    turn: int = 0

    def extend(self, token_ids: Sequence[int], *, logprobs: Sequence[float] | None = None) -> None:
        self.token_ids += token_ids
        self.action_mask += [logprobs is not None] * len(token_ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(token_ids)

    def copy(self, row_id: int) -> _Row:
        return _Row(
            id=row_id,
            token_ids=list(self.token_ids),
            action_mask=list(self.action_mask),
            logprobs=list(self.logprobs),
            images=list(self.images),
            position=self.position,
            turn=self.turn,
        )


class Conversations:
    """Rows are numbered from 0 in the order of `start`; methods speak of the rows that are still live, in order."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._cache = ColumnCache()
        self._rows: list[_Row] = []
        self._traces: dict[int, TokenTrace] = {}
        self._hidden_BH = torch.empty(0)

    def opening_tokens(self, observation: Observation) -> int:
        """How many tokens a conversation that begins with it takes before the first reply."""
        return len(self._opening(observation))

    @torch.inference_mode()
    def start(self, observations: Sequence[Observation], siblings: int) -> None:
        """Begin `siblings` conversations on each observation; the shared prompt is computed once."""
        blocks = [self._opening(observation) for observation in observations]
        self._rows = [_Row(id=index) for index in range(len(observations))]
        self._append(blocks, observations)
        self._rows = [row.copy(row.id * siblings + s) for row in self._rows for s in range(siblings)]
        order = torch.arange(len(observations), device=self._policy.device).repeat_interleave(siblings)
        self._cache.select(order)
        self._hidden_BH = self._hidden_BH[order]

    @torch.inference_mode()
    def reply(self, sampling: Sampling, draws: Draws) -> list[Reply]:
        """One reply of each live row, up to its end marker or `max_completion_tokens`."""
        policy, limit, rows = self._policy, sampling.max_completion_tokens, self._rows
        # Greedy replies draw nothing.
        uniform_BK = np.stack([np.zeros(limit) if sampling.greedy else draws(row.id, limit) for row in rows])
        uniform_BK = torch.from_numpy(uniform_BK).to(policy.device)
        tokens_BK = torch.full((len(rows), limit), policy.chat.end_token, device=policy.device)
        logprobs_BK = torch.zeros(len(rows), limit, device=policy.device)
        going_B = torch.ones(len(rows), dtype=torch.bool, device=policy.device)
        lengths_B = torch.zeros(len(rows), dtype=torch.long, device=policy.device)
        start_B = torch.tensor([row.position for row in rows], device=policy.device)
        for step in range(limit):
            token_B, logprob_B = self._choose(sampling, uniform_BK[:, step])
            tokens_BK[:, step] = torch.where(going_B, token_B, policy.chat.end_token)
            logprobs_BK[:, step] = torch.where(going_B, logprob_B, 0.0)
            lengths_B += going_B
            going_B = going_B & (token_B != policy.chat.end_token)
            if step + 1 == limit or not going_B.any():
                break
            embeds_B1H = policy.language.embed_tokens(tokens_BK[:, step : step + 1])
            places_3B1 = (start_B + step).expand(3, -1)[..., None]
            hidden_B1H = self._forward(embeds_B1H, places_3B1, going_B[:, None], None, [])
            self._hidden_BH = torch.where(going_B[:, None], hidden_B1H[:, 0], self._hidden_BH)
        return [
            self._finish_reply(row, tokens[:length], logprobs[:length])
            for row, tokens, logprobs, length in zip(
                rows, tokens_BK.tolist(), logprobs_BK.tolist(), lengths_B.tolist(), strict=True
            )
        ]

    @torch.inference_mode()
    def observe(self, observations: Sequence[Observation | None], max_tokens: int) -> None:
        """Show each live row what comes next; None, or a row that would outgrow `max_tokens`, ends it."""
        chat = self._policy.chat
        blocks = [[] if o is None else chat.next_turn(o.text, self._grids(o), o.places) for o in observations]
        ends = [self._missing_end(row) for row in self._rows]
        goes_on = [
            o is not None and len(row.token_ids) + len(end) + len(block) <= max_tokens
            for row, end, block, o in zip(self._rows, ends, blocks, observations, strict=True)
        ]
        keep = [index for index, on in enumerate(goes_on) if on]
        for index, row in enumerate(self._rows):
            if not goes_on[index]:
                self._traces[row.id] = _trace(row)
        self._rows = [self._rows[index] for index in keep]
        if keep:
            if len(keep) < len(goes_on):
                self._cache.select(torch.tensor(keep, device=self._policy.device))
            shown = [o for o, on in zip(observations, goes_on, strict=True) if on and o is not None]
            self._append([ends[index] + blocks[index] for index in keep], shown)

    @property
    def live(self) -> list[int]:
        """Numbers of the rows that are still going."""
        return [row.id for row in self._rows]

    def trace(self, row_id: int) -> TokenTrace:
        """The tokens of a row that has ended."""
        return self._traces[row_id]

    def _opening(self, observation: Observation) -> list[int]:
        grids = self._grids(observation)
        return self._policy.chat.first_turn(observation.text, grids, observation.before, observation.places)

    def _grids(self, observation: Observation) -> tuple[tuple[int, int], ...]:
        return tuple(self._policy.vision.grid(image) for image in observation.images)

    def _missing_end(self, row: _Row) -> list[int]:
        """A reply that was cut has no end marker; the template's next turn wants one."""
        end = self._policy.chat.end_token
        return [] if row.token_ids[-1] == end else [end]

    def _append(self, blocks: Sequence[list[int]], observations: Sequence[Observation]) -> None:
        """Run new tokens through the model and keep the last hidden state of each row."""
        policy = self._policy
        fed = [row.pending + block for row, block in zip(self._rows, blocks, strict=True)]
        width = max(map(len, fed))
        token_ids = np.full((len(fed), width), policy.tokenizer.pad_token_id, dtype=np.int64)
        places = np.zeros((3, len(fed), width), dtype=np.int64)
        real = np.zeros((len(fed), width), dtype=bool)
        for index, (row, ids, block, shown) in enumerate(zip(self._rows, fed, blocks, observations, strict=True)):
            start = row.position - len(row.pending)
            row.turn += 1
            try:
                place, row.position = positions(ids, policy.chat.image_token, self._grids(shown), start)
            except ValueError as error:
                raise ValueError(f"conversation {row.id}, turn {row.turn}: {error}") from error
            token_ids[index, : len(ids)], real[index, : len(ids)] = ids, True
            places[:, index, : len(ids)] = place
            row.extend(block)
            row.images += shown.images
            row.pending = []
        images = [image for shown in observations for image in shown.images]
        token_ids_BQ = torch.from_numpy(token_ids).to(policy.device)
        embeds_BQH, is_image_BQ, deepstack = policy.embed(token_ids_BQ, images)
        places_3BQ = torch.from_numpy(places).to(policy.device)
        real_BQ = torch.from_numpy(real).to(policy.device)
        hidden_BQH = self._forward(embeds_BQH, places_3BQ, real_BQ, is_image_BQ, deepstack)
        last_B = real_BQ.sum(dim=1) - 1
        self._hidden_BH = hidden_BQH[torch.arange(len(fed), device=policy.device), last_B]

    def _forward(
        self,
        embeds_BQH: Tensor,
        places_3BQ: Tensor,
        real_BQ: Tensor,
        is_image_BQ: Tensor | None,
        deepstack: list[Tensor],
    ) -> Tensor:
        output = self._policy.language(
            inputs_embeds=embeds_BQH,
            position_ids=places_3BQ,
            attention_mask=self._cache.extend_mask(real_BQ),
            past_key_values=self._cache,
            use_cache=True,
            visual_pos_masks=is_image_BQ if deepstack else None,
            deepstack_visual_embeds=deepstack or None,
        )
        return output.last_hidden_state

    def _choose(self, sampling: Sampling, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
        """A token of each row and its log-probability at the sampling temperature."""
        scores_BV = self._policy.scores(self._hidden_BH, sampling.temperature)
        log_BV = scores_BV.log_softmax(dim=-1)
        token_B = log_BV.argmax(dim=-1) if sampling.greedy else drawn(log_BV, uniform_B)
        return token_B, log_BV.gather(1, token_B[:, None]).squeeze(1)

    def _finish_reply(self, row: _Row, token_ids: list[int], logprobs: list[float]) -> Reply:
        row.extend(token_ids, logprobs=logprobs)
        row.pending = token_ids[-1:]
        row.position += len(token_ids)
        truncated = token_ids[-1] != self._policy.chat.end_token
        return Reply(text=self._policy.chat.decode(token_ids), token_ids=tuple(token_ids), truncated=truncated)


def drawn(log_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """A token of each row by the inverse of its cumulative distribution, from one uniform number in [0, 1) each."""
    # In float64, so that a vocabulary of 150,000 loses no mass.
    cumulative_BV = log_BV.exp().double().cumsum(dim=-1)
    target_B1 = (uniform_B * cumulative_BV[:, -1])[:, None]
    return torch.searchsorted(cumulative_BV, target_B1, right=True).squeeze(1)


class ColumnCache(Cache):
    """Preallocated keys and values of every layer, with a mask of the columns that are real for each row."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._real_BC = torch.empty(0, 0, dtype=torch.bool)
        self._used = 0

    def extend_mask(self, real_BQ: Tensor) -> Tensor:
        """Take Q new columns; returns which columns each new one may look at, bool[B, 1, Q, C + Q]."""
        past_BC = self._real_BC if self._used else real_BQ[:, :0]
        self._real_BC = torch.cat([past_BC, real_BQ], dim=1)
        new = real_BQ.shape[1]
        self._used += new
        if new == 1:
            # A row that is not going on still needs something to look at, or its softmax is over nothing.
            return (self._real_BC | ~real_BQ)[:, None, None, :]
        causal_QQ = torch.ones(new, new, dtype=torch.bool, device=real_BQ.device).tril()
        own_BQQ = real_BQ[:, None, :] & causal_QQ | torch.eye(new, dtype=torch.bool, device=real_BQ.device)
        past_BQC = past_BC[:, None, :].expand(-1, new, -1)
        return torch.cat([past_BQC, own_BQQ], dim=2)[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        new = key_states.shape[2]
        start = self._used - new
        if layer_idx == len(self._keys):
            self._keys.append(_buffer(key_states[:, :, :0], new))
            self._values.append(_buffer(value_states[:, :, :0], new))
        elif self._keys[layer_idx].shape[2] < self._used:
            self._keys[layer_idx] = _buffer(self._keys[layer_idx][:, :, :start], new)
            self._values[layer_idx] = _buffer(self._values[layer_idx][:, :, :start], new)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[:, :, start : self._used] = key_states
        values[:, :, start : self._used] = value_states
        return keys[:, :, : self._used], values[:, :, : self._used]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._used

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows."""
        self._real_BC = self._real_BC[rows]
        self._keys = [_buffer(keys[rows, :, : self._used], 0) for keys in self._keys]
        self._values = [_buffer(values[rows, :, : self._used], 0) for values in self._values]


def _buffer(filled: Tensor, room: int) -> Tensor:
    """A copy of `filled` [B, heads, C, size] with room for at least that many more columns."""
    rows, heads, columns, size = filled.shape
    buffer = filled.new_empty(rows, heads, (columns + room) * 3 // 2 + 32, size)
    buffer[:, :, :columns] = filled
    return buffer


def _trace(row: _Row) -> TokenTrace:
    return TokenTrace(
        token_ids=np.array(row.token_ids, dtype=np.int64),
        action_mask=np.array(row.action_mask, dtype=bool),
        logprobs=np.array(row.logprobs, dtype=np.float32),
        images=tuple(row.images),
    )
