"""Workers run what they are given, in order, lose nothing and never keep a program from ending."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator

import pytest

from tierstore.worker import Worker

PATIENCE_SECONDS = 10
"""How long a test waits for what must happen; it passes as soon as it does."""


class Gate:
    """A task that says when it runs and ends when it is told to."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE_SECONDS)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("tested", capacity=4)
    yield worker
    worker.close()


@pytest.fixture
def gate(worker: Worker) -> Iterator[Gate]:
    """Keeps the worker busy until opened."""
    gate = Gate()
    assert worker.submit(gate)
    assert gate.entered.wait(PATIENCE_SECONDS)
    yield gate
    gate.opened.set()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[threading.ExceptHookArgs]:
    """What is told to `threading.excepthook`."""
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    return told


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    head = "import atexit, os, sys, threading\nfrom tierstore.worker import Worker\n"
    command = [sys.executable, "-c", head + textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def test_tasks_run_lowest_priority_number_first_and_in_order_within_one(worker: Worker, gate: Gate) -> None:
    ran: list[str] = []
    for name, priority in (("late", 2), ("first", 0), ("middle", 1), ("second", 0)):
        assert worker.submit(lambda name=name: ran.append(name), priority)  # type: ignore[misc]
    gate.opened.set()
    worker.close()
    assert ran == ["first", "second", "middle", "late"]


def test_a_full_queue_refuses(worker: Worker, gate: Gate) -> None:
    ran: list[int] = []
    assert [worker.submit(lambda: ran.append(1)) for _ in range(5)] == [True, True, True, True, False]
    assert worker.room == 0
    gate.opened.set()
    worker.close()
    assert len(ran) == 4
    assert worker.room == 4


def test_threads_carry_the_workers_name() -> None:
    names: list[str] = []
    together = threading.Barrier(2)

    def say() -> None:
        together.wait(PATIENCE_SECONDS)
        names.append(threading.current_thread().name)

    pair = Worker("pair", capacity=2, threads=2)
    assert pair.submit(say)
    assert pair.submit(say)
    pair.close()
    assert sorted(names) == ["pair-0", "pair-1"]


def test_close_runs_what_is_queued_and_joins_the_threads(worker: Worker, gate: Gate) -> None:
    ran: list[int] = []
    assert worker.submit(lambda: ran.append(1))
    gate.opened.set()
    worker.close()
    worker.close()
    assert ran == [1]
    assert "tested" not in [thread.name for thread in threading.enumerate()]


def test_a_closed_worker_is_forgotten() -> None:
    worker = Worker("brief", capacity=1)
    worker.close()
    trace = weakref.ref(worker)
    del worker
    gc.collect()
    assert trace() is None


def test_a_closed_worker_refuses(worker: Worker) -> None:
    worker.close()
    assert not worker.submit(lambda: None)


def test_a_task_that_submits_while_the_worker_closes_is_refused(worker: Worker, gate: Gate) -> None:
    accepted: list[bool] = []
    assert worker.submit(worker.close)
    assert worker.submit(lambda: accepted.append(worker.submit(lambda: None)))
    gate.opened.set()
    worker.close()
    assert accepted == [False]


def test_a_worker_closed_by_its_own_task_still_runs_what_is_queued(worker: Worker, gate: Gate) -> None:
    ran: list[int] = []
    assert worker.submit(worker.close)
    assert worker.submit(lambda: ran.append(1))
    gate.opened.set()
    worker.close()
    assert ran == [1]
    assert worker.failure is None


def test_an_escaped_exception_is_kept_and_told_and_ends_only_its_task(
    worker: Worker, told: list[threading.ExceptHookArgs]
) -> None:
    ran: list[int] = []

    def fail(error: BaseException) -> None:
        raise error

    first, second = KeyError("first"), SystemExit(3)
    assert worker.submit(lambda: fail(first))
    assert worker.submit(lambda: fail(second))
    assert worker.submit(lambda: ran.append(1))
    worker.close()
    assert ran == [1]
    assert worker.failure is first
    assert [args.exc_value for args in told] == [first, second]
    assert [args.thread.name for args in told if args.thread] == ["tested", "tested"]


def test_who_waits_for_a_task_is_told_of_its_failure_even_if_that_fails_too(
    worker: Worker, told: list[threading.ExceptHookArgs]
) -> None:
    error, answers = KeyError("task"), list[BaseException]()

    def fail() -> None:
        raise error

    def answer_badly(escaped: BaseException) -> None:
        answers.append(escaped)
        raise ValueError("answer")

    assert worker.submit(fail, failed=answer_badly)
    assert worker.submit(fail, failed=answers.append)
    assert worker.submit(lambda: None, failed=answers.append)
    worker.close()
    assert answers == [error, error]
    assert [type(args.exc_value) for args in told] == [KeyError, ValueError, KeyError]


def test_who_asks_gets_what_the_task_returned_or_raised(worker: Worker) -> None:
    def fail() -> None:
        raise KeyError("task")

    assert worker.ask(lambda: threading.current_thread().name) == "tested"
    with pytest.raises(KeyError, match="task"):
        worker.ask(fail)
    assert worker.failure is None
    worker.close()
    assert worker.ask(lambda: threading.current_thread()) is threading.current_thread()


def test_a_token_for_no_task_as_a_signal_may_leave_it_behind_wakes_nobody(worker: Worker) -> None:
    worker._tokens.put(None)
    assert worker.ask(lambda: 7) == 7


def test_an_idle_worker_keeps_no_memory_of_its_last_task(worker: Worker) -> None:
    gate, gone = Gate(), threading.Event()
    weakref.finalize(gate, gone.set)
    gate.opened.set()
    assert worker.submit(gate)
    del gate
    assert gone.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize(("ending", "status"), [("", 0), ("raise ValueError('lost')", 1)])
def test_a_program_that_ends_without_close_runs_what_is_queued_and_exits(ending: str, status: int) -> None:
    done = run_script(f"""
        worker = Worker("forgotten", capacity=8, threads=2)
        for number in range(8):
            worker.submit(lambda: os.write(1, b"ran "))
        {ending}
    """)
    assert done.returncode == status
    assert done.stdout == "ran " * 8
    assert ("lost" in done.stderr) == bool(status)


def test_an_owner_may_stop_a_waiting_task_at_exit_before_its_worker_is_closed() -> None:
    done = run_script("""
        stop = threading.Event()
        worker = Worker("timer", capacity=1)
        atexit.register(stop.set)
        worker.submit(lambda: print(stop.wait(60), flush=True))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_forked_child_is_refused_and_ends() -> None:
    done = run_script("""
        worker = Worker("parent", capacity=1)
        held, forked = threading.Event(), threading.Event()

        def hold():
            with worker._lock:
                held.set()
                forked.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()  # the child gets a lock that nobody will ever release
        child = os.fork()
        if child == 0:
            sys.exit(8 if worker.submit(lambda: None) else 7)
        forked.set()
        holder.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), worker.submit(lambda: None))
    """)
    assert (done.returncode, done.stdout) == (0, "7 True\n"), done.stderr
