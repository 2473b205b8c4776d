"""What train.py prints without running anything: its help, and the plan of a dry run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from grpo import config, plan
from grpo.cli import Command, env_key
from grpo.compose import GROUPS
from grpo.engines import skyrl
from grpo.plan import Ceiling
from grpo.schema import RunConfig, SkyrlEngine
from grpo.types import Split

USAGE = """\
Post-train a vision-language model with GRPO and LoRA on multi-turn visual tasks.

  python train.py [group=option] [key=value] ...                one run
  python train.py -m algorithm.group_size=4,8 adapter.rank=8,32  a sweep: every combination
  python train.py ... dry_run=true                              show config, plan and ceiling; run nothing
  python train.py --cfg job                                     show the composed config
  python train.py --config-path RUN_FOLDER --config-name config  run a saved config again
  python train.py ... resume=RUN_FOLDER                         continue a run in place
  python train.py -m ... hydra.sweep.dir=SWEEP_FOLDER           run what a sweep still lacks
  python train.py cluster=ray cluster.address=ADDRESS ...       send it to a cluster; -m sends a sweep
  python scripts/sweep.py attach|status|stop|retry SWEEP_FOLDER  look after what was sent

Examples
  python train.py reward=maze_shaped adapter.rank=32
  python train.py env=maze_2d_easy env.max_turns=30 runtime.steps=100
  python train.py 'adapter.target_modules=".*language.*(q|v)_proj"'   signs like ( | need quotes inside quotes
  python train.py -m algorithm.kl_coefficient=0,0.02 hydra.launcher.on_error=stop
  python train.py -m hydra/sweeper=optuna hydra.sweeper.direction=maximize hydra.sweeper.n_jobs=1 \\
      'algorithm.learning_rate=tag(log,interval(1e-4,1e-2))'

Exit codes: 0 done; 1 the run or a trial failed; 2 the config or the command is wrong, and nothing was started.
Hydra's own flags: --hydra-help.

Groups and their options (* is the default); `python train.py --cfg job` shows every key
"""


def help_text(conf: Path) -> str:
    """The usage, with the options found in `conf` and the first comment of each."""
    chosen = _defaults(conf)
    lines = [USAGE]
    for group in GROUPS:
        for path in sorted((conf / group).glob("*.yaml")):
            mark = "*" if chosen.get(group) == path.stem else " "
            lines.append(f" {mark} {f'{group}={path.stem}':32} {_first_comment(path)}")
    return "\n".join(lines) + "\n"


def _defaults(conf: Path) -> dict[str, str]:
    entries = OmegaConf.load(conf / "config.yaml").defaults
    return {str(key): str(option) for entry in entries if not isinstance(entry, str) for key, option in entry.items()}


def _first_comment(path: Path) -> str:
    comments = (line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    return next((comment for comment in comments if not comment.startswith("@package")), "")


def show_plan(command: Command, reached: Mapping[str, Mapping[Split, Ceiling | None]], console: Console) -> None:
    """The whole dry run: the first trial in full, and for a sweep what tells the others from it."""
    run = command.trials[0].run
    console.print(Syntax(config.to_yaml(run).rstrip(), "yaml", background_color="default"))
    console.print(_numbers(command))
    for split, found in reached[env_key(run)].items():
        told = (
            "not known"
            if found is None
            else f"{found.share:.1%} of {found.tasks} tasks within {run.env.max_turns} turns"
        )
        detail = "" if found is None else f" (they need {found.fewest_turns} to {found.most_turns})"
        console.print(f"ceiling, {split}: {told}{detail}")
    show_warnings(command, reached, console)
    if isinstance(run.engine, SkyrlEngine) and not skyrl.faults(run):
        _show_skyrl(run, console)
    if command.sweep:
        console.print(_trials(command))
    blockers = _unique(str(fault) for trial in command.trials for fault in plan.blockers(trial.run))
    if blockers:
        console.print("would be refused: " + "; ".join(blockers), markup=False, highlight=False, soft_wrap=True)
        return
    order = ", one after the other" if run.cluster.name == "local" else ""
    what = f"a sweep of {len(command.trials)} trials{order}" if len(command.trials) > 1 else "one run"
    console.print(f"would run: {what}, engine={run.engine.name}, cluster={run.cluster.name}", highlight=False)
    console.print(f"folder: {command.folder}", highlight=False, soft_wrap=True)


def _show_skyrl(run: RunConfig, console: Console) -> None:
    """What SkyRL is given; where it is installed, also what it makes of it. Raises ConfigError if it refuses it."""
    lines = ["SkyRL's settings:", *(f"  {word}" for word in skyrl.words(skyrl.overrides(run)))]
    if skyrl.not_installed():
        lines.append("vLLM's arguments: not known, and nothing checked by SkyRL itself, which is not installed here")
    else:
        from grpo.engines import skyrl_settings  # 15 s of imports

        lines += ["vLLM's arguments, checked by SkyRL and vLLM:", *(f"  {line}" for line in skyrl_settings.show(run))]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def show_warnings(command: Command, reached: Mapping[str, Mapping[Split, Ceiling | None]], console: Console) -> None:
    """One line a warning; what several trials share is said once."""
    for text in _unique(
        text for trial in command.trials for text in plan.warnings(trial.run, reached[env_key(trial.run)])
    ):
        console.print(f"warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _numbers(command: Command) -> Table:
    run = command.trials[0].run
    numbers = plan.derive(run)
    size = run.runtime.per_device_batch_size
    table = Table("derived", "value", "from", title="Plan" + (" of the first trial" if command.sweep else ""))
    rows = (
        ("steps", run.runtime.steps, "runtime.steps"),
        ("rows a step", numbers.rows_per_step, "prompts_per_step x group_size"),
        ("updates a step", run.algorithm.updates_per_step, f"of {numbers.rows_per_update} rows each"),
        (
            "gradient accumulation",
            numbers.accumulation,
            f"{numbers.rows_per_update} / ({numbers.devices} device(s) x {size})",
        ),
        ("updates in all", numbers.updates, "without groups that carry no signal"),
        ("rollouts in all", numbers.rollouts, "without evaluation"),
        ("replies at most", numbers.replies_at_most, f"{run.env.max_turns} turns each"),
        ("sampled tokens at most", numbers.tokens_at_most, f"{run.algorithm.max_completion_tokens} a reply"),
    )
    for name, value, origin in rows:
        table.add_row(name, f"{value:,}", origin)
    return table


def _trials(command: Command) -> Table:
    table = Table("trial", "overrides", "rows a step", "accumulation", title=f"{len(command.trials)} trials")
    for number, trial in enumerate(command.trials):
        numbers = plan.derive(trial.run)
        table.add_row(str(number), " ".join(trial.swept), str(numbers.rows_per_step), str(numbers.accumulation))
    return table
