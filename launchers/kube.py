"""Which Kubernetes cluster is meant: a kubeconfig's context by name, for tools that know only the current one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from grpo.config import ConfigError, Fault
from grpo.faults import guess


def use_context(name: str | None) -> None:
    """Make `name` the current context for this process and its children; None leaves everything as it is.

    Raises ConfigError if no kubeconfig has it.
    """
    if name is None:
        return
    files = [Path(part).expanduser() for part in os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)]
    known: list[str] = []
    for path in files:
        config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
        contexts = [context["name"] for context in config.get("contexts", [])]
        if name in contexts:
            os.environ["KUBECONFIG"] = _copy({**config, "current-context": name})
            return
        known += contexts
    problem = f"no context {name!r} in {', '.join(map(str, files))}{guess(name, known)}"
    raise ConfigError([Fault(key="cluster.kube_context", problem=problem)])


def _copy(config: dict[str, Any]) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".kubeconfig", delete=False, encoding="utf-8") as file:
        os.chmod(file.name, 0o600)  # it may hold a token
        yaml.safe_dump(config, file)
    return file.name


def no_cluster(error: Exception) -> ConfigError:
    problem = f"the kubeconfig names no cluster ({error}); try: aws eks update-kubeconfig --name CLUSTER"
    return ConfigError([Fault(key="cluster.kube_context", problem=problem)])
