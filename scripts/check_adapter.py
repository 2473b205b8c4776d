"""Say whether an adapter belongs to its base, lands on it, changes it, and can be served.

    python scripts/check_adapter.py RUN_FOLDER                  # or its adapter/, or a checkpoint's adapter/
    python scripts/check_adapter.py ADAPTER --base MODEL        # on this base instead of the recorded one
    python scripts/check_adapter.py ADAPTER --merge OUT         # also write base and adapter as one model

Works on adapters from elsewhere too; without a pair.json, what can be checked is checked. --merge is for servers
without dynamic LoRA: whatever only such a server minds does not count then.
Exit codes: 0 all is well; 1 it does not belong, land or serve, or the merge failed; 2 no such adapter.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table

from grpo import base, pair
from grpo.faults import ConfigError
from grpo.hashing import hash_file
from grpo.schema import ModelConfig

if TYPE_CHECKING:
    from grpo.adapter_files import Check

CONFIG_FILE = "adapter_config.json"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path, metavar="ADAPTER")
    parser.add_argument("--base", help="hub id or folder (default: the one on record)")
    parser.add_argument("--merge", type=Path, metavar="OUT", help="write the merged model into this new folder")
    parser.add_argument("--tower-lora", action="store_true", help="the server adapts the vision tower too")
    options = parser.parse_args(arguments)
    folder = adapter_folder(options.adapter)
    if folder is None:
        return _refuse(f"{options.adapter} is no adapter: wanted a run folder, or a folder with {CONFIG_FILE}")
    if options.merge is not None and options.merge.exists():
        return _refuse(f"--merge {options.merge} exists already; give a new folder")
    try:
        record = pair.read(folder)
        settings = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise ValueError(f"{CONFIG_FILE} holds no settings")
        model = _model(options.base, record, settings)
    except (ValueError, TypeError, KeyError) as error:
        return _refuse(f"{folder} cannot be read: {error}")
    return _check(folder, record, settings, model, options)


def adapter_folder(given: Path) -> Path | None:
    """The adapter of a run folder, or the folder itself; None if there is none."""
    return next((path for path in (given, given / "adapter") if (path / CONFIG_FILE).is_file()), None)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return 2


def _model(given: str | None, record: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> ModelConfig:
    """The base to check against. Raises ValueError where neither the command nor the files name one."""
    recorded = record["base"] if record else {}
    name = given or recorded.get("id") or settings.get("base_model_name_or_path")
    if not name:
        raise ValueError("it names no base; give --base")
    dtype = record["config"]["model"]["dtype"] if record and "config" in record else "float32"
    return ModelConfig(
        name_or_path=name,
        revision=recorded.get("revision") if name == recorded.get("id") else None,
        trust_remote_code=False,
        gradient_checkpointing=False,
        dtype=dtype,
    )


def _check(
    folder: Path,
    record: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    model: ModelConfig,
    options: argparse.Namespace,
) -> int:
    console = Console()
    console.print(f"adapter: {folder}\nbase: {model.name_or_path}", soft_wrap=True, highlight=False)
    checks = list(_all_checks(folder, record, settings, model, tower_lora=options.tower_lora))
    table = Table(Column("check", no_wrap=True), Column("verdict", no_wrap=True), Column("found", overflow="fold"))
    for each in checks:
        table.add_row(each.name, each.verdict, each.detail)
    console.print(table)
    failed = [each for each in checks if each.verdict == "fails" and not (each.serving and options.merge)]
    if failed:
        names = ", ".join(each.name for each in failed)
        console.print(f"verdict: NOT fit for use: {names}", soft_wrap=True, highlight=False)
        return 1
    unknown = "" if record else " (as far as can be told without pair.json)"
    console.print(f"verdict: fits its base{unknown}", soft_wrap=True, highlight=False)
    return _merge(console, folder, model, options.merge) if options.merge else 0


def _all_checks(
    folder: Path,
    record: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    model: ModelConfig,
    *,
    tower_lora: bool,
) -> Iterator[Check]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from grpo.adapter_files import check, file_checks

    try:
        tensors = load_file(folder / pair.WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        yield check("tensors", [f"{pair.WEIGHTS_FILE} cannot be read: {error}"], "")
        return
    found = list(file_checks(settings, tensors, tower_lora=tower_lora))
    paired = list(_pair_checks(folder, record, model))
    yield from paired
    yield from found
    # On another base, or with broken tensors, loading would only repeat it.
    if not any(each.verdict == "fails" and not each.serving for each in (*paired, *found)):
        yield from _model_checks(folder, model)


def _pair_checks(folder: Path, record: Mapping[str, Any] | None, model: ModelConfig) -> Iterator[Check]:
    from grpo.adapter_files import Check, check

    if record is None:
        detail = f"no {pair.PAIR_FILE}: nothing says which base, tokenizer and template it was trained with"
        yield Check(name="pair", verdict="unknown", detail=detail)
        return
    recorded, now = record.get("adapter_hash"), hash_file(folder / pair.WEIGHTS_FILE)
    changed = [] if recorded == now else [f"{pair.WEIGHTS_FILE} was {recorded} when it was saved, now {now}"]
    yield check("file", changed, f"step {record.get('step')}, as it was saved")
    faults = [
        f"the {each.part} was {each.recorded} in training, this base has {each.now}"
        for each in pair.mismatches(record["base"], base.describe(model))
    ]
    yield check("pair", faults, f"{', '.join(pair.PARTS.values())} are those of training")


def _model_checks(folder: Path, model: ModelConfig) -> Iterator[Check]:
    from grpo.adapter_files import check
    from grpo.adapter_probe import adapted_policy, probe

    try:
        policy = adapted_policy(model, folder)
    except ConfigError as error:
        yield check("lands", [str(fault) for fault in error.faults], "")
        return
    except (OSError, ValueError) as error:
        yield check("lands", [f"the base {model.name_or_path} cannot be loaded: {error}"], "")
        return
    yield check("lands", [], "every tensor has its place in the base")
    answer = probe(policy)
    told = (
        f"logits differ by up to {answer.max_difference:.3g}; "
        f"base says {answer.base_reply!r}, adapter {answer.adapter_reply!r}"
    )
    same = ["base and adapter answer the same"] if answer.max_difference == 0 else []
    yield check("answers", same, told)


def _merge(console: Console, folder: Path, model: ModelConfig, out: Path) -> int:
    from grpo.adapter_probe import MergeError, merge

    try:
        record = merge(model, folder, out)
    except MergeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    console.print(
        f"merged: {out} ({record['dtype']}); merged and unmerged logits differ by up to "
        f"{record['max_logit_difference']:.3g} (tolerance {record['tolerance']:.3g})",
        soft_wrap=True,
        highlight=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
