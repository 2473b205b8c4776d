"""Derived numbers, the reachable ceiling, warnings, refusals."""

from __future__ import annotations

import configs
import pytest

from grpo import config, plan
from grpo.faults import ConfigError


def test_the_numbers_of_a_run_follow_from_its_config() -> None:
    # 16 tasks x 8 replies = 128 rows, in 4 updates of 32; 32 / 8 rows a pass = 4 passes; 25 steps; 20 turns; 32 tokens.
    assert plan.derive(configs.run()) == plan.Plan(
        rows_per_step=128,
        rows_per_update=32,
        devices=1,
        accumulation=4,
        updates=100,
        rollouts=3200,
        replies_at_most=64_000,
        tokens_at_most=2_048_000,
    )


def test_each_gpu_of_a_cluster_takes_its_share_of_an_update() -> None:
    (run,) = configs.typed(["experiment=maze_hyperpod", "cluster.image=x"])
    # 24 tasks x 8 replies = 192 rows over 3 nodes x 2 GPUs, one row a pass: 32 passes.
    assert (plan.derive(run).devices, plan.derive(run).accumulation) == (6, 32)


def test_a_budget_below_the_shortest_solution_is_refused_with_the_number_that_works() -> None:
    with pytest.raises(ConfigError) as caught:
        plan.ceilings(configs.run({"env.max_turns": 5}))
    assert str(caught.value).startswith(
        "config error: env.max_turns: max_turns=5 is below the shortest possible solution"
    )
    assert "use at least 9 " in str(caught.value)


def test_a_budget_that_leaves_tasks_out_of_reach_is_warned_about_with_the_share() -> None:
    run = configs.run({"env.max_turns": 12})
    reached = plan.ceilings(run)
    assert 0 < reached["validation"].share < 1
    told = [warning for warning in plan.warnings(run, reached) if "validation" in warning]
    assert f"{reached['validation'].share:.1%} of the validation tasks" in told[0]


def test_the_default_run_reaches_everything_and_warns_of_nothing() -> None:
    run = configs.run()
    reached = plan.ceilings(run)
    assert {reach.share for reach in reached.values()} == {1.0}
    assert plan.warnings(run, reached) == []


def test_the_ceiling_counts_tasks_within_the_budget() -> None:
    run = configs.run()
    env = config.build_env(run)
    found = plan.ceiling(env, "test", seed=0, tasks=8)
    needed = [env.min_turns(task) for task in env.tasks("test", 8, 0)]
    assert (found.tasks, found.fewest_turns, found.most_turns) == (8, min(needed), max(needed))


def test_a_hub_model_without_a_revision_is_warned_about() -> None:
    (run,) = configs.typed(["model=qwen3_vl_8b"])
    assert any("a revision makes the run repeatable" in warning for warning in plan.warnings(run, {}))
    (run,) = configs.typed(["model=qwen3_vl_8b_sft"])
    assert plan.warnings(run, {}) == []


@pytest.mark.parametrize("option", ["engine=skyrl", "cluster=ray", "cluster=slurm"])
def test_what_cannot_run_yet_is_named(option: str) -> None:
    (run,) = configs.typed([option])
    (fault,) = plan.blockers(run)
    assert option in fault.problem


@pytest.mark.parametrize("option", ["env=visgym", "env=manifest"])
def test_an_env_that_cannot_be_played_yet_is_refused_with_its_sentence(option: str) -> None:
    (run,) = configs.typed([option])
    with pytest.raises(ConfigError, match=f"{option} can be composed and checked, but not run yet"):
        plan.ceilings(run)
