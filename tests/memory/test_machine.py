"""What is free, from trees of files as systems write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.memory.machine import free_bytes

MEMINFO = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    8000000 kB\n"
FREE = 8000000 * 1024


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def group_v2(limit: object, current: int, inactive: int = 0) -> dict[str, str]:
    stat = f"anon 5\ninactive_file {inactive}\nactive_file 7\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{current}\n", "memory.stat": stat}


def under(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


def test_a_machine_without_groups(tmp_path: Path) -> None:
    assert free_bytes(tree(tmp_path, {"proc/meminfo": MEMINFO})) == FREE


def test_version_2_takes_the_least_of_every_group_above(tmp_path: Path) -> None:
    mount = "sys/fs/cgroup"
    root = tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/pod/box\n"}
        | under(f"{mount}/pod/box", group_v2("max", 10**9))
        | under(f"{mount}/pod", group_v2(3 * 10**9, 10**9, inactive=10**8)),
    )
    assert free_bytes(root) == 2 * 10**9 + 10**8


def test_version_2_where_high_is_below_max(tmp_path: Path) -> None:
    files = group_v2(3 * 10**9, 10**9) | {"memory.high": "2000000000\n"}
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n"} | under("sys/fs/cgroup", files))
    assert free_bytes(root) == 10**9


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    group = {
        "memory.limit_in_bytes": "4000000000\n",
        "memory.usage_in_bytes": "1000000000\n",
        "memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
    }
    lines = "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/x\n"
    root = tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": lines}
        | under("sys/fs/cgroup/memory/docker/abc", group),
    )
    assert free_bytes(root) == 3 * 10**9 + 500


def test_version_1_writes_a_huge_number_for_no_limit(tmp_path: Path) -> None:
    group = {"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "5\n"}
    root = tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "4:memory:/\n"}
        | under("sys/fs/cgroup/memory", group),
    )
    assert free_bytes(root) == FREE


def test_a_group_whose_folder_a_container_does_not_see(tmp_path: Path) -> None:
    """The path is the host's; what counts lies at the mount."""
    root = tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/../../kubepods/pod7\n"}
        | under("sys/fs/cgroup", group_v2(10**9, 10**9 + 5)),
    )
    assert free_bytes(root) == 0  # over its limit, never below nothing


@pytest.mark.parametrize("text", ["", "garbage", "0::", ":::::", "4:memory", "0::/\x00"])
def test_files_that_say_nothing_change_nothing(tmp_path: Path, text: str) -> None:
    root = tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": text}
        | under("sys/fs/cgroup", group_v2("12.5", 10**9)),
    )
    assert free_bytes(root) == FREE


def test_this_machine_has_something_free() -> None:
    free = free_bytes()
    assert free is not None
    assert free > 2**20
