"""Which GPUs train and which generate: worked out from engine and cluster before anything is started.

Colocated, every GPU does both in turns. Separate, engines take whole nodes where there are several, because Ray packs
them: half a node left over could not be promised to the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo import schema
from grpo.cluster_schema import AnyCluster, LocalCluster
from grpo.faults import ConfigError, Fault


@dataclass(frozen=True, kw_only=True)
class Layout:
    nodes: int
    """That train."""
    gpus_per_node: int
    """That train, on each of these nodes; 1 for a CPU too."""
    engines: int
    """vLLM engines; 0 where the trainer itself generates."""
    all_nodes: int
    all_gpus: int
    """0 where no GPU need be there."""

    @property
    def devices(self) -> int:
        """Processes that each take a share of an update's rows."""
        return self.nodes * self.gpus_per_node


def layout(
    engine: schema.LocalEngine | schema.SkyrlEngine,
    cluster: AnyCluster,
) -> Layout:
    """Raises ConfigError if the engines do not fit the cluster's GPUs."""
    if isinstance(engine, schema.LocalEngine):
        return Layout(nodes=1, gpus_per_node=1, engines=0, all_nodes=1, all_gpus=0)
    nodes = 1 if isinstance(cluster, LocalCluster) else cluster.nodes
    total, width = nodes * cluster.gpus_per_node, engine.tensor_parallel_size
    have = f"the cluster has {nodes} x {cluster.gpus_per_node} GPUs"
    if width > cluster.gpus_per_node:
        raise _fault("tensor_parallel_size", f"an engine of {width} GPUs does not fit one node; {have}")
    if engine.placement == "colocated":
        engines = total // width if engine.num_engines is None else engine.num_engines
        if engines * width != total:
            wanted = f"use {total // width}, or null" if total % width == 0 else "engines must fill every GPU"
            raise _fault("num_engines", f"{engines} colocated engines x {width} GPU(s), but {have}; {wanted}")
        return Layout(
            nodes=nodes, gpus_per_node=cluster.gpus_per_node, engines=engines, all_nodes=nodes, all_gpus=total
        )
    if engine.num_engines is None:
        raise _fault("num_engines", "must be a number with engine.placement=separate: the other GPUs train")
    taken, per_node = engine.num_engines * width, cluster.gpus_per_node
    if taken >= total:
        raise _fault("num_engines", f"{engine.num_engines} engines x {width} GPU(s) leave none to train; {have}")
    if nodes == 1:
        return Layout(nodes=1, gpus_per_node=total - taken, engines=engine.num_engines, all_nodes=1, all_gpus=total)
    if taken % per_node:
        raise _fault("num_engines", f"separate engines must fill whole nodes, and {taken} GPUs do not; {have}")
    return Layout(
        nodes=nodes - taken // per_node,
        gpus_per_node=per_node,
        engines=engine.num_engines,
        all_nodes=nodes,
        all_gpus=total,
    )


def _fault(key: str, problem: str) -> ConfigError:
    return ConfigError([Fault(key=f"engine.{key}", problem=problem)])
