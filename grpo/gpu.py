"""How much of a GPU a step used: memory, and the share of time in which kernels ran. Nothing on other devices.

NVML tells of the last second or less, so it is asked at the end of each part of a step, and its answer stands for that
part. MIG slices have no such figure; it is then left out.
"""

from __future__ import annotations

import time

import pynvml
import torch


class Gauge:
    """Of the time since it was made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since = time.perf_counter()
        self._parts: list[tuple[float, float]] = []
        """Seconds, and percent of them."""

    def read(self) -> None:
        """Call at the end of a part of the work."""
        if self._device.type != "cuda":
            return
        torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        try:
            self._parts.append((now - self._since, float(torch.cuda.utilization(self._device))))
        except (pynvml.NVMLError, RuntimeError):
            return
        finally:
            self._since = now

    def metrics(self) -> dict[str, float]:
        if self._device.type != "cuda":
            return {}
        memory = {"perf/gpu_memory_gib": torch.cuda.max_memory_allocated(self._device) / 2**30}
        seconds = sum(part for part, _ in self._parts)
        if seconds == 0:
            return memory
        return memory | {"perf/gpu_utilization": sum(part * percent for part, percent in self._parts) / seconds}
