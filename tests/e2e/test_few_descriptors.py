"""A store of more chunk files than its process may open, and more puts, gets and restarts than descriptors."""

from __future__ import annotations

from pathlib import Path

from tests.payload import TIMEOUT_SECONDS
from tests.processes import program

SCRIPT = """
import resource
from pathlib import Path

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

numbers = range(840)
hashes = [block_hash(number) for number in numbers]
most = 0
for life in range(2):
    with small_store(ssd_dir=folder, ssd_size="16 MiB") as store:
        handle = store.namespace(namespace())
        for first in range(0, 840, 28):
            batch = numbers[first : first + 28]
            if life == 0:
                put = handle.put(hashes[first : first + 28], rows(batch, 8192), durable=True)
                assert put.result(TIMEOUT_SECONDS).ok
            else:
                assert get(handle, hashes[first : first + 28], rows(batch, 8192)).ok
            most = max(most, num_descriptors(Path(folder)))
        for number in numbers[::97]:
            assert get(handle, [hashes[number]], rows([number], 8192)).ok
print(len(list(Path(folder).glob("arrays/*/[co]*"))), most, len(os.listdir("/proc/self/fd")), flush=True)
"""


def test_a_store_has_more_chunk_files_than_its_process_may_open(tmp_path: Path) -> None:
    with program(SCRIPT, tmp_path) as (process, output):
        words = output.readline().split()
        assert process.wait(TIMEOUT_SECONDS) == 0
    num_files, most_open, open_at_the_end = map(int, words)
    assert num_files > 64 + 40
    assert 8 < most_open <= 16 + 8, "a quarter, and those that calls are using"
    assert open_at_the_end < 16
