"""A real Slurm of two nodes with accounting, all of it in one folder and on loopback; needs root and Debian's packages.

Both nodes are this machine, each with a slurmd, a port and a spool folder of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_head import free_port

PACKAGES = "slurm-wlm munge slurmdbd mariadb-server"
NODES = ("n1", "n2")
SIZE = "CPUs=2 RealMemory=4000 Gres=gpu:1 State=UNKNOWN"
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged", "sbatch")


@dataclass(frozen=True, kw_only=True)
class SlurmNode:
    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def clear(self) -> None:
        """Cancel all jobs, and wait until they are gone: a test that failed leaves its own to the next one."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        subprocess.run(["scancel", "--user=root"], env=environment, check=True)
        _await(lambda: not _run(["squeue", "-h"], environment), "an empty queue")


@contextlib.contextmanager
def running() -> Iterator[SlurmNode]:
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        raise RuntimeError(f"{', '.join(missing)} not found; as root: apt-get install -y {PACKAGES}")
    # A short path: unix sockets live in it.
    folder = Path("/tmp") / f"slurm-{secrets.token_hex(4)}"
    folder.mkdir()
    started: list[subprocess.Popen[bytes]] = []
    try:
        _start_all(folder, started)
        yield SlurmNode(folder=folder)
    finally:
        for process in reversed(started):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
        _kill_steps(folder)
        shutil.rmtree(folder, ignore_errors=True)


def start_again(job: str) -> None:
    """Let a requeued job start soon: Slurm holds it back for two minutes.

    Some seconds it must be, for slurmd refuses a start in the very second in which it ended the last one.
    """
    shown = dict(os.environ)
    _await(lambda: b"PENDING" in _run(["squeue", "-h", "-o", "%T"], shown), "the job's wait", 180)
    _await(lambda: _run(["sinfo", "-h", "-o", "%t"], shown).split() == [b"idle"], "the nodes' end", 180)
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3"], check=True)


def _start_all(folder: Path, started: list[subprocess.Popen[bytes]]) -> None:
    def start(name: str, *words: str, user: str | None = None) -> None:
        with (folder / f"{name}.out").open("wb") as out:
            environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
            started.append(
                subprocess.Popen(
                    [name, *words], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, user=user
                )
            )

    host = socket.gethostname().split(".")[0]
    database, accounting, control, *daemons = (free_port() for _ in range(3 + len(NODES)))
    munge = _munge(folder)
    start("munged", "-F", f"--socket={munge}", f"--key-file={folder}/munge/key", *_munge_files(folder), user="munge")
    _await(munge.exists, "munge")
    _database(folder, database, start)
    _write(folder / "slurmdbd.conf", _slurmdbd(folder, database, accounting, munge), mode=0o600)
    start("slurmdbd", "-D")
    _await(lambda: _answers(accounting), "slurmdbd")
    # A GPU in Slurm's books alone: no device stands behind it.
    _write(folder / "gres.conf", [f"NodeName={node} Name=gpu File=/dev/null" for node in NODES])
    _write(folder / "slurm.conf", _slurm(folder, host, accounting, control, daemons, munge))
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    subprocess.run(["sacctmgr", "-i", "add", "cluster", "tests"], env=environment, check=True, capture_output=True)
    start("slurmctld", "-D", "-i")
    _await(lambda: _answers(control), "slurmctld")
    for node in NODES:
        start("slurmd", "-D", "-N", node)
    _await(lambda: _run(["sinfo", "-h", "-o", "%t %D"], environment).split() == [b"idle", b"2"], "the nodes")


def _munge(folder: Path) -> Path:
    place = folder / "munge"
    place.mkdir(mode=0o711)
    (place / "key").write_bytes(secrets.token_bytes(128))
    (place / "key").chmod(0o400)
    for path in (place, place / "key"):
        shutil.chown(path, "munge", "munge")
    return place / "socket"


def _munge_files(folder: Path) -> list[str]:
    place = folder / "munge"
    return [f"--log-file={place}/log", f"--pid-file={place}/pid", f"--seed-file={place}/seed", "--force"]


def _database(folder: Path, port: int, start: object) -> None:
    data = folder / "mysql"
    subprocess.run(
        ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal"],
        check=True,
        capture_output=True,
    )
    place = [f"--datadir={data}", f"--socket={folder}/mysql.sock", f"--pid-file={folder}/mysql.pid"]
    words = ["--no-defaults", *place, "--bind-address=127.0.0.1", f"--port={port}", "--user=root"]
    assert callable(start)
    start("mariadbd", *words, "--innodb-buffer-pool-size=64M")
    _await(lambda: _answers(port), "mariadbd")
    make = "CREATE DATABASE slurm_acct_db; CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'tests'; "
    grant = "CREATE USER slurm@localhost IDENTIFIED BY 'tests'; GRANT ALL ON slurm_acct_db.* TO slurm@localhost; "
    statements = f"{make}{grant}GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';"
    subprocess.run(["mariadb", "--no-defaults", f"--socket={folder}/mysql.sock", "-e", statements], check=True)


def _slurmdbd(folder: Path, database: int, port: int, munge: Path) -> Sequence[str]:
    return (
        *("AuthType=auth/munge", f"AuthInfo=socket={munge}", "DbdHost=localhost", "DbdAddr=127.0.0.1"),
        *(f"DbdPort={port}", "SlurmUser=root", f"LogFile={folder}/slurmdbd.log", f"PidFile={folder}/slurmdbd.pid"),
        *("StorageType=accounting_storage/mysql", "StorageHost=127.0.0.1", f"StoragePort={database}"),
        *("StorageUser=slurm", "StoragePass=tests", "StorageLoc=slurm_acct_db"),
    )


def _slurm(
    folder: Path, host: str, accounting: int, control: int, daemons: Sequence[int], munge: Path
) -> Sequence[str]:
    for name in ("state", *(f"spool.{node}" for node in NODES)):
        (folder / name).mkdir()
    with_name = zip(NODES, daemons, strict=True)
    return (
        *("ClusterName=tests", f"SlurmctldHost={host}(127.0.0.1)", "AuthType=auth/munge", f"AuthInfo=socket={munge}"),
        *("SlurmUser=root", "SlurmdUser=root", f"SlurmctldPort={control}"),
        *(f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/spool.%n"),
        *(f"SlurmctldPidFile={folder}/slurmctld.pid", f"SlurmdPidFile={folder}/slurmd.%n.pid"),
        *(f"SlurmctldLogFile={folder}/slurmctld.log", f"SlurmdLogFile={folder}/slurmd.%n.log"),
        *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "MpiDefault=none", "ReturnToService=2"),
        *("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "JobAcctGatherType=jobacct_gather/none"),
        *("SchedulerParameters=sched_interval=1", "AccountingStorageType=accounting_storage/slurmdbd"),
        *("AccountingStorageHost=127.0.0.1", f"AccountingStoragePort={accounting}", f"AccountingStoragePass={munge}"),
        *("KillWait=5", "GresTypes=gpu"),
        *(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {SIZE}" for name, port in with_name),
        f"PartitionName=debug Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP",
    )


def _write(path: Path, lines: Sequence[str], mode: int = 0o644) -> None:
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)


def _await(true: object, what: str, seconds: float = 90) -> None:
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not start in {seconds:g} s")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _run(words: Sequence[str], environment: dict[str, str]) -> bytes:
    return subprocess.run(words, env=environment, capture_output=True).stdout


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _kill_steps(folder: Path) -> None:
    """Job steps outlive slurmd; those of this node name its folder."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if str(folder).encode() in Path(f"/proc/{pid}/environ").read_bytes() and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
