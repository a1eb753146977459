"""The pool covers every range once, whatever it is busy with, and passes every failure on."""

import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnx import threads
from gnnx.errors import UsageError


@pytest.fixture(params=[1, 2, 5], ids="threads={}".format)
def pool(request):
    """The pool with some number of threads, and as it was afterwards."""
    before, torch_before = threads.num_threads(), torch.get_num_threads()
    threads.set_num_threads(request.param)
    yield request.param
    threads.set_num_threads(before)
    torch.set_num_threads(torch_before)


def _counted(size, grain):
    times, pieces = np.zeros(size, np.int64), []

    def task(begin, end):
        pieces.append((begin, end))
        times[begin:end] += 1

    threads.run(task, size, grain=grain)
    return times, pieces


@given(size=st.integers(0, 3000), grain=st.integers(1, 500))
def test_run_covers_a_range_once(size, grain):
    times, pieces = _counted(size, grain)
    assert (times == 1).all()
    assert len(pieces) <= max(0, -(-size // grain))
    assert all(begin < end for begin, end in pieces)


@given(size=st.integers(0, 3000), grain=st.integers(1, 50), most=st.integers(1, 200))
def test_run_in_small_pieces_in_order(size, grain, most):
    """No piece is larger than asked for, so that threads are never far from each other."""
    before, sizes = threads.num_threads(), []
    threads.set_num_threads(2)
    try:
        threads.run(lambda b, e: sizes.append(e - b), size, grain=grain, most=most)
    finally:
        threads.set_num_threads(before)
    assert sum(sizes) == size
    assert all(piece < 2 * max(most, grain) for piece in sizes)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 1000])
def test_run_with_any_number_of_threads(pool, size):
    times, pieces = _counted(size, 1)
    assert (times == 1).all()
    if pool == 1:
        assert len(pieces) <= 1  # nothing to level out


def test_run_uses_several_threads_at_once(pool):
    """Pieces wait for one another, so that one thread alone never gets through."""
    meeting = threading.Barrier(pool)
    begun = threading.local()

    def task(_begin, _end):
        if not hasattr(begun, "met"):
            begun.met = meeting.wait(timeout=20)

    threads.run(task, 100)
    assert meeting.broken is False


def test_run_does_not_wait_for_a_busy_pool(pool):
    release = threading.Event()
    busy = [threads.submit(release.wait, 60) for _ in range(2 * pool)]
    begin = time.monotonic()
    times, _ = _counted(1000, 1)
    assert time.monotonic() - begin < 10
    assert (times == 1).all()
    release.set()
    assert all(job.result(timeout=60) for job in busy)


def test_run_within_run_within_jobs(pool):
    """More jobs than threads, each of which spreads work that spreads work."""
    totals = np.zeros((2 * pool, 20, 30), np.int64)

    def job(i):
        def outer(begin, end):
            for j in range(begin, end):

                def inner(first, last, j=j):
                    totals[i, j, first:last] += 1

                threads.run(inner, 30)

        threads.run(outer, 20)

    jobs = [threads.submit(job, i) for i in range(2 * pool)]
    for done in jobs:
        done.result(timeout=60)
    assert (totals == 1).all()


@pytest.mark.parametrize("bad", [0, 1, 50, 99])
def test_any_piece_may_fail(pool, bad):
    def task(begin, end):
        time.sleep(0.0005)  # so that every thread gets a piece
        if begin <= bad < end:
            raise KeyError(bad)

    with pytest.raises(KeyError, match=str(bad)):
        threads.run(task, 100)
    times, _ = _counted(100, 1)  # and the pool goes on
    assert (times == 1).all()


def test_a_failure_is_raised_after_every_piece_has_ended(pool):
    """Or a caller that cleans up would pull buffers from under threads still at work."""
    running = []

    def task(begin, _end):
        running.append(begin)
        time.sleep(0.002)
        running.remove(begin)
        if begin == 0:
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - raised just above
        threads.run(task, 64)
    assert running == []


@pytest.mark.parametrize("failing", ["caller", "other"])
def test_after_a_failure_no_further_piece_is_begun(failing):
    """An interrupt of the caller among them: the others would work through all that is left."""
    threads.set_num_threads(2)
    caller, begun, failed = threading.current_thread(), [], threading.Event()
    both = threading.Barrier(2)

    def task(begin, _end):
        begun.append(begin)
        if len(begun) <= 2:
            both.wait(20)
            if (threading.current_thread() is caller) == (failing == "caller"):
                failed.set()
                raise KeyboardInterrupt
            assert failed.wait(20)
            time.sleep(0.2)  # the other thread sees what was raised

    with pytest.raises(KeyboardInterrupt):
        threads.run(task, 1000)
    assert len(begun) == 2


def test_submit_passes_arguments_results_and_failures(pool):
    assert threads.submit(divmod, 17, 5).result(timeout=20) == (3, 2)
    assert threads.submit(int, "ff", base=16).result(timeout=20) == 255
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(timeout=20)
    assert pool == threads.num_threads()


def test_set_num_threads_sets_torch_too(pool):
    assert torch.get_num_threads() == threads.num_threads() == pool
    names = {threads.submit(lambda: threading.current_thread().name).result() for _ in range(20)}
    assert all(name.startswith("gnnx") for name in names)
    assert len(names) <= pool


@pytest.mark.parametrize("count", [0, -1])
def test_no_threads_is_a_usage_error(count):
    before = threads.num_threads()
    with pytest.raises(UsageError) as caught:
        threads.set_num_threads(count)
    assert str(caught.value) == f"{count} threads asked for\nGive --threads 1 or more."
    assert threads.num_threads() == before


def test_queued_jobs_outlive_a_change_of_threads(pool):
    gate = threading.Event()
    jobs = [threads.submit(gate.wait, 60) for _ in range(3 * pool)]
    threads.set_num_threads(pool + 1)
    gate.set()
    assert all(job.result(timeout=60) for job in jobs)


def test_a_job_may_change_the_number_of_threads(pool):
    threads.submit(threads.set_num_threads, pool + 1).result(timeout=20)
    assert threads.num_threads() == pool + 1


def test_many_submit_while_the_pool_changes_size(pool):
    """No job meets an executor that has been shut down under its feet."""
    stop, failures = threading.Event(), []

    def resize():
        while not stop.is_set():
            threads.set_num_threads(pool + 1)
            threads.set_num_threads(pool)

    other = threading.Thread(target=resize)
    other.start()
    try:
        failures += [i for i in range(300) if threads.submit(abs, -i).result(timeout=20) != i]
    finally:
        stop.set()
        other.join(20)
    assert failures == []


_CHILD = """
import os, signal, sys, threading
import numpy as np
from gnnx import threads
from gnnx.random import Key, permute

threads.set_num_threads(3)
held = threading.Event()

def counts():
    times = np.zeros(1000, np.int64)
    def task(begin, end):
        times[begin:end] += 1
        permute(np.arange(5), 5, Key(0))
    threads.run(task, 1000)
    return bool((times == 1).all())

assert counts()
jobs = [threads.submit(held.wait, 60) for _ in range(6)]  # all threads busy, some jobs queued
child = os.fork()
if child == 0:
    signal.alarm(60)
    ok = counts() and threads.submit(abs, -3).result(timeout=30) == 3
    os._exit(0 if ok and threads.num_threads() == 3 else 1)
_, status = os.waitpid(child, 0)
held.set()
assert all(job.result(timeout=30) for job in jobs)
assert counts()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_pool_is_made_anew_after_a_fork():
    subprocess.run([sys.executable, "-c", _CHILD], check=True, timeout=100)


def test_kernels_work_where_nothing_can_be_kept():
    """A read-only install and no home: numba finds no folder for its cache."""
    code = (
        "import numpy as n; from gnnx.random import *; print(permute(n.arange(4), 4, Key(0)).sum())"
    )
    nowhere = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    nowhere.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=nowhere, capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.strip() == "6"


def test_a_finished_run_holds_nothing_though_its_calls_are_still_queued():
    """A busy pool leaves the cancelled calls in its queue: a batch they held would stay."""
    release = threading.Event()
    busy = [threads.submit(release.wait) for _ in range(threads.num_threads())]
    try:
        held = np.zeros(8)
        gone = weakref.ref(held)
        threads.run(lambda begin, end, array=held: array[begin:end].fill(1), len(held))
        assert held.all()
        del held
        assert gone() is None
    finally:
        release.set()
        for job in busy:
            job.result()


# Jobs ahead


def test_ahead_gives_results_in_order_and_takes_no_more_than_is_told(pool):
    for count in (0, 1, 3):
        taken, done = [], []

        def jobs():
            for i in range(20):
                # of the buffers in turn, that of job i is free
                assert len(done) >= i - count  # noqa: B023
                taken.append(i)  # noqa: B023
                yield lambda i=i: (time.sleep(0.001 * (i % 3)), i * i)[1]

        for result in threads.ahead(jobs(), count):
            assert result == len(done) ** 2
            assert len(taken) <= len(done) + count + 1
            done.append(result)
        assert len(done) == 20


def test_ahead_tells_what_fails_in_its_turn(pool):
    def fail():
        raise ValueError("a job")

    def jobs():
        yield from (lambda i=i: i for i in range(4))
        raise KeyError("the jobs")

    results = threads.ahead(jobs(), 3)
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="the jobs"):
        next(results)
    with pytest.raises(ValueError, match="a job"):
        list(threads.ahead([int, fail, int], 2))


def test_ahead_does_not_wait_for_a_busy_pool(pool):
    """Jobs of the pool that use it themselves cannot lock each other out."""
    nested = [
        threads.submit(lambda: sum(threads.ahead([int, lambda: 2, lambda: 3], 2)))
        for _ in range(3 * pool)
    ]
    assert [job.result(timeout=60) for job in nested] == [5] * len(nested)


def test_ahead_waits_for_what_has_started_when_its_caller_ends(pool):
    started, ended = threading.Event(), threading.Event()

    def slow():
        started.set()
        time.sleep(0.1)
        ended.set()

    results = threads.ahead([int, slow, slow], 2)
    assert next(results) == 0
    results.close()
    assert not started.is_set() or ended.is_set()


def test_ahead_waits_for_the_very_job_whose_result_is_asked_for_when_interrupted(pool):
    """What it uses, a file say, is closed right after."""
    started, ended = threading.Event(), threading.Event()

    def slow():
        started.set()
        time.sleep(0.5)
        ended.set()

    def interrupt():
        time.sleep(0.05)  # until it is waited for
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def jobs():
        yield slow
        started.wait(timeout=60)
        interrupter.start()
        yield int

    interrupter = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            next(threads.ahead(jobs(), 1))
        assert ended.is_set()
        interrupter.join()
    finally:
        signal.signal(signal.SIGINT, before)
