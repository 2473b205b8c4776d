"""Ray as a run starts it, really started, without GPUs."""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
from pathlib import Path

import configs
import pytest
import ray

from grpo.engines import orphans, skyrl
from grpo.engines.skyrl_run import refuse_unshared, start_ray
from grpo.engines.skyrl_settings import settings
from grpo.engines.skyrl_workers import PolicyWorker

KEY = "a-key-that-nobody-may-see"


def test_workers_find_our_code_and_get_the_runs_mark_and_what_skyrl_needs_but_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a job that came through Ray's API, with a variable that SkyRL sets too.
    job = {"runtime_env": {"env_vars": {"PYTHONPATH": "/elsewhere", "MINE": "1"}}, "metadata": {}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    (run,) = configs.typed(["engine=skyrl"])
    config = settings(skyrl.overrides(run) | {"trainer.log_path": str(tmp_path)})
    with orphans.ended_with_this_process() as environment:
        try:
            start_ray(config, environment)
            given = ray.get_runtime_context().runtime_env["env_vars"]
            seen = ray.get(ray.remote(num_cpus=1)(lambda: dict(os.environ)).remote())
            place = {"world_size": 1, "rank": 0, "local_rank": 0, "master_addr": None, "master_port": None}
            worker = PolicyWorker.options(num_gpus=0).remote(cfg=config.trainer, sequence_parallel_size=1, **place)
            refuse_unshared(tmp_path)
            with (
                monkeypatch.context() as patch,
                pytest.raises(RuntimeError, match=r"cannot see .*; set runtime.output"),
            ):
                patch.setattr(Path, "touch", lambda path: None)  # as if it were this node's alone
                refuse_unshared(tmp_path)
            kinds = ray.get(worker.__ray_call__.remote(lambda self: [each.__name__ for each in type(self).__mro__]))
        finally:
            ray.shutdown()
    assert "UnpaddedPolicyWorker" in kinds
    assert KEY not in given.values()
    assert given["MINE"] == "1" and given["PYTHONPATH"] == os.environ["PYTHONPATH"]
    assert {seen[name] for name in environment} == set(environment.values())
    assert seen["SKYRL_LOG_FILE"].startswith(str(tmp_path))
    assert seen["VLLM_DISABLE_COMPILE_CACHE"] == "1"
