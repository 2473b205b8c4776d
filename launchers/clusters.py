"""The cluster that a config names, and how a sweep deals with it."""

from __future__ import annotations

from grpo.config import RunConfig
from launchers.cluster import Cluster, Policy


def policy(run: RunConfig) -> Policy:
    from launchers import local

    return local.POLICY


def connect(run: RunConfig) -> Cluster:
    from launchers.local import LocalProcesses

    return LocalProcesses()
