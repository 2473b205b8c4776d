"""Derived numbers, the reachable ceiling, warnings, refusals."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import configs
import pytest

from envs import visgym
from grpo import plan
from grpo.faults import ConfigError
from grpo.interfaces import Env, Episode
from grpo.types import Split, Task


def test_the_numbers_of_a_run_follow_from_its_config() -> None:
    # 16 tasks x 8 replies = 128 rows, in 4 updates of 32; 32 / 8 rows a pass = 4 passes; 60 steps; 20 turns; 32 tokens.
    assert plan.derive(configs.run()) == plan.Plan(
        rows_per_step=128,
        rows_per_update=32,
        devices=1,
        accumulation=4,
        updates=240,
        rollouts=7680,
        replies_at_most=153_600,
        tokens_at_most=4_915_200,
    )


def test_each_gpu_of_a_cluster_takes_its_share_of_an_update() -> None:
    (run,) = configs.typed(["experiment=maze_hyperpod", "cluster.image=x"])
    # 24 tasks x 8 replies = 192 rows over 3 nodes x 2 GPUs, four rows a pass: 8 passes.
    assert (plan.derive(run).devices, plan.derive(run).accumulation) == (6, 8)


def test_a_budget_below_the_shortest_solution_is_refused_with_the_number_that_works() -> None:
    with pytest.raises(ConfigError) as caught:
        plan.ceilings(configs.run({"env.max_turns": 5}))
    assert str(caught.value).startswith(
        "config error: env.max_turns: max_turns=5 is below the shortest possible solution"
    )
    assert "use at least 9 " in str(caught.value)


def test_a_budget_that_leaves_tasks_out_of_reach_is_warned_about_with_the_share() -> None:
    run = configs.run({"env.max_turns": 12})
    reached = plan.Ceiling(solvable=3, tasks=4, fewest_turns=9, most_turns=17)
    assert plan.warnings(run, {"validation": reached}) == [
        "env.max_turns=12 lets only 75.0% of the validation tasks be solved at all; 17 turns reach all"
    ]


def test_the_default_run_reaches_everything_and_warns_of_nothing() -> None:
    run = configs.run()
    reached = plan.ceilings(run)
    assert [reach and reach.share for reach in reached.values()] == [1.0, 1.0, 1.0]
    assert plan.warnings(run, reached) == []


@dataclass(frozen=True, kw_only=True)
class KnownTurns(Env):
    """Tasks that need the given numbers of turns."""

    max_turns: int
    needed: tuple[int | None, ...]

    def tasks(self, split: Split, count: int, seed: int) -> list[Task]:
        return [Task(id=str(index), split=split, seed=seed, data={}) for index in range(len(self.needed))]

    def min_turns(self, task: Task) -> int | None:
        return self.needed[int(task.id)]

    def episode(self, task: Task) -> Episode:
        raise AssertionError("a ceiling plays nothing")


def test_the_ceiling_counts_the_tasks_within_the_budget() -> None:
    found = plan.ceiling(KnownTurns(max_turns=5, needed=(9, 3, 5)), "test", seed=0)
    assert found == plan.Ceiling(solvable=2, tasks=3, fewest_turns=3, most_turns=9)


def test_there_is_no_ceiling_where_the_env_cannot_know() -> None:
    assert plan.ceiling(KnownTurns(max_turns=5, needed=(3, None)), "test", seed=0) is None


def test_a_hub_model_without_a_revision_is_warned_about() -> None:
    (run,) = configs.typed(["model=qwen3_vl_8b"])
    assert any("a revision makes the run repeatable" in warning for warning in plan.warnings(run, {}))
    (run,) = configs.typed(["model=qwen3_vl_8b_sft"])
    assert plan.warnings(run, {}) == []


@pytest.mark.parametrize("option", ["adapter=none"])
def test_what_cannot_run_yet_is_named(option: str) -> None:
    (run,) = configs.typed([option])
    (fault,) = plan.blockers(run)
    assert option in fault.problem


def test_an_env_that_cannot_be_played_here_is_refused_with_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = configs.typed(["env=visgym"])
    visgym._visgym.cache_clear()
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match="env: env=visgym needs VisGym, which is not installed"):
        plan.ceilings(run)


def test_every_fault_of_the_data_is_told_with_its_key_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "1 + 1?", "answer": "two", "kind": "number"}\nno json\n')
    run = configs.typed(["env=manifest", f"env.train_manifest={tmp_path}/train.jsonl", "env.eval_manifest=/none.jsonl"])
    with pytest.raises(ConfigError) as caught:
        plan.ceilings(run[0])
    assert [fault.key for fault in caught.value.faults] == ["env.train_manifest"] * 2 + ["env.eval_manifest"]
    assert str(caught.value.faults[0]).startswith(
        "env.train_manifest: line 1: answer: the reference 'two' is no number"
    )
