"""Make, show and remove the Ray cluster that a config names, as KubeRay manifests.

  python scripts/cluster.py render cluster=hyperpod cluster.image=ADDRESS@sha256:…   print the manifests
  python scripts/cluster.py apply  cluster=hyperpod cluster.image=…                  make the cluster, or change it
  python scripts/cluster.py status cluster=hyperpod cluster.image=…                  its state, and why pods wait
  python scripts/cluster.py delete cluster=hyperpod cluster.image=…                  remove it; the shared claim stays

The words after the action are those of train.py. With cluster=hyperpod_rayjob, render shows the RayJob of the run;
train.py sends it. Exit codes: 0 done; 1 the cluster is not there or not ready; 2 the config is wrong, or refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from grpo import compose, config
from grpo.cluster_schema import HyperpodCluster, HyperpodRayjobCluster
from grpo.config import ConfigError, Fault, RunConfig
from launchers import manifests
from launchers.cluster import Attempt, Unreachable
from launchers.kube_api import KubeApi, KubeError
from launchers.record import fingerprint

CONF = Path(__file__).resolve().parents[1] / "conf"
KIND = "RayCluster"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("render", "apply", "status", "delete"))
    parser.add_argument("words", nargs="*", metavar="group=option key=value")
    given = parser.parse_args()
    try:
        source = compose.Source(folder=CONF, name="config", extra=None)
        run = config.parse(compose.script_config(source, given.words))
        if given.action == "render":
            print(yaml.safe_dump_all(_manifests(run), sort_keys=False), end="")
            return 0
        return _ask(given.action, _standing(run))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (KubeError, Unreachable) as error:
        sys.stderr.write(f"Kubernetes: {error}\n")
        return 2


def _manifests(run: RunConfig) -> list[manifests.Manifest]:
    if isinstance(run.cluster, HyperpodRayjobCluster):
        attempt = Attempt(sweep=Path("sweep"), folder="0", number=1, fingerprint=fingerprint(run), run=run)
        return [manifests.claim(run.cluster), manifests.ray_job(attempt)]
    settings = _standing(run)
    return [manifests.claim(settings), manifests.ray_cluster(settings)]


def _standing(run: RunConfig) -> HyperpodCluster:
    if not isinstance(run.cluster, HyperpodCluster):
        problem = f"wants cluster=hyperpod, which stands by itself; cluster={run.cluster.name} makes none"
        raise ConfigError([Fault(key="cluster", problem=problem)])
    return run.cluster


def _ask(action: str, settings: HyperpodCluster) -> int:
    wanted = manifests.ray_cluster(settings)
    api, name = KubeApi(settings.namespace, settings.kube_context), settings.cluster_name
    if action == "delete":
        api.delete(KIND, name)
        print(f"{KIND} {name} is being removed; the claim {settings.shared_claim} and what it holds stay")
        return 0
    if action == "apply":
        api.create_plain(manifests.claim(settings))
        if api.create(wanted).get("spec") != wanted["spec"]:
            api.replace_spec(wanted)
        print(f"{KIND} {name} applied; python scripts/cluster.py status … says when it is ready")
        return 0
    return _status(api, name)


def _status(api: KubeApi, name: str) -> int:
    try:
        found = api.get(KIND, name).get("status", {})
    except KubeError as error:
        if error.code != 404:
            raise
        print(f"no {KIND} {name}")
        return 1
    state = found.get("state") or "not ready"
    workers = f"{found.get('readyWorkerReplicas', 0)} of {found.get('desiredWorkerReplicas', '?')} workers ready"
    waits = api.waits(f"ray.io/cluster={name}")
    print(f"{KIND} {name}: {state}; {workers}{f'; waiting: {waits}' if waits else ''}")
    return 0 if state == "ready" else 1


if __name__ == "__main__":
    sys.exit(main())
