"""SkyRL's own config objects from our overrides, checked by SkyRL's own code; needs SkyRL and vLLM, and no GPU."""
# pyright: reportMissingImports=false

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from grpo.config import RunConfig
from grpo.engines import skyrl, skyrl_environment
from grpo.faults import ConfigError, Fault


def settings(values: Mapping[str, Any]) -> Any:
    """SkyRL's config. Raises ConfigError with SkyRL's reason if it refuses it."""
    skyrl_environment.prepare()
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    try:
        config = SkyRLTrainConfig.from_cli_overrides(skyrl.words(values))
        validate_cfg(config)
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise ConfigError([Fault(key="engine", problem=f"SkyRL refuses these settings: {error}")]) from error
    return config


def vllm_arguments(config: Any) -> dict[str, Any]:
    """What vLLM's server would be started with, where it is not vLLM's default."""
    from skyrl.backends.skyrl_train.inference_servers.utils import build_vllm_cli_args

    chosen = vars(build_vllm_cli_args(config))
    return {name: value for name, value in sorted(chosen.items()) if _defaults().get(name) != value}


def _defaults() -> dict[str, Any]:
    from vllm import AsyncEngineArgs
    from vllm.entrypoints.openai.cli_args import FrontendArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FrontendArgs.add_cli_args(FlexibleArgumentParser()))
    plain: Namespace = parser.parse_args(args=[])
    return vars(plain)


def show(run: RunConfig) -> list[str]:
    """vLLM's arguments, as lines for the dry run. Raises ConfigError if SkyRL refuses the settings."""
    return [f"{name}={value}" for name, value in vllm_arguments(settings(skyrl.overrides(run))).items()]
