"""Which metric is drawn where in the report, with which words and units; no drawing here.

A panel without data is left out, and a metric that no panel names still gets one, so the page shows all of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Curve:
    label: str
    metric: str
    band: str | None = None
    """Metric drawn as a band of plus and minus itself around `metric`."""
    dashed: bool = False
    """For a bound rather than a measurement."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    unit: str
    """Of the vertical axis; the horizontal one is the step."""
    curves: tuple[Curve, ...]
    share: bool = False
    """Values lie between 0 and 1: the axis shows just that."""


@dataclass(frozen=True, kw_only=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


def _single(title: str, unit: str, metric: str, *, share: bool = False) -> Panel:
    return Panel(title=title, unit=unit, curves=(Curve(label="value", metric=metric),), share=share)


_SOLVED = Panel(
    title="Solved",
    unit="share of episodes",
    curves=(
        Curve(label="training", metric="rollout/solved"),
        Curve(label="held-out, greedy", metric="eval/all/pass_at_1"),
        Curve(label="held-out, sampled", metric="eval/all/solved_sampled"),
        Curve(label="reachable ceiling", metric="eval/ceiling", dashed=True),
    ),
    share=True,
)
_TOTAL = Panel(
    title="Reward, total",
    unit="reward, mean ± std",
    curves=(
        Curve(label="training", metric="reward/total/mean", band="reward/total/std"),
        Curve(label="held-out", metric="eval/all/reward"),
    ),
)
_POLICY = (
    _single("KL to the start policy", "nats a token", "policy/kl"),
    _single("Entropy", "nats a token", "policy/entropy"),
    _single("Clip fraction", "share of tokens", "policy/clip_fraction"),
    _single("Gradient norm", "before clipping", "policy/grad_norm"),
    _single("Ratio to the sampling policy", "mean over tokens", "policy/ratio_mean"),
    _single("Loss", "surrogate", "policy/loss"),
    _single("Learning rate", "a step", "policy/learning_rate"),
)
_EPISODES = (
    _single("Groups without gradient", "share of groups", "group/zero_gradient", share=True),
    _single("Distinct tasks", "tasks a step", "group/distinct_tasks"),
    _single("Turns", "turns an episode", "rollout/turns"),
    _single("Completion tokens", "tokens an episode", "rollout/completion_tokens"),
    _single("Length of a reply", "tokens", "rollout/reply_tokens"),
    _single("Invalid actions", "replies an episode", "rollout/invalid_actions"),
    _single("Truncated", "share of episodes", "rollout/truncated", share=True),
    _single("Stopped early, unsolved", "share of episodes", "rollout/early_stop", share=True),
    _single("Errors", "share of episodes", "rollout/errors", share=True),
)
_LOOKS = (
    Panel(
        title="The same reply",
        unit="share of replies",
        curves=(
            Curve(label="most frequent", metric="rollout/same_reply"),
            Curve(label="two most frequent", metric="rollout/two_replies"),
        ),
        share=True,
    ),
    _single("Repetition", "share of a reply", "rollout/repeated", share=True),
    _single("Copied from the prompt", "share of a reply", "rollout/copied", share=True),
    _single("Reward of unsolved episodes", "mean total", "reward/total/unsolved"),
)
_PERFORMANCE = (
    Panel(
        title="Time",
        unit="seconds a step",
        curves=(
            Curve(label="whole step", metric="perf/step_seconds"),
            Curve(label="rollouts", metric="perf/rollout_seconds"),
            Curve(label="updates", metric="perf/train_seconds"),
        ),
    ),
    _single("Sampling speed", "tokens a second", "perf/tokens_per_second"),
    _single("GPU memory", "GiB", "perf/gpu_memory_gib"),
    _single("GPU utilization", "percent", "perf/gpu_utilization"),
)


def _term_panel(term: str) -> Panel:
    return Panel(
        title=f"Reward term: {term}",
        unit="value, mean ± std",
        curves=(Curve(label="training", metric=f"reward/{term}/mean", band=f"reward/{term}/std"),),
    )


def _mixture_panels(terms: Sequence[str]) -> tuple[Panel, ...]:
    def each(suffix: str) -> tuple[Curve, ...]:
        return tuple(Curve(label=term.replace("_", " "), metric=f"reward/{term}/{suffix}") for term in terms)

    return (
        Panel(title="Variance shares", unit="part in the total's variance, by term", curves=each("variance_share")),
        Panel(title="Correlation with solved", unit="Pearson's, by term", curves=each("solved_correlation")),
        Panel(title="Abstained", unit="rollouts a step, by term", curves=each("abstained")),
    )


def sections(metrics: Iterable[str]) -> tuple[Section, ...]:
    """The sections of a run that logged these metrics; what has no data is not there. Alarms are no curves."""
    names = {name for name in metrics if not name.startswith("alarm/")}
    terms = sorted(
        {name.split("/")[1] for name in names if name.startswith("reward/") and name.endswith("/mean")} - {"total"}
    )
    known = (
        Section(title="Solved and reward", panels=(_SOLVED, _TOTAL, *map(_term_panel, terms))),
        Section(title="What the reward rewards", panels=_mixture_panels(terms)),
        Section(title="Policy", panels=_POLICY),
        Section(title="Groups and episodes", panels=_EPISODES),
        Section(title="Signs of hacking", panels=_LOOKS),
        Section(title="Performance", panels=_PERFORMANCE),
    )
    drawn = {name for section in known for panel in section.panels for name in _metrics_of(panel)}
    rest = tuple(_single(name, "value", name) for name in sorted(names - drawn))
    present = (_with_data(section, names) for section in (*known, Section(title="Other metrics", panels=rest)))
    return tuple(section for section in present if section.panels)


def _metrics_of(panel: Panel) -> set[str]:
    return {name for curve in panel.curves for name in (curve.metric, curve.band) if name is not None}


def _with_data(section: Section, names: set[str]) -> Section:
    panels = []
    for panel in section.panels:
        curves = tuple(curve for curve in panel.curves if curve.metric in names)
        if curves:
            panels.append(Panel(title=panel.title, unit=panel.unit, curves=curves, share=panel.share))
    return Section(title=section.title, panels=tuple(panels))
