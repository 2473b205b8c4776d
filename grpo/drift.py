"""How far a policy has moved from its base on prompts that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.batch import Batch, collate
from grpo.policy import Policy
from grpo.types import Rollout

ROWS_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Of one kind of prompts."""

    prompts: int
    changed: int
    """Greedy replies that are not the base's."""
    kl: float | None
    """Nats a token, mean over the prompts; None where no logits are shown."""


def drifts(
    kinds: Sequence[str], base: Sequence[Rollout], after: Sequence[Rollout], kl: Sequence[float] | None
) -> dict[str, Drift]:
    """{kind: its drift}; one entry a prompt in each of the sequences, in the same order."""
    found = {}
    for kind in dict.fromkeys(kinds):
        chosen = [index for index, other in enumerate(kinds) if other == kind]
        changed = sum(_reply(base[index]) != _reply(after[index]) for index in chosen)
        mean = None if kl is None else sum(kl[index] for index in chosen) / len(chosen)
        found[kind] = Drift(prompts=len(chosen), changed=changed, kl=mean)
    return found


@torch.inference_mode()
def kl_to_base(policy: Policy, rollouts: Sequence[Rollout]) -> list[float]:
    """KL(policy || its base), exact over the vocabulary, mean over the reply tokens of each of the base's rollouts."""
    found: list[float] = []
    for first in range(0, len(rollouts), ROWS_AT_ONCE):
        batch = collate(
            [rollout.trace for rollout in rollouts[first : first + ROWS_AT_ONCE]],
            grid=policy.vision.grid,
            image_token=policy.chat.image_token,
            pad_token=policy.tokenizer.pad_token_id,
            device=policy.device,
        )
        new_NV = _log_all(policy, batch)
        with policy.start_policy():
            base_NV = _log_all(policy, batch)
        # A banned token has log-probability -inf on both sides; it takes no part.
        gap_NV = (new_NV - base_NV).masked_fill(policy.banned_V, 0.0)
        kl_N = (new_NV.exp() * gap_NV).sum(dim=-1)
        rows = batch.action_mask_BT.nonzero(as_tuple=True)[0]
        found += [float(kl_N[rows == row].mean()) for row in range(len(batch.token_ids_BT))]
    return found


def _log_all(policy: Policy, batch: Batch) -> Tensor:
    """Log-probabilities of every token [N, V] at the N sampled places."""
    hidden_BTH = policy.hidden(batch)
    rows, columns = batch.action_mask_BT.nonzero(as_tuple=True)
    return policy.scores(hidden_BTH[rows, columns - 1], 1.0).log_softmax(dim=-1)


def _reply(rollout: Rollout) -> str:
    return rollout.transcript.turns[0].reply
