"""The clipped GRPO objective over the tokens that the policy sampled.

One optimiser update is a sum, never a mean of means: `token_weights` is computed once over all rows of the update,
and each micro-batch takes its rows of it, so any split into micro-batches adds up to the same loss and gradient.

Legend: B rows (one whole multi-turn rollout each), T tokens. Log-probabilities are those at the sampling temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]
Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]
RatioLevel = Literal["token", "sequence"]

MAX_LOG_RATIO = 20.0
"""exp(20) is far outside every clip range, and finite in every float type."""


@dataclass(frozen=True, kw_only=True)
class LossParts:
    """The loss of some rows, and sums over their trained tokens; everything but `total` is detached.

    Parts of one update add up, and `loss_metrics` does so.
    """

    total: Tensor
    """policy + kl_coefficient * kl, to call backward on."""
    policy: Tensor
    """The clipped surrogate alone, weighted like the total."""
    kl: Tensor
    """The KL estimate, weighted like the total; 0 without a reference."""
    tokens: Tensor
    clipped_sum: Tensor
    ratio_sum: Tensor
    kl_sum: Tensor | None
    """None where there was no reference to compare with."""
    entropy_sum: Tensor | None
    """None where no entropy was given."""


def kl(new_BT: Tensor, ref_BT: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimate of KL(new || ref) from tokens that the policy sampled.

    Schulman's three (joschu.net/blog/kl-approx.html). k1 is unbiased but may be negative, and as a loss its gradient
    has mean zero: it measures and does not pull. k2 and k3 are never negative and 0 only where both agree; k3 is what
    the GRPO paper uses.
    """
    log_ratio_BT = ref_BT - new_BT
    if estimator == "k1":
        return -log_ratio_BT
    if estimator == "k2":
        return 0.5 * log_ratio_BT.square()
    log_ratio_BT = log_ratio_BT.clamp(max=MAX_LOG_RATIO)
    return torch.expm1(log_ratio_BT) - log_ratio_BT


def token_weights(mask_BT: Tensor, aggregation: Aggregation, max_tokens: int) -> Tensor:
    """Weights whose dot product with per-token losses is the loss of the whole update; 0 where `mask_BT` is False.

    With N rows that have at least one trained token:

    - token_mean: 1 / all trained tokens, so a token counts the same in a long rollout (DAPO, arXiv 2503.14476);
    - sequence_mean: 1 / (N * own trained tokens), so a rollout counts the same (GRPO, arXiv 2402.03300);
    - fixed_length: 1 / (N * max_tokens), so neither length nor mask changes a token's weight (Dr. GRPO,
      arXiv 2503.20783). `max_tokens` is the most that one rollout may generate.
    """
    mask_BT = mask_BT.bool()
    lengths_B = mask_BT.sum(dim=1)
    rows = int((lengths_B > 0).sum())
    if aggregation == "token_mean":
        divisor_B = lengths_B.sum().expand_as(lengths_B)
    elif aggregation == "sequence_mean":
        divisor_B = rows * lengths_B
    else:
        divisor_B = torch.full_like(lengths_B, rows * max_tokens)
    return mask_BT.float() / divisor_B.clamp(min=1)[:, None]


def policy_loss(
    new_BT: Tensor,
    old_BT: Tensor,
    ref_BT: Tensor | None,
    mask_BT: Tensor,
    advantages_B: Tensor,
    weights_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_coefficient: float,
    kl_estimator: KlEstimator,
    ratio_level: RatioLevel,
    entropy_BT: Tensor | None = None,
) -> LossParts:
    """The loss of these rows: minimum of the plain and the clipped surrogate, plus the KL to the reference.

    The ratio new/old is clipped to 1 - clip_low … 1 + clip_high (two bounds: DAPO). With `ratio_level="sequence"` all
    tokens of a row share the geometric mean of their ratios (GSPO-token, arXiv 2507.18071, eq. 14), meant to go with
    sequence_mean. Masked positions may hold anything, NaN included. If no token is trained, the loss is exactly 0 and
    has a zero gradient; `tokens` tells. A row whose advantage is 0 is still drawn to the reference by the KL.

    Raises ValueError for a KL coefficient without a reference.
    """
    if kl_coefficient != 0 and ref_BT is None:
        raise ValueError(f"kl_coefficient={kl_coefficient} wants the reference's log-probabilities, got none")
    mask_BT = mask_BT.bool()
    new_BT = _only(mask_BT, new_BT)
    ratio_BT = _ratio(new_BT, _only(mask_BT, old_BT), mask_BT, ratio_level)
    plain_BT = ratio_BT * advantages_B[:, None]
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_B[:, None]
    policy = -(weights_BT * torch.minimum(plain_BT, clipped_BT)).sum()

    total, kl_part, kl_sum = policy, torch.zeros_like(policy), None
    if ref_BT is not None:
        kl_BT = kl(new_BT, _only(mask_BT, ref_BT), kl_estimator)
        kl_part, kl_sum = (weights_BT * kl_BT).sum(), kl_BT.detach().sum()
        total = policy if kl_coefficient == 0 else policy + kl_coefficient * kl_part
    return LossParts(
        total=total,
        policy=policy.detach(),
        kl=kl_part.detach(),
        tokens=mask_BT.sum(),
        clipped_sum=(mask_BT & (clipped_BT < plain_BT)).sum(),
        ratio_sum=_only(mask_BT, ratio_BT.detach()).sum(),
        kl_sum=kl_sum,
        entropy_sum=None if entropy_BT is None else _only(mask_BT, entropy_BT.detach()).sum(),
    )


def loss_metrics(parts: Sequence[LossParts], *, updates: int) -> dict[str, float]:
    """The metrics of one step from all its parts: the micro-batches of its optimiser updates.

    `policy/loss` is the surrogate alone, a mean over the updates; the others are means over the trained tokens. A mean
    over nothing is left out: no `policy/kl` without a reference, and only the loss if everything was masked.
    """
    metrics = {"policy/loss": sum(float(part.policy) for part in parts) / updates}
    tokens = sum(int(part.tokens) for part in parts)
    if tokens == 0:
        return metrics
    metrics["policy/clip_fraction"] = sum(float(part.clipped_sum) for part in parts) / tokens
    metrics["policy/ratio_mean"] = sum(float(part.ratio_sum) for part in parts) / tokens
    for name, sums in (("kl", [part.kl_sum for part in parts]), ("entropy", [part.entropy_sum for part in parts])):
        known = [float(value) for value in sums if value is not None]
        if len(known) == len(parts):
            metrics[f"policy/{name}"] = sum(known) / tokens
    return metrics


def _only(mask_BT: Tensor, values_BT: Tensor) -> Tensor:
    # where, not a product: NaN * 0 is NaN, and in the gradient too.
    return torch.where(mask_BT, values_BT, torch.zeros_like(values_BT))


def _ratio(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, level: RatioLevel) -> Tensor:
    log_ratio_BT = new_BT - old_BT
    if level == "sequence":
        mean_B = log_ratio_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)
        # The value of the row's mean, the gradient of the token's own log-probability.
        log_ratio_BT = mean_B.detach()[:, None] + new_BT - new_BT.detach()
    return log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
