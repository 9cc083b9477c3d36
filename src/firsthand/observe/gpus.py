"""What the driver says of each GPU, as metrics: read when somebody asks.

Owns: how NVML is asked. May not know: what computes there.
Read next: `metrics.py`.

Figures of the whole device, whoever uses it. Without the library (the extra `gpu`), a driver or a
device there are none, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client import Metric

from firsthand.observe.instruments import read
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One device now. `busy` is the share of time in which it computed; `watts` None: it does not
    say what it draws."""

    gpu: int
    busy: float
    used_bytes: int
    num_bytes: int
    watts: float | None


class Gpus:
    """Asked at each scrape. `library` is NVML's module, begun; see `find_gpus`."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    def names(self) -> Iterator[str]:
        """Each with its memory."""
        nvml = self._nvml
        for number in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(number)
            whole = nvml.nvmlDeviceGetMemoryInfo(device).total
            yield f"{nvml.nvmlDeviceGetName(device)}, {whole / 2**30:.0f} GiB"

    def readings(self) -> Iterator[GpuReading]:
        nvml = self._nvml
        for number in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(number)
            try:
                memory = nvml.nvmlDeviceGetMemoryInfo(device)
                busy = nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
            except nvml.NVMLError:  # a device that does not say; the others may
                continue
            try:
                watts = nvml.nvmlDeviceGetPowerUsage(device) / 1e3
            except nvml.NVMLError:
                watts = None
            yield GpuReading(number, busy, memory.used, memory.total, watts)

    def told(self) -> list[dict[str, Any]]:
        """Plain values, for whoever watches."""
        return [asdict(one) for one in self.readings()]

    def collect(self) -> Iterator[Metric]:
        found = [((str(one.gpu),), one) for one in self.readings()]
        yield read("firsthand_gpu_utilization_ratio", [(gpu, one.busy) for gpu, one in found])
        yield read("firsthand_gpu_memory_used_bytes", [(gpu, one.used_bytes) for gpu, one in found])
        yield read("firsthand_gpu_memory_bytes", [(gpu, one.num_bytes) for gpu, one in found])
        drawn = [(gpu, one.watts) for gpu, one in found if one.watts is not None]
        yield read("firsthand_gpu_power_watts", drawn)


def find_gpus() -> Gpus | None:
    """None: there is nothing to ask."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return None
    except Exception as error:  # NVMLError, whose class is known only where the import went well
        if type(error).__module__.startswith("pynvml"):
            return None
        raise
    return Gpus(pynvml)
