"""scripts/cluster.py against the Kubernetes API over TLS: every state told in words, every refusal with its way out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import configs
import pytest
import yaml
from ray_head import free_port
from raycluster_stub import RayClusterStub, pod
from test_manifests import IMAGE

NAME = "skyrl-visgym"
CLUSTER = f"RayCluster {NAME} in namespace default"


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RayClusterStub]:
    (tmp_path / "stub").mkdir()
    made = RayClusterStub(folder=tmp_path / "stub")
    made.server.start()
    yield made
    made.server.stop()


def ask(stub: RayClusterStub, action: str, *words: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
    """(exit code, output, error output) of the script, as a person starts it, with nobody to be asked."""
    path = os.pathsep.join([str(configs.ROOT), str(configs.ROOT / "launchers/plugin")])
    environment = {**os.environ, **stub.server.environment, "PYTHONPATH": path}
    if kubeconfig:
        environment["KUBECONFIG"] = str(kubeconfig)
    command = [sys.executable, str(configs.ROOT / "scripts/cluster.py"), action, "cluster=hyperpod", *words]
    done = subprocess.run(
        command, env=environment, cwd=stub.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def apply(stub: RayClusterStub, *words: str) -> tuple[int, str, str]:
    return ask(stub, "apply", f"cluster.image={IMAGE}", *words)


def test_apply_makes_the_cluster_and_again_changes_nothing(stub: RayClusterStub) -> None:
    code, told, error = apply(stub)
    assert code == 0, error
    assert told.startswith(f"claim fsx-claim: made\n{CLUSTER}: made; ")
    stub.clusters[NAME]["spec"]["suspend"] = False  # Kueue adds this to what is ours
    assert apply(stub) == (
        0,
        f"claim fsx-claim: was there already, and stays as it is\n{CLUSTER}: is so already\n",
        "",
    )
    assert stub.clusters[NAME]["spec"]["suspend"] is False


def test_apply_says_what_a_change_does_to_pods_that_run(stub: RayClusterStub) -> None:
    apply(stub)
    code, told, _ = apply(stub, "cluster.nodes=2")
    assert code == 0
    assert f"{CLUSTER}: changed. The number of workers follows at once; pods that run keep their" in told
    assert stub.clusters[NAME]["spec"]["workerGroupSpecs"][0]["replicas"] == 2


def test_a_cluster_that_is_being_removed_is_not_applied_to(stub: RayClusterStub) -> None:
    apply(stub)
    assert ask(stub, "delete", "--yes")[0] == 0
    assert apply(stub)[:2] == (
        1,
        f"{CLUSTER} is still being removed; apply again once status says that there is none\n",
    )
    assert ask(stub, "status")[1].startswith(f"{CLUSTER}: being removed; ")


def test_status_of_a_ready_cluster_names_its_head_and_its_pods(stub: RayClusterStub) -> None:
    apply(stub)
    head = {"serviceIP": "10.0.0.5"}
    status = {"state": "ready", "readyWorkerReplicas": 1, "desiredWorkerReplicas": 1, "head": head}
    stub.clusters[NAME]["status"] = status
    stub.pods = [pod("worker-0", ready=True), pod("head-0", ready=True)]
    assert ask(stub, "status") == (
        0,
        f"{CLUSTER}: ready; 1 of 1 workers ready; head 10.0.0.5\n"
        "  head-0: Running, ready\n"
        "  worker-0: Running, ready\n",
        "",
    )
    # KubeRay leaves the state as it was when a pod is lost afterwards.
    stub.pods = [pod("head-0", ready=False)]
    code, told, _ = ask(stub, "status")
    assert (code, told.splitlines()[0]) == (1, f"{CLUSTER}: not ready; 1 of 1 workers ready; head 10.0.0.5")


def test_status_says_why_pods_wait(stub: RayClusterStub) -> None:
    apply(stub)
    stub.clusters[NAME]["status"] = {"desiredWorkerReplicas": 3}
    few = "0/4 nodes are available: 3 Insufficient nvidia.com/gpu."
    stub.pods = [
        pod("head-0", ready=False, waiting=("ImagePullBackOff", "Back-off pulling image: not found")),
        pod("worker-0", ready=False, unscheduled=few),
        pod("worker-1", ready=False, waiting=("ContainerCreating", "")),
    ]
    assert ask(stub, "status") == (
        1,
        f"{CLUSTER}: not ready; 0 of 3 workers ready; head without an address yet\n"
        "  head-0: Pending, ImagePullBackOff: Back-off pulling image: not found\n"
        f"  worker-0: Pending, Unschedulable: {few}\n"
        "  worker-1: Pending, not ready yet\n",
        "",
    )


def test_status_gives_the_reason_of_a_queue_and_of_pods_that_may_not_be_made(stub: RayClusterStub) -> None:
    apply(stub, "cluster.queue_name=team-a")
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateHeadPod", "message": "no account"}
    stub.clusters[NAME]["status"] = {"state": "suspended", "conditions": [refused]}
    few = "couldn't assign flavors to pod set gpu: insufficient unused quota for nvidia.com/gpu, 2 more needed"
    held = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": few}
    stub.workloads = [
        {"metadata": {"ownerReferences": [{"name": "another"}]}, "status": {"conditions": [{**held, "message": "no"}]}},
        {"metadata": {"ownerReferences": [{"name": NAME}]}, "status": {"conditions": [held]}},
    ]
    code, told, _ = ask(stub, "status")
    assert (code, told.splitlines()) == (
        1,
        [
            f"{CLUSTER}: suspended; 0 of 3 workers ready; head without an address yet",
            "  FailedCreateHeadPod: no account",
            f"  waits in Kueue's queue: {few}",
        ],
    )


def test_status_tells_a_cluster_that_kuberay_has_not_seen(stub: RayClusterStub) -> None:
    apply(stub)
    assert f"{CLUSTER}: not looked at yet (does KubeRay's operator run" in ask(stub, "status")[1]


def test_what_is_not_there_is_told_with_where_it_was_looked_for(stub: RayClusterStub) -> None:
    where = f"no {CLUSTER} at https://127.0.0.1:{stub.server.api_port}"
    assert ask(stub, "status") == (1, f"{where}; python scripts/cluster.py apply … makes it\n", "")
    assert ask(stub, "delete", "--yes") == (1, f"{where}\n", "")


def test_delete_does_nothing_until_someone_says_yes(stub: RayClusterStub) -> None:
    apply(stub)
    code, _, told = ask(stub, "delete")
    assert (code, told) == (
        2,
        "config error: delete: ends every job on the cluster, and there is nobody to ask here: give --yes\n",
    )
    assert "deletionTimestamp" not in stub.clusters[NAME]["metadata"]
    code, told, _ = ask(stub, "delete", "--yes")
    assert (code, told) == (0, f"{CLUSTER} is being removed; the claim fsx-claim and what it holds stay\n")
    assert "deletionTimestamp" in stub.clusters[NAME]["metadata"]
    assert list(stub.claims) == ["fsx-claim"]


@pytest.mark.parametrize("action", ["apply", "status", "delete"])
def test_a_refusal_keeps_the_servers_words_and_says_what_to_do(stub: RayClusterStub, action: str) -> None:
    words = [f"cluster.image={IMAGE}"] if action == "apply" else ["--yes"] if action == "delete" else []
    said = 'rayclusters.ray.io "skyrl-visgym" is forbidden: User "me" cannot get resource "rayclusters"'
    stub.refusal = (403, said)
    code, _, told = ask(stub, action, *words)
    assert code == 2
    assert told.startswith(f"Kubernetes refused: HTTP 403: {said}; ask for the role in this namespace, or choose")
    assert (stub.clusters, stub.claims) == ({}, {})


def test_credentials_that_are_no_good_any_more_are_told_as_such(stub: RayClusterStub) -> None:
    stub.refusal = (401, "Unauthorized")
    code, _, told = ask(stub, "status")
    assert code == 2
    assert told == (
        "Kubernetes refused: HTTP 401: Unauthorized; log in again, for example: "
        "aws eks update-kubeconfig --name CLUSTER\n"
    )


@pytest.mark.parametrize("action", ["apply", "status", "delete"])
def test_a_kubernetes_without_kuberay_is_not_taken_for_a_missing_cluster(stub: RayClusterStub, action: str) -> None:
    stub.operator = False
    words = [f"cluster.image={IMAGE}"] if action == "apply" else ["--yes"] if action == "delete" else []
    code, _, told = ask(stub, action, *words)
    assert code == 2
    assert "it has no objects of ray.io/v1; is KubeRay's operator installed?" in told
    assert stub.claims == {}


def test_an_api_that_does_not_answer_is_named_with_its_address(stub: RayClusterStub) -> None:
    gone = yaml.safe_load(stub.server.kubeconfig.read_text())
    nowhere = f"https://127.0.0.1:{free_port()}"
    gone["clusters"][0]["cluster"]["server"] = nowhere
    path = stub.folder / "elsewhere"
    path.write_text(yaml.safe_dump(gone))
    code, _, told = ask(stub, "status", kubeconfig=path)
    assert code == 2
    assert told.startswith(f"Kubernetes does not answer: {nowhere}: ")
    assert told.endswith("is it the right cluster (cluster.kube_context), and does its network let this machine in?\n")
    assert told.count("\n") == 1


def test_an_outage_of_the_api_is_no_verdict_on_the_cluster(stub: RayClusterStub) -> None:
    stub.refusal = (503, "etcd leader changed")
    code, told, error = ask(stub, "status")
    assert (code, told) == (2, "")
    assert error.startswith("Kubernetes does not answer: HTTP 503")


def test_a_context_that_no_kubeconfig_has_is_refused_with_the_nearest(stub: RayClusterStub) -> None:
    code, _, told = ask(stub, "status", "cluster.kube_context=stubb")
    assert code == 2
    assert "cluster.kube_context: no context 'stubb' in" in told and "did you mean stub?" in told


def test_a_missing_kubeconfig_is_told_with_the_command_that_makes_one(stub: RayClusterStub) -> None:
    code, _, told = ask(stub, "status", kubeconfig=stub.folder / "none")
    assert code == 2
    assert "the kubeconfig names no cluster" in told and "aws eks update-kubeconfig --name CLUSTER" in told


def test_another_cluster_word_is_refused_before_anything_is_asked(stub: RayClusterStub) -> None:
    code, _, told = ask(stub, "status", "cluster=ray")
    assert (code, told) == (
        2,
        "config error: cluster: wants cluster=hyperpod, which stands by itself; cluster=ray makes none\n",
    )
