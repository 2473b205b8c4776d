"""How busy the GPUs of this node are and how much memory they hold, sampled in the background.

Read from NVIDIA's management library, which sees what every process does: training and vLLM run in others. Only this
node: on a cluster all nodes do the same work in step.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import threading
from types import TracebackType

INTERVAL_SECONDS = 0.5


class GpuUse:
    """Samples within its context."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-use", daemon=True)

    def __enter__(self) -> GpuUse:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def take(self) -> dict[str, float]:
        """Mean utilisation (0..1) and highest memory (GiB, of one GPU) since the last call; empty without a GPU."""
        samples, self._samples = self._samples, []
        if not samples:
            return {}
        return {
            "perf/gpu_utilization": sum(busy for busy, _ in samples) / len(samples),
            "perf/gpu_memory_gib": max(memory for _, memory in samples),
        }

    def _sample(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        while not self._stop.wait(INTERVAL_SECONDS):
            busy = [int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100 for handle in handles]
            memory = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**30 for handle in handles]
            self._samples.append((sum(busy) / len(busy), max(memory)))
        pynvml.nvmlShutdown()
