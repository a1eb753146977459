"""The worker pool: serial kernels without the GIL, run by one pool of threads.

Kernels are compiled with `kernel` and hold no lock; `run` spreads one over a range and `submit`
runs a whole job beside the caller. There is no OpenMP here: torch's and numba's two runtimes spin
against each other, numba's workqueue layer aborts on concurrent calls, and its GNU layer dies
after a fork. A forked child has no thread of its parent's: the pool is made anew in it, locks are
open, and torch, whose GNU OpenMP would wait for lost threads for ever, computes with one.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gnnx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

# Where compiled kernels are kept: beside the source if unset, or in the user's own cache folder.
_CACHE_DIR = os.environ.get("GNNX_CACHE_DIR", "")

P = ParamSpec("P")
T = TypeVar("T")

Progress: TypeAlias = Callable[[str, int, int], None]
"""How a long job reports: (stage, done, total), often, from any thread."""


def kernel(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a serial kernel on first use; releases the GIL; kept on disk for the next process."""
    return _compiled(function, inline="never")


def inlined(function: Callable[P, T]) -> Callable[P, T]:
    """As `kernel`, for the small functions that kernels call."""
    return _compiled(function, inline="always")


def _compiled(function: Callable[P, T], inline: str) -> Callable[P, T]:
    compiler: Any = functools.partial(numba.njit, nogil=True, error_model="numpy", inline=inline)
    config: Any = numba.config
    folder, config.CACHE_DIR = config.CACHE_DIR, _CACHE_DIR or config.CACHE_DIR
    try:
        compiled: Callable[P, T] = compiler(function, cache=True)
    except RuntimeError:  # no folder to keep it in: a read-only install and no home
        compiled = compiler(function)
    finally:
        config.CACHE_DIR = folder  # where others' kernels go is not ours to say
    return compiled


@intrinsic
def _prefetch(_context: Any, array: Any, _index: Any) -> Any:
    """Ask for the cache line of ``array[index]``, without waiting for it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        entries = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(entries, [args[1]]), cgutils.voidptr_t)
        word = ir.IntType(32)
        asked = builder.module.declare_intrinsic(
            "llvm.prefetch",
            [cgutils.voidptr_t],
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word]),
        )
        read, keep, data = word(0), word(3), word(1)
        builder.call(asked, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


prefetch: Any = _prefetch
"""In kernels: ``prefetch(array, index)`` asks for an entry that is going to be wanted."""

_CHUNKS_PER_THREAD = 8  # enough to level out uneven rows, few enough that a chunk is worth a call


class _Pool:
    """The one pool, made on first use and made anew in a forked child."""

    def __init__(self) -> None:
        self.num_threads = len(os.sched_getaffinity(0))
        self.lock = threading.Lock()
        self.executor: concurrent.futures.ThreadPoolExecutor | None = None

    def submit(self, job: Callable[[], T]) -> Future[T]:
        with self.lock:  # held until the job is queued, or `resize` might come between
            if self.executor is None:
                self.executor = concurrent.futures.ThreadPoolExecutor(
                    self.num_threads, thread_name_prefix="gnnx"
                )
            return self.executor.submit(job)

    def resize(self, num_threads: int) -> None:
        with self.lock:
            old, self.executor, self.num_threads = self.executor, None, num_threads
        if old is not None:
            old.shutdown(wait=False)  # what is queued is done; the caller may be a thread of it

    def forget(self) -> None:
        """Drop threads that a fork did not bring along."""
        self.lock, self.executor = threading.Lock(), None


class lazy(Generic[T]):  # noqa: N801 - a decorator
    """A property that is computed when it is first asked for, and kept.

    `functools.cached_property` has a lock for all instances before Python 3.12: a thread that
    computes one holds it, and a child forked meanwhile waits for it for ever. Here two threads may
    compute the same value twice.

    Parameters
    ----------
    make
        Computes the value of an instance.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, _owner: type | None = None) -> T:
        value = instance.__dict__[self._name] = self._make(instance)
        return value


class Lock:
    """A lock that a thread may take again, and that is open in a forked child; a context manager.

    Whoever held it in the parent is not there to release it. So what it guards is changed by one
    assignment: a child finds it as it was before, or after.
    """

    def __init__(self) -> None:
        self.forget()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()

    def forget(self) -> None:
        """Drop a holder that a fork did not bring along."""
        self._lock = threading.RLock()


_pool = _Pool()
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    """Forget, in a child, its parent's threads; where that computed, torch's are lost as well."""
    if _pool.executor is not None and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    _pool.forget()
    for lock in _locks:
        lock.forget()


os.register_at_fork(after_in_child=_after_fork)


def num_threads() -> int:
    """Threads of the pool; by default the processors this process may use."""
    return _pool.num_threads


def set_num_threads(count: int) -> None:
    """Set the threads of gnnx's pool and of torch together; results do not depend on it.

    Parameters
    ----------
    count
        At least 1.

    Raises
    ------
    UsageError
        The count is below 1.
    """
    if count < 1:
        raise UsageError(f"{count} threads asked for", "Give --threads 1 or more.")
    import torch

    torch.set_num_threads(count)
    if count != _pool.num_threads:
        _pool.resize(count)


def submit(job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run a job on the pool, beside the caller."""
    return _pool.submit(functools.partial(job, *args, **kwargs))


def ahead(jobs: Iterable[Callable[[], T]], count: int) -> Iterator[T]:
    """Call jobs one after the other, the next ones on the pool while the caller uses a result.

    The caller never waits for a job that has not started, it does that one itself: a pool busy with
    longer jobs delays nothing. An error of `jobs` itself comes in its place, after the results of
    those before it. When the caller ends early, what has started is waited for.

    Parameters
    ----------
    jobs
        Taken in the caller's thread, each when it is begun: job i + count + 1 not before the caller
        is done with the result of job i, so that count + 1 buffers in turn are enough.
    count
        Of jobs under way while the caller uses a result.

    Yields
    ------
    T
        What the jobs return, in order.
    """
    begun: collections.deque[tuple[Callable[[], T], Future[T]]] = collections.deque()

    def first() -> T:
        job, future = begun[0]
        result = job() if future.cancel() else future.result()
        begun.popleft()  # only now: an interrupt may come while it is waited for
        return result

    try:
        for job in _or_failure(jobs):
            begun.append((job, submit(job)))
            if len(begun) > count:
                yield first()
        while begun:
            yield first()
    finally:
        concurrent.futures.wait([future for _, future in begun if not future.cancel()])


def _or_failure(jobs: Iterable[Callable[[], T]]) -> Iterator[Callable[[], T]]:
    """Jobs, and one that raises the error that ends them, where one does."""
    try:
        yield from jobs
    except Exception as error:
        failure = error

        def fail() -> T:
            raise failure

        yield fail


def _nothing(_begin: int, _end: int) -> None:
    """Take the place of a task that is done."""


def run(
    task: Callable[[int, int], Any], size: int, *, grain: int = 1, most: int | None = None
) -> None:
    """Call ``task(begin, end)`` over a cut of ``range(size)``, on the pool and the caller's thread.

    The caller works too and never waits for a thread that has not started, so that a pool busy
    with longer jobs delays nothing, and tasks may themselves call `run`. After a failure, or an
    interrupt of the caller, no further piece is begun.

    Parameters
    ----------
    task
        Writes to places that depend on its range alone; a `kernel` wrapped in a lambda.
    size
        Length of the range.
    grain
        The smallest piece worth a call.
    most
        About the largest piece. Pieces are taken in order, so that with small ones all threads
        work near each other, on data that they share.
    """
    workers = _pool.num_threads
    pieces = min(workers * _CHUNKS_PER_THREAD, -(-size // grain))
    if most is not None:
        pieces = max(pieces, size // max(most, grain))
    if pieces <= 1 or workers == 1:
        if size:
            task(0, size)
        return
    bounds = [size * i // pieces for i in range(pieces + 1)]
    ticket = itertools.count()  # next() on it is atomic
    failed = False

    def work() -> None:
        nonlocal failed
        try:
            while not failed and (i := next(ticket)) < pieces:
                task(bounds[i], bounds[i + 1])
        except BaseException:
            failed = True
            raise

    others = [submit(work) for _ in range(min(workers, pieces) - 1)]
    try:
        work()
    finally:
        started = [other for other in others if not other.cancel()]
        concurrent.futures.wait(started)
        task = _nothing  # cancelled calls stay queued for a while, and would hold its arrays
    for other in started:
        other.result()
