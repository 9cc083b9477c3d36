"""What the driver says of each GPU, as metrics: read when somebody asks.

Owns: how NVML is asked. May not know: what computes there.
Read next: `metrics.py`.

Figures of the whole device, whoever uses it. Without the library (the extra `gpu`), a driver or a
device there are none, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import Metric

from firsthand.observe.instruments import read


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

    def collect(self) -> Iterator[Metric]:
        nvml = self._nvml
        busy, used, whole = [], [], []
        for number in range(nvml.nvmlDeviceGetCount()):
            device, gpu = nvml.nvmlDeviceGetHandleByIndex(number), (str(number),)
            try:
                memory = nvml.nvmlDeviceGetMemoryInfo(device)
                busy.append((gpu, nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100))
            except nvml.NVMLError:  # a device that does not say; the others may
                continue
            used.append((gpu, memory.used))
            whole.append((gpu, memory.total))
        yield read("firsthand_gpu_utilization_ratio", busy)
        yield read("firsthand_gpu_memory_used_bytes", used)
        yield read("firsthand_gpu_memory_bytes", whole)


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
