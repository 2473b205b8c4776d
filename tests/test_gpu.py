"""The GPU's figures of a step, with torch's two readings replaced: there is no GPU where these tests run."""

from __future__ import annotations

import pynvml
import pytest
import torch

from grpo import gpu

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**29)
    clock = iter([100.0, 101.0, 104.0])
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: next(clock))


def test_each_part_of_a_step_counts_by_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([20, 80])
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: next(readings))
    gauge = gpu.Gauge(CUDA)
    gauge.read()
    gauge.read()
    # One second at 20 % and three at 80 %.
    assert gauge.metrics() == {"perf/gpu_memory_gib": 1.5, "perf/gpu_utilization": 65.0}


@pytest.mark.parametrize("error", [pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), RuntimeError("no driver")])
def test_where_the_driver_tells_nothing_only_the_memory_is_reported(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(device: torch.device) -> int:
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    gauge = gpu.Gauge(CUDA)
    gauge.read()
    assert gauge.metrics() == {"perf/gpu_memory_gib": 1.5}


def test_on_a_cpu_nothing_is_reported() -> None:
    gauge = gpu.Gauge(torch.device("cpu"))
    gauge.read()
    assert gauge.metrics() == {}
