"""What Slurm's own commands say: of a job, and of the nodes that jobs could get."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping

from grpo.cluster_schema import SlurmCluster
from grpo.config import ConfigError, Fault
from grpo.faults import guess
from launchers.cluster import Refused, Unreachable

AWAY = re.compile(r"Unable to contact|Connection refused|timed out|Communication connection failure")
COMMAND_SECONDS = 60


def shown(job: str) -> Mapping[str, str]:
    """What slurmctld knows of a job; nothing once it has forgotten it."""
    try:
        return dict(re.findall(r"(\w+)=(\S*)", run("scontrol", "show", "job", job, "--oneliner")))
    except Refused:
        return {}


def accounted(job: str) -> str:
    """The state in the accounts; empty where there are none."""
    with contextlib.suppress(Refused):
        lines = run("sacct", "-X", "--noheader", "--parsable2", "--format", "State", "--jobs", job).split()
        return lines[0] if lines else ""
    return ""


def run(*words: str) -> str:
    """Output of a Slurm command. Raises Refused with its words, and Unreachable where slurmctld does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{words[0]}: {error}") from error
    if done.returncode == 0:
        return done.stdout
    told = " ".join(done.stderr.split())
    if AWAY.search(told):
        raise Unreachable(told)
    raise Refused(told)


def check(wanted: SlurmCluster) -> None:
    """Raises ConfigError for a partition that is not there, and for jobs that would wait in it for ever.

    Nodes that are down or drained count: they come back. That is why `sbatch --test-only` is of no use here.
    """
    partitions = dict(line.split() for line in run("sinfo", "--noheader", "--format", "%R %l").splitlines())
    if wanted.partition not in partitions:
        told = f"no partition {wanted.partition!r}{guess(wanted.partition, partitions)}"
        raise ConfigError([Fault(key="cluster.partition", problem=f"{told} (there are {', '.join(partitions)})")])
    faults = []
    limit = minutes(partitions[wanted.partition])
    if limit is not None and wanted.time_minutes > limit:
        told = f"{wanted.time_minutes} is above the {limit} minutes of partition {wanted.partition}"
        faults.append(Fault(key="cluster.time_minutes", problem=f"{told}; use fewer, a job goes on after a requeue"))
    nodes = _nodes(wanted.partition)
    asked = {"cpus_per_task": "CPUs", "memory_gib": "GiB", "gpus_per_node": "GPUs"}
    for index, (key, unit) in enumerate(asked.items()):
        value, largest = getattr(wanted, key), max((node[index] for node in nodes), default=0.0)
        if value > largest:
            told = f"{value} {unit} a node, and the largest node of partition {wanted.partition} has {largest:.5g}"
            faults.append(Fault(key=f"cluster.{key}", problem=f"{told}; use fewer, or another cluster.partition"))
    needs = (wanted.cpus_per_task, wanted.memory_gib, wanted.gpus_per_node)
    fitting = sum(all(has >= need for has, need in zip(node, needs, strict=True)) for node in nodes)
    if not faults and fitting < wanted.nodes:
        size = ", ".join(f"{need} {unit}" for need, unit in zip(needs, asked.values(), strict=True))
        told = f"{wanted.nodes} wanted, and partition {wanted.partition} has {fitting} with {size} each; use fewer"
        faults.append(Fault(key="cluster.nodes", problem=told))
    if faults:
        raise ConfigError(faults)


def minutes(limit: str) -> int | None:
    """sinfo's [days-][hours:]minutes:seconds; None for no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if found is None:
        return None
    days, hours, whole, _ = (int(part or 0) for part in found.groups())
    return (days * 24 + hours) * 60 + whole


def _nodes(partition: str) -> list[tuple[float, float, float]]:
    """(CPUs, GiB, GPUs) of each of the partition's nodes."""
    lines = run("sinfo", "--noheader", "--Node", "--partition", partition, "--format", "%c|%m|%G").splitlines()
    nodes = []
    for cpus, mib, resources in (line.split("|") for line in lines):
        gpus = sum(int(count) for count in re.findall(r"(?:^|,)gpu:(?:[^,:(]+:)?(\d+)", resources))
        nodes.append((float(cpus), float(mib) / 1024, float(gpus)))
    return nodes
