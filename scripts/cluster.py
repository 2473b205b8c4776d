"""Make, show and remove the Ray cluster that a config names, as KubeRay manifests.

  python scripts/cluster.py render cluster=hyperpod cluster.image=ADDRESS@sha256:…   print the manifests
  python scripts/cluster.py apply  cluster=hyperpod cluster.image=…                  make the cluster, or change it
  python scripts/cluster.py status cluster=hyperpod                                  its pods, and why some wait
  python scripts/cluster.py delete cluster=hyperpod --yes                            remove it; the shared claim stays

The words after the action are those of train.py. With cluster=hyperpod_rayjob, render shows the RayJob of the run;
train.py sends it. Exit codes: 0 done; 1 the cluster is not there, not ready or still being removed; 2 the config is
wrong, or Kubernetes refused or did not answer: nothing was changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from grpo import compose, config
from grpo.cluster_schema import HyperpodCluster, HyperpodRayjobCluster
from grpo.config import ConfigError, Fault, RunConfig
from launchers import clusters, manifests
from launchers.cluster import Attempt, Unreachable
from launchers.kube_api import KubeApi, KubeError, why
from launchers.record import fingerprint

CONF = Path(__file__).resolve().parents[1] / "conf"
KIND = "RayCluster"
NEEDS_IMAGE = ("render", "apply")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("render", "apply", "status", "delete"))
    parser.add_argument("words", nargs="*", metavar="group=option key=value")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    given = parser.parse_intermixed_args()
    try:
        run = _read(given.words, with_image=given.action in NEEDS_IMAGE)
        if given.action == "render":
            print(yaml.safe_dump_all(_manifests(run), sort_keys=False), end="")
            return 0
        settings = _standing(run)
        if given.action == "apply":
            manifests.check_image(settings)
        if given.action == "delete" and not given.yes and not _sure(settings):
            print("nothing was removed")
            return 1
        clusters.need("kubernetes", "hyperpod")
        act = {"apply": _apply, "status": _status, "delete": _delete}[given.action]
        return act(KubeApi(settings.namespace, settings.kube_context), settings)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KubeError as error:
        sys.stderr.write(f"Kubernetes refused: {error}\n")
        return 2
    except Unreachable as error:
        way_out = "is it the right cluster (cluster.kube_context), and does its network let this machine in?"
        sys.stderr.write(f"Kubernetes does not answer: {error}; {way_out}\n")
        return 2


def _read(words: list[str], *, with_image: bool) -> RunConfig:
    """The config that the words spell; the image may be missing where none is sent."""
    source = compose.Source(folder=CONF, name="config", extra=None)
    try:
        return config.parse(compose.script_config(source, words))
    except ConfigError as error:
        if with_image or [fault.key for fault in error.faults] != ["cluster.image"]:
            raise
        return config.parse(compose.script_config(source, [*words, "cluster.image=none"]))


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


def _sure(settings: HyperpodCluster) -> bool:
    if not sys.stdin.isatty():
        problem = "ends every job on the cluster, and there is nobody to ask here: give --yes"
        raise ConfigError([Fault(key="delete", problem=problem)])
    return input(f"remove {_name(settings)}, with every job that runs there? [y/N] ").strip().lower() in ("y", "yes")


def _name(settings: HyperpodCluster) -> str:
    return f"{KIND} {settings.cluster_name} in namespace {settings.namespace}"


def _apply(api: KubeApi, settings: HyperpodCluster) -> int:
    before = api.find(KIND, settings.cluster_name)
    if before is not None and _is_leaving(before):
        print(f"{_name(settings)} is still being removed; apply again once status says that there is none")
        return 1
    made = api.create_plain(manifests.claim(settings))
    print(f"claim {settings.shared_claim}: {'made' if made else 'was there already, and stays as it is'}")
    api.apply(manifests.ray_cluster(settings))
    after = api.get(KIND, settings.cluster_name)
    if before is None:
        print(f"{_name(settings)}: made; python scripts/cluster.py status … says when it is ready")
    elif after["metadata"].get("generation") == before["metadata"].get("generation"):
        print(f"{_name(settings)}: is so already")
    else:
        print(f"{_name(settings)}: changed. The number of workers follows at once; pods that run keep their")
        print("image and sizes, because KubeRay replaces none by itself: delete and apply give it new ones")
    return 0


def _delete(api: KubeApi, settings: HyperpodCluster) -> int:
    if api.find(KIND, settings.cluster_name) is None:
        print(f"no {_name(settings)} at {api.server}")
        return 1
    api.delete(KIND, settings.cluster_name)
    print(f"{_name(settings)} is being removed; the claim {settings.shared_claim} and what it holds stay")
    return 0


def _status(api: KubeApi, settings: HyperpodCluster) -> int:
    found = api.find(KIND, settings.cluster_name)
    if found is None:
        print(f"no {_name(settings)} at {api.server}; python scripts/cluster.py apply … makes it")
        return 1
    told = found.get("status", {})
    pods = sorted(api.pods(f"ray.io/cluster={settings.cluster_name}"), key=lambda pod: pod.metadata.name)
    ready, wanted = told.get("readyWorkerReplicas", 0), told.get("desiredWorkerReplicas", settings.nodes)
    whole = told.get("state") == "ready" and ready >= wanted and all(_ready(pod) for pod in pods)
    state = "being removed" if _is_leaving(found) else "ready" if whole else _unready(told)
    address = told.get("head", {}).get("serviceIP")
    print(f"{_name(settings)}: {state}; {ready} of {wanted} workers ready; head {address or 'without an address yet'}")
    for pod in pods:
        print(f"  {pod.metadata.name}: {pod.status.phase}, {'ready' if _ready(pod) else why(pod) or 'not ready yet'}")
    for reason in _reasons(api, settings.cluster_name, told):
        print(f"  {reason}")
    return 0 if state == "ready" else 1


def _is_leaving(found: Any) -> bool:
    return "deletionTimestamp" in found["metadata"]


def _unready(told: Any) -> str:
    if not told:
        return "not looked at yet (does KubeRay's operator run, and watch this namespace?)"
    return "not ready" if told.get("state") in (None, "", "ready") else told["state"]


def _ready(pod: Any) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())


def _reasons(api: KubeApi, name: str, told: Any) -> list[str]:
    """What stops the cluster as a whole: a queue, or pods that may not be made at all."""
    failures = [each for each in told.get("conditions", ()) if each["type"] == "ReplicaFailure"]
    failed = [f"{each['reason']}: {each.get('message', '')}" for each in failures if each["status"] == "True"]
    held = api.queued(name) if told.get("state") == "suspended" else ""
    return [*failed, *([f"waits in Kueue's queue: {held}"] if held else [])]


if __name__ == "__main__":
    sys.exit(main())
