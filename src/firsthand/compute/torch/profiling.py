"""One step under torch.profiler: every call that torch made, and the trace of them in time.

Owns: how torch's profiler is started, and what is kept of it.
May not know: what ran.
Read next: `executor.py`, which runs the step; `measure/profile.py`, which shows it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from firsthand.compute.executor import CallTime, ProfiledStep


def profile_step(run: Callable[[], object], device: torch.device) -> ProfiledStep:
    """Run once inside torch.profiler, shapes, memory and operations counted.

    Of ranges that were drawn around operators the trace has each; the calls have none.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(
        activities=activities, record_shapes=True, profile_memory=True, with_flops=True
    ) as profiler:
        run()
    calls = [
        CallTime(
            name=str(one.key),
            count=int(one.count),
            self_ms=one.self_cpu_time_total / 1e3,
            total_ms=one.cpu_time_total / 1e3,
            device_ms=one.self_device_time_total / 1e3,
            allocated_bytes=int(one.self_cpu_memory_usage + one.self_device_memory_usage),
            num_flops=int(one.flops or 0),
        )
        for one in profiler.key_averages()
        if not one.is_user_annotation
    ]
    return ProfiledStep(
        calls=tuple(sorted(calls, key=lambda call: -max(call.self_ms, call.device_ms))),
        trace=_chrome_trace(profiler),
    )


def start_profiler_here() -> None:
    """Torch complains when its profiler starts for the first time on another thread than the one
    that imported it; steps run on the engine's."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]):
        pass


def _chrome_trace(profiler: Any) -> dict[str, Any]:
    """Torch writes it to a file only."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return dict(json.loads(path.read_text(encoding="utf-8", errors="replace")))
