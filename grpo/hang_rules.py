"""HyperPod's own detection of hung jobs, told what progress looks like in this run's output.

The platform watches the output of the process that asks, on the node, whether or not a launcher is watching too. It
wants the ids of a Ray job, so it is asked after Ray is there and never before: asking would start a Ray of its own.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from grpo.cluster_schema import KubeRayCluster
from grpo.schema import RunConfig

HOST = "HYPERPOD_JMA_HOST"
"""Set on the pods, to the node's address; unset elsewhere."""

log = logging.getLogger(__name__)


def rules(run: RunConfig) -> list[dict[str, Any]]:
    """A line a step, the last of which ends the rule: the closing evaluation prints none."""
    cluster, steps = run.cluster, run.runtime.steps
    assert isinstance(cluster, KubeRayCluster)
    minutes = math.ceil(cluster.stall_minutes)
    step = {
        "name": "training_step",
        "type": "log_pattern",
        "enabled": True,
        "log_pattern": r"step +[0-9]+/[0-9]+",
        "timeout_minutes": minutes,
        # Loading the model and the first rollouts come before the first line.
        "start_timeout_minutes": minutes,
        "stop_pattern": rf"step +{steps}/{steps}",
    }
    return [step]


def send(run: RunConfig) -> None:
    """Ask for the rules where HyperPod runs this process; a platform that does not answer stops no training."""
    if HOST not in os.environ or not isinstance(run.cluster, KubeRayCluster):
        return
    try:
        from toolkit_for_ray_on_sagemaker_ai.log_monitoring import LogMonitorConfig, SageMakerLogMonitoring
    except ImportError:
        log.warning("hung jobs are not looked for by HyperPod: the image lacks the extra [hyperpod]")
        return
    action = "cancel" if run.cluster.on_stall == "retry" else "notify"
    wanted = LogMonitorConfig(enabled=True, rules=rules(run), action=action)
    log.info("HyperPod's rules for hung jobs: %s", SageMakerLogMonitoring(config=wanted).start().result)
