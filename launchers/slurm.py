"""Slurm through submitit: one job a trial, on file systems that this machine shares with the nodes.

submitit submits and requeues. How a trial ended is read from its own files and from Slurm, never from submitit's
pickled result: without accounting, submitit waits for ever for the result of a job that died.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from grpo.cluster_schema import SlurmCluster
from grpo.config import ConfigError, Fault
from launchers import package, slurm_commands
from launchers.cluster import Attempt, Cluster, Refused, Status, Unreachable
from launchers.outcome import tail
from launchers.record import PACKAGE
from launchers.slurm_ray import TOKEN

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED", "CONFIGURING"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
EXHAUSTED = "timed-out too many times"
"""submitit's words."""
SETTLE_SECONDS = 20.0
"""For the files of a job that ended to become visible here."""


class SlurmJobs(Cluster):
    def __init__(self, settings: SlurmCluster, *, say: Callable[[str], None], root: Path) -> None:
        self._settings, self._say, self._root = settings, say, root
        self._code: Path | None = None
        self._over: dict[str, float] = {}

    def check(self, attempts: Sequence[Attempt]) -> None:
        if shutil.which("sbatch") is None:
            problem = "sbatch is not found; cluster=slurm submits from a login node of the cluster"
            raise ConfigError([Fault(key="cluster.name", problem=problem)])
        if not attempts:
            return
        try:
            slurm_commands.check(self._settings)
        except (Refused, Unreachable) as error:
            raise ConfigError([Fault(key="cluster.name", problem=f"Slurm does not answer: {error}")]) from error
        self._code = self._snapshot(attempts)
        self._say(f"code and configs of the jobs: {self._code}")

    def submit(self, attempt: Attempt) -> None:
        import submitit
        from submitit.core.utils import FailedJobError

        from launchers.slurm_job import SlurmTrial, Work

        if self._job(attempt) is not None:
            return
        if self._code is None:
            self._code = self._snapshot([attempt])
        config = self._code / package.config_name(attempt)
        trial = ["--config", str(config), "--folder", str(attempt.here.resolve())]
        work = Work(
            words=[sys.executable, "-m", "launchers.trial", *trial],
            folder=str(self._code),
            log=str(attempt.log.resolve()),
            code_file=str(_code_file(attempt).resolve()),
            nodes=self._settings.nodes,
            cpus=self._settings.cpus_per_task,
            memory_gib=self._settings.memory_gib,
            meeting=str(_meeting(attempt).resolve()),
        )
        executor = submitit.AutoExecutor(
            attempt.sweep / "slurm", cluster="slurm", slurm_max_num_timeout=self._settings.requeues
        )
        executor.update_parameters(**self._parameters(attempt))
        try:
            with _outside_of_any_job():
                made = executor.submit(SlurmTrial(work))
        except (subprocess.CalledProcessError, FailedJobError) as error:
            told = " ".join(str(error).split())[-500:]
            if slurm_commands.AWAY.search(told):  # the job may be there all the same: the next try finds it by its name
                raise Unreachable(told) from error
            raise Refused(f"sbatch refused the job: {told}") from error
        _id_file(attempt).write_text(made.job_id, encoding="utf-8")

    def status(self, attempt: Attempt) -> Status:
        if _code_file(attempt).exists():
            return Status(phase="ended", code=int(_code_file(attempt).read_text()), note="")
        job = self._job(attempt)
        if job is None:
            return Status(phase="lost", code=None, note="Slurm has no such job")
        shown = slurm_commands.shown(job)
        state, reason = shown.get("JobState") or slurm_commands.accounted(job), shown.get("Reason", "None")
        if state in WAITING | RUNNING:
            self._over.pop(attempt.id, None)
        if state in WAITING:
            restarts = int(shown.get("Restarts", 0))
            times = f"requeued {restarts} time(s): " if restarts else ""
            return Status(phase="pending", code=None, note=f"{times}{reason if reason != 'None' else state}")
        if state in RUNNING:
            return Status(phase="running", code=None, note="")
        if state.startswith("CANCELLED"):
            return Status(phase="ended", code=None, note=f"Slurm job {job}: cancelled by someone")
        # The exit code's file may still be on its way through the shared file system.
        seen = self._over.setdefault(attempt.id, time.monotonic())
        if time.monotonic() - seen < (SETTLE_SECONDS if state == "COMPLETED" else 5.0):
            return Status(phase="running", code=None, note="")
        code, signal = (int(part) for part in shown.get("ExitCode", "0:0").split(":"))
        said = _first_error(attempt, job)
        if EXHAUSTED in said:
            allowed = f"cluster.time_minutes={self._settings.time_minutes}, cluster.requeues={self._settings.requeues}"
            said = f"its time was up more often than it may be requeued ({allowed})"
        note = f"Slurm job {job}: {state or 'unknown'} {reason}{f'; {said}' if said else ''}"
        return Status(phase="ended", code=-signal if signal else code or None, note=note)

    def stop(self, attempt: Attempt) -> None:
        job = self._job(attempt)
        if job is not None:
            with contextlib.suppress(Refused):  # it has ended by itself
                slurm_commands.run("scancel", job)

    def collect(self, attempt: Attempt) -> None:
        self._over.pop(attempt.id, None)
        # A job that was killed could not remove its own.
        for token in attempt.here.glob(f"{_meeting(attempt).name}_*/{TOKEN}"):
            token.unlink(missing_ok=True)

    def preview(self, attempts: Sequence[Attempt]) -> str:
        asked = {name: value for name, value in self._parameters(attempts[0]).items() if name != "name"}
        lines = [
            f"each job runs {sys.executable}, and asks for, in submitit's words:",
            *(f"  {name}: {value}" for name, value in asked.items()),
        ]
        if self._settings.nodes > 1:
            lines += [
                f"Ray over each job's {self._settings.nodes} nodes, as long as its trial runs: the first has the head "
                "(token needed, no dashboard), the others join it",
            ]
        return "\n".join([*lines, "jobs:", *(f"  {attempt.id}" for attempt in attempts)])

    def _job(self, attempt: Attempt) -> str | None:
        """The attempt's job id: from its file, or by its name if the launcher died before it wrote that."""
        if _id_file(attempt).exists():
            return _id_file(attempt).read_text(encoding="utf-8")
        with contextlib.suppress(Refused):
            found = slurm_commands.run("squeue", "--noheader", "--name", attempt.id, "--format", "%A").split()
            return found[0] if found else None
        return None

    def _parameters(self, attempt: Attempt) -> dict[str, object]:
        settings = self._settings
        wanted: dict[str, object] = {
            "name": attempt.id,
            "timeout_min": settings.time_minutes,
            "nodes": settings.nodes,
            "tasks_per_node": 1,
            "cpus_per_task": settings.cpus_per_task,
            "mem_gb": settings.memory_gib,
            "stderr_to_stdout": True,
            "slurm_partition": settings.partition,
            "slurm_signal_delay_s": settings.signal_seconds,
            "slurm_use_srun": settings.use_srun,
            # Newer versions of srun do not take it from sbatch. And a task that is killed takes the others along.
            "slurm_srun_args": [f"--cpus-per-task={settings.cpus_per_task}", "--kill-on-bad-exit=1"],
            "slurm_setup": [*settings.setup, f"export PYTHONPATH={shlex.quote(str(self._code or self._root))}"],
            "slurm_additional_parameters": {"requeue": True, "open_mode": "append"},
        }
        if settings.gpus_per_node:
            wanted["gpus_per_node"] = settings.gpus_per_node
        if settings.account is not None:
            wanted["slurm_account"] = settings.account
        return wanted

    def _snapshot(self, attempts: Sequence[Attempt]) -> Path:
        """The code as it is now with the trials' configs: a job may wait for days while the checkout changes."""
        sweep = attempts[0].sweep.resolve()
        built = package.build(attempts, sweep / PACKAGE, limit_mib=1024, root=self._root)
        mark = hashlib.sha256(built.path.read_bytes()).hexdigest()[:8]
        target = sweep / f"code_{mark}"
        if not target.exists():
            aside = target.with_suffix(".part")
            shutil.rmtree(aside, ignore_errors=True)
            with zipfile.ZipFile(built.path) as archive:
                archive.extractall(aside)
            aside.rename(target)
        return target


def _id_file(attempt: Attempt) -> Path:
    return attempt.here / f"output_{attempt.number}.slurm_job"


def _meeting(attempt: Attempt) -> Path:
    return attempt.here / f"output_{attempt.number}.ray"


def _code_file(attempt: Attempt) -> Path:
    return attempt.here / f"output_{attempt.number}.exit_code"


def _first_error(attempt: Attempt, job: str) -> str:
    """What srun, Slurm or submitit say went wrong in the job's last start, in their own output."""
    output = tail(attempt.sweep / "slurm" / f"{job}_0_log.out").rpartition("Starting with")[2]
    errors = [line.strip() for line in output.splitlines() if re.search(r"error: |Error: |not requeued", line)]
    return errors[0][:300] if errors else ""


@contextlib.contextmanager
def _outside_of_any_job() -> Iterator[None]:
    """A launcher that runs inside a job must not hand that job's settings to those that it submits."""
    inside = {name: os.environ.pop(name) for name in list(os.environ) if _of_a_job(name)}
    try:
        yield
    finally:
        os.environ.update(inside)


def _of_a_job(name: str) -> bool:
    return name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF"
