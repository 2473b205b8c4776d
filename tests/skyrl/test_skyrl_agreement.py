"""Our advantages and losses against SkyRL's own functions, on random batches."""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import configs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skyrl.backends.skyrl_train.utils import ppo_utils

from grpo.advantage import Scale, group_advantages
from grpo.engines import skyrl
from grpo.engines.skyrl_settings import settings as skyrl_settings
from grpo.loss import Aggregation, KlEstimator, RatioLevel, kl, policy_loss, token_weights

GROUP, GROUPS, TOKENS = 4, 3, 12
ROWS = GROUP * GROUPS


@settings(max_examples=60, deadline=None)
@given(
    totals=st.lists(st.integers(-3, 3).map(lambda n: n / 2), min_size=ROWS, max_size=ROWS),
    scale=st.sampled_from(["std", "none"]),
)
def test_advantages_are_skyrls(totals: list[float], scale: Scale) -> None:
    ids = [f"task {index % GROUPS}" for index in range(ROWS)]
    rewards = torch.zeros(ROWS, TOKENS)
    rewards[:, -1] = torch.tensor(totals)
    theirs, _ = ppo_utils.compute_grpo_outcome_advantage(
        rewards, torch.ones(ROWS, TOKENS), np.array(ids), grpo_norm_by_std=scale == "std"
    )
    ours = group_advantages(ids, totals, scale)
    assert theirs[:, 0].tolist() == pytest.approx(ours, abs=2e-4)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("clip_high", [0.2, 0.28])
def test_losses_and_gradients_are_skyrls(aggregation: Aggregation, ratio_level: RatioLevel, clip_high: float) -> None:
    batch, config = random_batch(), algorithm(aggregation, ratio_level, clip_high)
    advantages_BT = batch["advantages"][:, None].expand(-1, TOKENS)
    weighted = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
        advantages_BT, batch["mask"], config.loss_reduction, micro_batch_size=4, max_seq_len=config.max_seq_len
    )
    new_theirs, new_ours = (batch["new"].clone().requires_grad_() for _ in range(2))
    loss_of = ppo_utils.PolicyLossRegistry.get(config.policy_loss_type)
    theirs, metrics = loss_of(new_theirs, batch["old"], weighted, config=config, loss_mask=batch["mask"])
    ours = policy_loss(
        new_ours,
        batch["old"],
        None,
        batch["mask"],
        batch["advantages"],
        token_weights(batch["mask"], aggregation, config.max_seq_len),
        clip_low=0.2,
        clip_high=clip_high,
        kl_coefficient=0.0,
        kl_estimator="k3",
        ratio_level=ratio_level,
    )
    theirs.backward()
    ours.total.backward()
    assert ours.total.item() == pytest.approx(theirs.item(), abs=1e-6)
    assert torch.allclose(new_ours.grad, new_theirs.grad, atol=1e-7)  # pyright: ignore[reportArgumentType]
    assert float(ours.clipped_sum / ours.tokens) == pytest.approx(metrics["clip_ratio"], abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimates_are_skyrls(estimator: KlEstimator) -> None:
    batch = random_batch()
    theirs = ppo_utils.compute_approx_kl(batch["new"], batch["old"], kl_estimator_type=estimator)
    assert torch.allclose(kl(batch["new"], batch["old"], estimator), theirs, atol=1e-6)


def random_batch() -> dict[str, torch.Tensor]:
    """Log-probabilities that differ enough to be clipped, and replies of different length; every row has some."""
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(ROWS, TOKENS, generator=generator) * 3
    lengths = torch.randint(1, TOKENS + 1, (ROWS,), generator=generator)
    return {
        "old": old,
        "new": old + torch.randn(ROWS, TOKENS, generator=generator) * 0.3,
        "mask": (torch.arange(TOKENS) < lengths[:, None]).float(),
        "advantages": torch.randn(ROWS, generator=generator),
    }


def algorithm(aggregation: Aggregation, ratio_level: RatioLevel, clip_high: float) -> Any:
    """SkyRL's own settings for a run of ours."""
    words = [f"algorithm.loss_aggregation={aggregation}", f"algorithm.ratio_level={ratio_level}"]
    (run,) = configs.typed(["engine=skyrl", *words, f"algorithm.clip_high={clip_high}"])
    return skyrl_settings(skyrl.overrides(run)).trainer.algorithm
