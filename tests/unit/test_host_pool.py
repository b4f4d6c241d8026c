"""The host pool's memory: sealed, private, taken in slices, given back by the kernel, refused when too large."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tierstore import mapping
from tierstore.benchmark.machine import huge_pages
from tierstore.errors import ClosedError, ConfigError, MemoryLimitError
from tierstore.tiers.host_pool import HostPool
from tierstore.tiers.memory_limit import check_memory, find_limits
from tierstore.types import PAGE_NBYTES

MIB = 1 << 20


def huge_nbytes() -> int:
    """Anonymous memory of this process in huge pages."""
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["AnonHugePages"].split()[0]) * 1024


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def taken_nbytes(pool: HostPool) -> int:
    return os.fstat(pool.fd).st_blocks * 512


def mapped_pools() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:tierstore")


def shared_nbytes() -> int:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Shmem"].split()[0]) * 1024


def test_the_view_is_shared_memory_of_the_size_asked() -> None:
    with closing(HostPool(2 * PAGE_NBYTES)) as pool, mmap.mmap(pool.fd, 2 * PAGE_NBYTES) as other:
        assert pool.nbytes == pool.view.nbytes == 2 * PAGE_NBYTES
        assert not pool.view.any()
        pool.view[PAGE_NBYTES] = 7
        assert other[PAGE_NBYTES] == 7


def test_a_private_pool_has_no_file_and_gives_its_pages_back_at_once() -> None:
    pool = HostPool(2 * MIB, shared=False)
    view = pool.view
    view.fill(7)
    assert not mapped_pools()
    with pytest.raises(AssertionError, match="private"):
        _ = pool.fd
    pool.close()
    assert not view.any()


@pytest.mark.skipif(huge_pages(shared=False) not in {"madvise", "always"}, reason="this kernel gives none")
def test_a_private_pool_lies_in_huge_pages() -> None:
    before = huge_nbytes()
    with closing(HostPool(64 * MIB, shared=False)) as pool:
        pool.populate(0, pool.nbytes)
        assert huge_nbytes() - before >= 32 * MIB


@pytest.mark.parametrize("nbytes", [0, PAGE_NBYTES, 4 * PAGE_NBYTES])
def test_nobody_can_change_the_size(nbytes: int) -> None:
    with closing(HostPool(2 * PAGE_NBYTES)) as pool:
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, nbytes)
        with pytest.raises(PermissionError):
            fcntl.fcntl(pool.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_the_file_is_its_owners_alone_and_named() -> None:
    with closing(HostPool(PAGE_NBYTES)) as pool:
        assert os.fstat(pool.fd).st_mode & 0o777 == 0o600
        assert "memfd:tierstore" in os.readlink(f"/proc/self/fd/{pool.fd}")
        assert not os.get_inheritable(pool.fd)


def test_a_forked_child_does_not_map_it() -> None:
    done = run_python(
        "import os; from tierstore.tiers.host_pool import HostPool\n"
        "pool = HostPool(4096); mapped = lambda: 'memfd:tierstore' in open('/proc/self/maps').read()\n"
        "assert mapped()\n"
        "child = os.fork()\n"
        "if not child: os._exit(mapped())\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("advice", [mapping._MADV_POPULATE_WRITE, 9999], ids=["by the kernel", "by touching"])
def test_populate_takes_a_slice_and_keeps_its_bytes(advice: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "_MADV_POPULATE_WRITE", advice)
    with closing(HostPool(8 * MIB)) as pool:
        assert taken_nbytes(pool) == 0
        pool.view[MIB] = 7
        pool.populate(MIB, 2 * MIB)
        assert 2 * MIB <= taken_nbytes(pool) <= 6 * MIB  # huge pages may reach beyond the slice
        assert pool.view[MIB] == 7
        pool.populate(0, 8 * MIB)
        assert taken_nbytes(pool) == 8 * MIB


def test_populate_that_the_kernel_refuses_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMemory:
        def madvise(self, address: int, nbytes: int, advice: int) -> int:
            ctypes.set_errno(errno.ENOMEM)
            return -1

    with closing(HostPool(PAGE_NBYTES)) as pool, monkeypatch.context() as patch:
        patch.setattr(mapping, "_LIBC", NoMemory())
        with pytest.raises(MemoryLimitError, match=r"4096.*\[host\] size"):
            pool.populate(0, PAGE_NBYTES)


def test_a_closed_pool_stays_mapped_as_long_as_a_view_lives() -> None:
    before = mapped_pools()
    pool = HostPool(PAGE_NBYTES)
    part = pool.view[5:9]
    pool.close()
    pool.close()
    part[:] = 7
    assert mapped_pools() == before + 1
    del part
    gc.collect()
    assert mapped_pools() == before


def test_a_closed_pool_says_so() -> None:
    pool = HostPool(PAGE_NBYTES)
    pool.close()
    with pytest.raises(ClosedError):
        _ = pool.view
    with pytest.raises(ClosedError):
        _ = pool.fd
    with pytest.raises(ClosedError):
        pool.populate(0, PAGE_NBYTES)


@pytest.mark.parametrize("nbytes", [0, -PAGE_NBYTES, PAGE_NBYTES + 1])
def test_a_size_of_no_whole_pages_is_refused(nbytes: int) -> None:
    with pytest.raises(ConfigError, match=rf"\[host\] size is {nbytes} "):
        HostPool(nbytes)


def test_more_than_the_machine_has_is_refused_before_anything_is_taken() -> None:
    before = mapped_pools()
    with pytest.raises(MemoryLimitError, match=r"1024 TiB does not fit.*leaves \d+ bytes; lower \[host\] size"):
        HostPool(1 << 50)
    assert mapped_pools() == before


def test_more_than_the_address_space_may_hold_is_refused() -> None:
    done = run_python(
        "import resource; from tierstore.tiers.host_pool import HostPool; from tierstore.errors import *\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))\n"
        "HostPool(16 << 20).close()\n"
        "try: HostPool(65 << 20)\n"
        "except MemoryLimitError as error: print(error)"
    )
    assert "RLIMIT_AS" in done.stdout, done.stderr


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_tightest_cgroup_above_the_process_counts(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  8000 kB\n",
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/memory.max": f"{4 * MIB}\n",
            "sys/fs/cgroup/outer/memory.current": f"{3 * MIB}\n",
            "sys/fs/cgroup/outer/memory.stat": f"anon 5\ninactive_file {MIB}\n",
            "sys/fs/cgroup/outer/inner/memory.max": "max\n",
            "sys/fs/cgroup/outer/inner/memory.current": f"{3 * MIB}\n",
        },
    )
    check_memory(2 * MIB, tmp_path)  # cached files count as free
    with pytest.raises(MemoryLimitError, match=rf"{2 * MIB + 1} .*outer/memory.max leaves {2 * MIB} bytes.*\[host\]"):
        check_memory(2 * MIB + 1, tmp_path)


def test_the_cgroup_of_the_first_version_counts_even_where_its_path_is_hidden(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "proc/self/cgroup": "7:cpu:/\n3:memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{MIB}",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * MIB}",
        },
    )
    assert [(limit.free_nbytes, "limit_in_bytes" in limit.name) for limit in find_limits(tmp_path)] == [(0, True)]


def test_a_machine_that_names_no_limit_refuses_nothing(tmp_path: Path) -> None:
    assert find_limits(tmp_path) == []
    check_memory(1 << 60, tmp_path)


def test_kill_9_leaks_nothing() -> None:
    nbytes = 256 * MIB
    program = (
        "from tierstore.tiers.host_pool import HostPool\n"
        f"pool = HostPool({nbytes}); pool.populate(0, {nbytes}); print('ready', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        held = shared_nbytes()
        owner.kill()
        owner.wait()
    assert shared_nbytes() < held - nbytes * 3 // 4
    assert not [name for name in os.listdir("/dev/shm") if "tierstore" in name]
