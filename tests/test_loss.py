import math
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo.loss import LossParts, kl, loss_metrics, policy_loss, token_weights

SETTINGS: dict[str, Any] = {
    "clip_low": 0.2,
    "clip_high": 0.2,
    "kl_coefficient": 0.0,
    "kl_estimator": "k3",
    "ratio_level": "token",
}


def row(*values: float) -> Tensor:
    return torch.tensor([values])


def loss_of_ratio(ratio: float, advantage: float, **settings: Any) -> LossParts:
    """One row of one token with new/old = `ratio`."""
    return loss(row(math.log(ratio)), row(0.0), advantages=[advantage], **settings)


def loss(
    new: Tensor,
    old: Tensor,
    ref: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    advantages: list[float],
    weights: Tensor | None = None,
    entropy: Tensor | None = None,
    **settings: Any,
) -> LossParts:
    mask = torch.ones_like(new, dtype=torch.bool) if mask is None else mask
    weights = token_weights(mask, "token_mean", max_tokens=8) if weights is None else weights
    return policy_loss(
        new, old, ref, mask, torch.tensor(advantages), weights, entropy_BT=entropy, **(SETTINGS | settings)
    )


def test_kl_estimates_at_minus_one_against_minus_two() -> None:
    new, ref = row(-1.0), row(-2.0)
    assert kl(new, ref, "k1").item() == 1.0
    assert kl(new, ref, "k2").item() == 0.5
    assert kl(new, ref, "k3").item() == pytest.approx(0.36788, abs=1e-5)  # exp(-1) + 1 - 1


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_is_zero_where_both_agree(estimator) -> None:
    assert kl(row(-1.5), row(-1.5), estimator).item() == 0.0


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("new", [-3.0, -1.0])
def test_moving_away_from_the_reference_costs_more(estimator, new: float) -> None:
    near, far = row(new), row(new + (new - -2.0))
    assert 0 < kl(near, row(-2.0), estimator).item() < kl(far, row(-2.0), estimator).item()


def test_k3_stays_finite_where_the_policy_gave_up_a_token() -> None:
    assert math.isfinite(kl(row(-500.0), row(-0.1), "k3").item())


def test_token_mean_divides_by_trained_tokens_only() -> None:
    mask = torch.zeros(1, 100, dtype=torch.bool)
    mask[0, :10] = True
    weights = token_weights(mask, "token_mean", max_tokens=100)
    assert weights[mask].tolist() == pytest.approx([0.1] * 10)
    assert weights[~mask].sum().item() == 0.0


def test_the_three_aggregations_on_rows_of_one_three_and_no_tokens() -> None:
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
    nothing = [0.0, 0.0, 0.0]

    def check(aggregation: Any, by_hand: list[list[float]]) -> None:
        weights = token_weights(mask, aggregation, max_tokens=5)
        assert torch.allclose(weights, torch.tensor(by_hand)), weights

    check("token_mean", [[1 / 4, 0, 0], [1 / 4] * 3, nothing])
    check("sequence_mean", [[1 / 2, 0, 0], [1 / 6] * 3, nothing])
    check("fixed_length", [[1 / 10, 0, 0], [1 / 10] * 3, nothing])


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "clipped"),
    [
        (1.0, 1.0, -1.0, 0),
        (1.1, 1.0, -1.1, 0),
        (1.5, 1.0, -1.2, 1),  # clipped at 1 + 0.2
        (0.5, 1.0, -0.5, 0),  # the smaller surrogate is the plain one
        (1.5, -1.0, 1.5, 0),
        (0.5, -1.0, 0.8, 1),  # clipped at 1 - 0.2
    ],
)
def test_the_surrogate_is_clipped_where_it_would_gain(ratio, advantage, value, clipped) -> None:
    parts = loss_of_ratio(ratio, advantage)
    assert parts.total.item() == pytest.approx(value)
    assert parts.clipped_sum.item() == clipped


def test_the_two_clip_bounds_are_separate() -> None:
    assert loss_of_ratio(1.5, 1.0, clip_low=0.2, clip_high=0.28).total.item() == pytest.approx(-1.28)
    assert loss_of_ratio(0.5, -1.0, clip_low=0.2, clip_high=0.28).total.item() == pytest.approx(0.8)


def test_an_unlikely_ratio_stays_finite() -> None:
    assert math.isfinite(loss(row(-1.0), row(-200.0), advantages=[-1.0]).total.item())


def test_a_step_makes_the_better_reply_likelier_and_the_worse_one_less_likely() -> None:
    new = torch.tensor([[-1.0], [-1.0]], requires_grad=True)
    loss(new, new.detach(), advantages=[1.0, -1.0]).total.backward()
    # d loss / d logp = -weight * advantage at ratio 1; the weights are 1/2.
    assert new.grad is not None and new.grad.tolist() == [[-0.5], [0.5]]


def test_the_first_step_has_loss_zero_and_a_gradient() -> None:
    new = torch.tensor([[-1.0, -2.0], [-0.5, -1.0]], requires_grad=True)
    parts = loss(new, new.detach(), advantages=[0.7, -0.7])
    parts.total.backward()
    assert parts.total.item() == 0.0
    assert new.grad is not None and new.grad.norm().item() == pytest.approx(0.35)  # four of 0.7 / 4 = 0.175


def test_a_clipped_token_has_no_gradient() -> None:
    new = torch.tensor([[math.log(1.5)]], requires_grad=True)
    loss(new, row(0.0), advantages=[1.0]).total.backward()
    assert new.grad is not None and new.grad.item() == 0.0


def test_the_sequence_ratio_is_the_geometric_mean_of_the_token_ratios() -> None:
    # Log ratios 0.1 and 0.3 over two trained tokens; the masked third must not count.
    mask = torch.tensor([[True, True, False]])
    parts = loss(row(-0.9, -0.7, 9.0), row(-1.0, -1.0, 0.0), mask=mask, advantages=[-1.0], ratio_level="sequence")
    assert parts.total.item() == pytest.approx(math.exp(0.2))
    assert loss_metrics([parts], updates=1)["policy/ratio_mean"] == pytest.approx(math.exp(0.2))


def test_the_sequence_gradient_is_the_one_of_the_paper() -> None:
    # GSPO eq. 10: ratio * advantage * mean over tokens of d logp, here with a row weight of 1.
    new = torch.tensor([[-0.9, -0.7]], requires_grad=True)
    weights = token_weights(torch.ones(1, 2), "sequence_mean", max_tokens=2)
    loss(new, row(-1.0, -1.0), weights=weights, advantages=[-1.0], ratio_level="sequence").total.backward()
    assert new.grad is not None and new.grad.tolist() == [pytest.approx([math.exp(0.2) / 2] * 2)]


def test_a_sequence_is_clipped_as_a_whole() -> None:
    # Log ratios 0 and 0.6: the mean, exp(0.3) = 1.35, lies outside for both tokens.
    parts = loss(row(-1.0, -0.4), row(-1.0, -1.0), advantages=[1.0], ratio_level="sequence")
    assert parts.clipped_sum.item() == 2
    assert parts.total.item() == pytest.approx(-1.2)


def test_a_larger_kl_coefficient_makes_a_larger_loss() -> None:
    def total(coefficient: float) -> float:
        return loss(row(-1.0), row(-1.0), row(-2.0), advantages=[0.0], kl_coefficient=coefficient).total.item()

    assert [total(c) for c in (0.0, 0.1, 0.5)] == pytest.approx([0.0, 0.036788, 0.18394], abs=1e-5)


def test_kl_pulls_on_a_group_without_advantages_and_is_told_apart_from_the_policy_part() -> None:
    new = torch.tensor([[-1.0]], requires_grad=True)
    parts = loss(new, row(-1.0), row(-2.0), advantages=[0.0], kl_coefficient=0.1)
    parts.total.backward()
    assert parts.policy.item() == 0.0
    assert parts.kl.item() == pytest.approx(0.36788, abs=1e-5)
    # d k3 / d new = 1 - exp(ref - new) = 0.63212
    assert new.grad is not None and new.grad.item() == pytest.approx(0.063212, abs=1e-6)


def test_kl_is_measured_without_a_coefficient_and_does_not_pull() -> None:
    new = torch.tensor([[-1.0]], requires_grad=True)
    parts = loss(new, row(-1.0), row(-2.0), advantages=[0.0])
    parts.total.backward()
    assert new.grad is not None and new.grad.item() == 0.0
    assert loss_metrics([parts], updates=1)["policy/kl"] == pytest.approx(0.36788, abs=1e-5)


def test_a_kl_coefficient_wants_a_reference() -> None:
    with pytest.raises(ValueError, match=r"kl_coefficient=0\.1 wants the reference"):
        loss(row(-1.0), row(-1.0), advantages=[1.0], kl_coefficient=0.1)


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_masked_positions_may_hold_anything(ratio_level) -> None:
    mask = torch.tensor([[True, False, False]])
    weights = token_weights(mask, "token_mean", max_tokens=3)
    new = torch.tensor([[-1.0, math.nan, math.inf]], requires_grad=True)
    parts = loss(
        new,
        row(-1.1, math.nan, -math.inf),
        row(-2.0, math.nan, 0.0),
        mask=mask,
        weights=weights,
        advantages=[1.0],
        kl_coefficient=0.1,
        entropy=row(0.5, math.nan, 1.0),
        ratio_level=ratio_level,
    )
    parts.total.backward()
    bare = loss(
        row(-1.0), row(-1.1), row(-2.0), advantages=[1.0], kl_coefficient=0.1, entropy=row(0.5), ratio_level=ratio_level
    )
    assert parts.total.item() == bare.total.item()
    assert loss_metrics([parts], updates=1) == loss_metrics([bare], updates=1)
    assert new.grad is not None and new.grad[0, 0] != 0 and new.grad[0, 1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_when_everything_is_masked_the_loss_is_exactly_zero_and_counted(aggregation) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    new = torch.full((2, 3), -1.0, requires_grad=True)
    ref, weights = torch.full((2, 3), -2.0), token_weights(mask, aggregation, max_tokens=3)
    parts = loss(
        new,
        new.detach(),
        ref,
        mask=mask,
        weights=weights,
        advantages=[1.0, -1.0],
        kl_coefficient=0.1,
        entropy=torch.ones(2, 3),
        ratio_level="sequence",
    )
    parts.total.backward()
    assert parts.total.item() == 0.0
    assert parts.tokens.item() == 0
    assert new.grad is not None and not new.grad.any()
    assert loss_metrics([parts], updates=1) == {"policy/loss": 0.0}


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_micro_batches_add_up_to_the_whole_update(aggregation, ratio_level) -> None:
    generator = torch.Generator().manual_seed(0)
    new, old, ref, entropy = (-torch.rand(5, 7, generator=generator, dtype=torch.float64) for _ in range(4))
    mask = torch.rand(5, 7, generator=generator) < 0.6
    advantages = [1.0, -0.5, 0.25, -2.0, 1.25]
    weights = token_weights(mask, aggregation, max_tokens=7)

    def parts_of(rows: slice) -> LossParts:
        return loss(
            new[rows],
            old[rows],
            ref[rows],
            mask=mask[rows],
            weights=weights[rows],
            advantages=advantages[rows],
            entropy=entropy[rows],
            kl_coefficient=0.1,
            ratio_level=ratio_level,
        )

    whole = parts_of(slice(None))
    split = [parts_of(slice(0, 2)), parts_of(slice(2, 3)), parts_of(slice(3, 5))]
    assert sum(part.total.item() for part in split) == pytest.approx(whole.total.item())
    assert loss_metrics(split, updates=1) == pytest.approx(loss_metrics([whole], updates=1))


def test_metrics_are_means_over_trained_tokens_and_the_loss_a_mean_over_updates() -> None:
    # Ratios 1.5 (clipped), 1 and 1: three tokens in two updates.
    first = loss(row(math.log(1.5)), row(0.0), row(math.log(1.5)), advantages=[1.0], entropy=row(0.9))
    second = loss(row(-1.0, -1.0), row(-1.0, -1.0), row(-1.0, -2.0), advantages=[1.0], entropy=row(0.3, 0.6))
    assert loss_metrics([first, second], updates=2) == pytest.approx(
        {
            "policy/loss": (-1.2 + -1.0) / 2,
            "policy/clip_fraction": 1 / 3,
            "policy/ratio_mean": 3.5 / 3,
            "policy/kl": 0.367879 / 3,
            "policy/entropy": 0.6,
        },
        abs=1e-6,
    )


def test_no_reference_means_no_kl_metric() -> None:
    metrics = loss_metrics([loss(row(-1.0), row(-1.0), advantages=[1.0])], updates=1)
    assert metrics == {"policy/loss": -1.0, "policy/clip_fraction": 0.0, "policy/ratio_mean": 1.0}
