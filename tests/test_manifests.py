"""What KubeRay is asked to make is what its own schemas allow, by digest, and without a secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import configs
import pytest
import yaml
from jsonschema import Draft202012Validator

from grpo.cluster_schema import HyperpodCluster, KubeRayCluster
from grpo.config import ConfigError, RunConfig
from launchers import manifests
from launchers.cluster import Attempt

SCHEMAS = json.loads((Path(__file__).parent / "data/kuberay_schemas.json").read_text())
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/hydra-grpo@sha256:" + "a1" * 32
KUEUE = ["cluster.queue_name=team-a", "cluster.priority_class=training", "cluster.secrets=[wandb]"]


def run(cluster: str, *words: str) -> RunConfig:
    return configs.typed([f"cluster={cluster}", f"cluster.image={IMAGE}", *words])[0]


def attempt(*words: str) -> Attempt:
    return Attempt(sweep=Path("sweep_1"), folder="3", number=2, fingerprint="0123456789abcdef", run=run(*words))


def faults(manifest: Any) -> list[str]:
    """What the API server would say: its schema, with the values that it fills in itself."""
    schema = {**SCHEMAS[manifest["kind"]], "$defs": SCHEMAS["$defs"]}
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(manifest)]


def standing(*words: str) -> manifests.Manifest:
    settings = run("hyperpod", *words).cluster
    assert isinstance(settings, HyperpodCluster)
    return manifests.ray_cluster(settings)


def test_the_cluster_and_the_job_are_what_kuberay_takes() -> None:
    assert faults(standing(*KUEUE)) == []
    assert faults(manifests.ray_job(attempt("hyperpod_rayjob", *KUEUE))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("spec.headGroupSpec.rayStartParam", {}),
        ("spec.workerGroupSpecs", [{"groupName": "gpu"}]),
        ("spec.headGroupSpec.template.spec.containers", [{"image": "x"}]),
    ],
)
def test_the_schemas_catch_what_kuberay_would_refuse(path: str, value: object) -> None:
    manifest = standing()
    *parts, last = path.split(".")
    node = manifest
    for part in parts:
        node = node[part]
    node[last] = value
    assert faults(manifest)


def test_the_topology_is_the_documented_one() -> None:
    spec = standing()["spec"]
    (workers,) = spec["workerGroupSpecs"]
    head, worker = spec["headGroupSpec"]["template"]["spec"], workers["template"]["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert [pod["nodeSelector"]["node.kubernetes.io/instance-type"] for pod in (head, worker)] == [
        "ml.r5d.16xlarge",
        "ml.g7e.12xlarge",
    ]
    assert (workers["replicas"], worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) == (3, "2")
    for pod in (head, worker):
        (container,) = pod["containers"]
        assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]
        assert container["image"] == IMAGE
        assert container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"


@pytest.mark.parametrize("image", ["repository/image:latest", "repository/image", "repository/image@sha256:abc"])
def test_an_image_without_its_whole_digest_is_refused(image: str) -> None:
    settings = run("hyperpod").cluster
    assert isinstance(settings, KubeRayCluster)
    with pytest.raises(ConfigError, match="wants an image by digest"):
        manifests.check_image(settings.model_copy(update={"image": image}))


def test_secrets_appear_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "wandb-secret-4711")
    text = yaml.safe_dump(manifests.ray_job(attempt("hyperpod_rayjob", *KUEUE)))
    assert "secretRef:\n" in text and "name: wandb" in text
    assert "4711" not in text


def test_a_job_is_queued_where_asked_and_its_id_fits_kuberay() -> None:
    manifest = manifests.ray_job(attempt("hyperpod_rayjob", *KUEUE, "name=a_very_long_name_of_a_run_that_goes_on"))
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert len(manifest["metadata"]["name"]) <= 47
    assert manifest["spec"]["backoffLimit"] == 0
    assert manifest["spec"]["entrypoint"].endswith(
        "--folder /shared/outputs/a_very_long_name_of_a_run_that_goes_on/sweep_1/3"
    )


def test_the_script_prints_what_it_would_apply_and_refuses_a_tag(tmp_path: Path) -> None:
    script = [sys.executable, str(configs.ROOT / "scripts/cluster.py"), "render", "cluster=hyperpod"]
    path = os.pathsep.join([str(configs.ROOT), str(configs.ROOT / "launchers/plugin")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [*script, f"cluster.image={IMAGE}"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    claim, cluster = yaml.safe_load_all(done.stdout)
    assert (claim["kind"], claim["spec"]["accessModes"]) == ("PersistentVolumeClaim", ["ReadWriteMany"])
    assert faults(cluster) == []
    refused = subprocess.run(
        [*script, "cluster.image=a/b:latest"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith("config error: cluster.image: wants an image by digest")
