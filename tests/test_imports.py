"""The one-way import rule, and what `import grpo.config` must not load."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from pathlib import Path

import pytest
from configs import ROOT

LAYERS: list[set[str]] = [
    {"grpo.types", "grpo.faults"},
    {"grpo.interfaces", "grpo.strict"},
    {"grpo.cluster_schema"},
    {"grpo.schema", "grpo.config_text"},
    {"grpo.layout"},
    {"grpo.config"},
    {"grpo.*"},
    {"grpo.engines.skyrl"},
    {"grpo.compose", "grpo.plan"},
    {"grpo.engines.*"},
    {"grpo.run", "grpo.cli"},
    {"grpo.cli_view"},
    {"launchers.*"},
    {"train"},
]
"""Lowest first; a module imports from its own layer or a lower one. `grpo.*` are the modules not named elsewhere."""


def layer(module: str) -> int:
    for index, names in enumerate(LAYERS):
        if module in names:
            return index
    package = module.rpartition(".")[0]
    return next(index for index, names in enumerate(LAYERS) if f"{package}.*" in names)


def modules(folder: str) -> list[tuple[str, Path]]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts), path)
        for path in paths
        if path.name != "__init__.py" and not {"plugin", "flash_attn"} & set(path.parts)
    ]


def parsed(path: Path) -> ast.Module:
    """While nothing is collected: a traceback that is logged meanwhile parses code, and breaks this parse (3.11)."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def imported(path: Path) -> set[str]:
    """Modules of this project that the file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            files = {name for name in names if (ROOT / f"{name.replace('.', '/')}.py").exists()}
            found.update(files or {node.module})
    return {
        name for name in found if name.split(".")[0] in ("grpo", "rewards", "envs", "launchers", "train", "scripts")
    }


@pytest.mark.parametrize(("module", "path"), modules("grpo"), ids=lambda value: value if isinstance(value, str) else "")
def test_the_core_imports_no_component_and_nothing_above_itself(module: str, path: Path) -> None:
    above = {name for name in imported(path) if not name.startswith("grpo.") or layer(name) > layer(module)}
    assert not above


@pytest.mark.parametrize("folder", ["rewards", "envs"])
def test_components_import_only_types_and_interfaces(folder: str) -> None:
    for module, path in modules(folder):
        foreign = {name for name in imported(path) if not name.startswith(f"{folder}.")}
        assert foreign <= {"grpo.types", "grpo.interfaces"}, module


def test_launchers_import_no_engine_and_no_component() -> None:
    for module, path in modules("launchers"):
        heavy = {
            name for name in imported(path) if name.startswith(("grpo.engines", "grpo.run", "rewards", "envs", "train"))
        }
        assert not heavy, module


@pytest.mark.parametrize("module", ["grpo.config", "grpo.cli", "launchers.sweep", "launchers.clusters", "train"])
def test_checking_a_config_loads_nothing_heavy(module: str) -> None:
    heavy = ("torch", "ray", "wandb", "transformers", "peft", "optuna")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
