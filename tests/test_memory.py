"""The ledger keeps its budget whatever is asked of it, in whatever order, from whatever thread."""

import collections
import gc
import itertools
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from gnnx import memory
from gnnx.errors import BudgetError, ResourceError, UsageError
from gnnx.memory import PAGE, Budget, Ledger, Tier, format_bytes, parse_bytes, process
from gnnx.memory import slab as slabs

LIMIT = 1 << 20
MIB = 1 << 20


def _ledger(host=LIMIT, device=LIMIT, disk=None):
    return Ledger(Budget(host, device, disk))


def huge_pages_are_given():
    """Whether the system has huge pages for those who ask."""
    given = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return given.exists() and "[never]" not in given.read_text(encoding="ascii")


def _resident_bytes(ledger, tier):
    """Resident bytes of a tier's slab, page by page from the kernel's own tables."""
    slab = ledger._slabs[tier]
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
        pages.seek(slab.base // PAGE * 8)
        entries = np.frombuffer(pages.read(len(slab.map) // PAGE * 8), np.uint64)
    assert len(entries) == len(slab.map) // PAGE
    return int((entries >> np.uint64(63)).sum()) * PAGE


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("65536", 65536),
        (65536, 65536),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("4 GiB", 4 << 30),
        (" 512MB ", 512 * 10**6),
        ("1.5G", 1_500_000_000),
        ("1.5Gi", 3 << 29),
        ("2k", 2000),
        ("2KiB", 2048),
        ("1TB", 10**12),
        ("1TiB", 1 << 40),
        ("7b", 7),
        ("0.3KiB", 307),  # 307.2, rounded down
        ("1.9", 1),
        ("9007199254740993", 2**53 + 1),  # no double holds it
        ("8.000000000000001TiB", (8 << 40) * 8000000000000001 // 8000000000000000),
        ("9" * 400, int("9" * 400)),
    ],
)
def test_parse_bytes(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "text",
    ["", " ", "GiB", "4XB", "4iB", "-1", -1, "1e9", "inf", "nan", "4GiBs", "4,5GB", "1.", ".5G"],
)
def test_parse_bytes_refuses(text):
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert str(caught.value) == (
        f"{text!r} is not a size in bytes\n"
        'Write a number and a unit, such as "512MiB", "4GiB" or "2GB".'
    )


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (4 << 30, "4.0 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_format_bytes(num_bytes, text):
    assert format_bytes(num_bytes) == text


@given(st.integers(0, 1 << 60))
def test_format_is_parsed_back(num_bytes):
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.05)


def test_budget_from_text():
    assert Budget.parse("1GiB", "2GB", "3") == Budget(1 << 30, 2 * 10**9, 3)
    free = Budget.parse()
    assert free.device is None
    assert free.disk is None
    assert 0 < free.host <= memory.available_bytes() * 0.81


def _write_group(folder, files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize("version", [1, 2])
def test_available_bytes_sees_the_cgroup_and_its_parents(version, tmp_path, monkeypatch):
    limit, usage, root, line = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", tmp_path / "memory", "4:memory:/a/b"),
        2: ("memory.max", "memory.current", tmp_path, "0::/a/b"),
    }[version]
    stat = "anon 7\nactive_file 300\ninactive_file 700\n"
    _write_group(root / "a", {limit: "10000", usage: "4000", "memory.stat": stat})
    unlimited = {1: str(2**63 - PAGE), 2: "max"}[version]
    _write_group(root / "a" / "b", {limit: unlimited, usage: "100", "memory.stat": stat})
    monkeypatch.setattr(process, "_CGROUPS", tmp_path)
    (tmp_path / "self").write_text(f"9:cpu:/x\n{line}\n")
    read_text = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path: read_text(tmp_path / "self" if str(path) == "/proc/self/cgroup" else path),
    )
    assert memory.available_bytes() == 10000 - 4000 + 1000  # the page cache can be dropped


def test_resident_bytes_of_the_process():
    before = memory.rss_bytes()
    held = np.ones(256 << 20, np.uint8)
    grown = memory.rss_bytes() - before  # other tests' garbage may go meanwhile
    assert 0.75 * held.nbytes < grown < 1.25 * held.nbytes
    assert memory.peak_rss_bytes() >= before + grown - held.nbytes // 4


class LedgerMachine(RuleBasedStateMachine):
    """Random takes, views, drops, reservations and trims against a model of what is alive."""

    arrays = Bundle("arrays")
    reservations = Bundle("reservations")

    def __init__(self):
        super().__init__()
        self.ledger = _ledger()
        self.alive = {}  # serial -> (tier, bytes charged, address)
        self.items = {}  # serial -> (array, the byte it is filled with)
        self.reserved = {}  # serial -> (tier, bytes)
        self.serial = 0

    def _held(self, tier):
        mine = [size for where, size, _ in self.alive.values() if where is tier]
        return sum(mine) + sum(size for where, size in self.reserved.values() if where is tier)

    def _refused(self, caught, tier, size):
        held = self._held(tier)
        assert held + size > LIMIT
        assert caught.tier == tier.value
        assert caught.shortfall_bytes == held + size - LIMIT
        assert caught.smallest_bytes == held + size

    @rule(
        target=arrays,
        num_bytes=st.sampled_from([0, 64, 1000, 4096, 9000, 40_000, LIMIT // 3, LIMIT // 2]),
        dtype=st.sampled_from(["u1", "<i4", "<f8"]),
        tier=st.sampled_from([Tier.HOST, Tier.DEVICE]),
        align=st.sampled_from([64, 64, 128, 4096]),
        as_tensor=st.booleans(),
        keep=st.sampled_from(["itself", "view", "reshaped view"]),
    )
    def take(self, num_bytes, dtype, tier, align, as_tensor, keep):
        count = num_bytes // np.dtype(dtype).itemsize
        charged = max(64, -(-count * np.dtype(dtype).itemsize // 64) * 64)
        try:
            if as_tensor:
                align = 64
                torch_dtype = {"u1": torch.uint8, "<i4": torch.int32, "<f8": torch.float64}[dtype]
                array = self.ledger.tensor((count,), torch_dtype, tier, "test").numpy()
            else:
                array = self.ledger.empty((count,), dtype, tier, "test", align=align)
        except BudgetError as error:
            self._refused(error, tier, charged)
            return multiple()
        assert self._held(tier) + charged <= LIMIT
        assert array.dtype == np.dtype(dtype)
        assert array.shape == (count,)
        address = array.ctypes.data
        assert count == 0 or address % align == 0
        self.serial += 1
        self.alive[self.serial] = (tier, charged, address if count else None)
        tag = 1 + self.serial % 251
        array.view(np.uint8)[:] = tag
        if keep == "view":
            array = array[: count // 2 + 1]
        elif keep == "reshaped view":
            array = array.reshape(1, -1)[0]
        self.items[self.serial] = (array, tag)
        return self.serial

    @rule(tier=st.sampled_from(list(Tier)), size=st.integers(0, LIMIT), target=reservations)
    def reserve(self, tier, size):
        limit = self.ledger.budget.limit(tier)
        try:
            reservation = self.ledger.reserve(size, tier, "test")
        except BudgetError as error:
            self._refused(error, tier, size)
            return multiple()
        assert limit is None or self._held(tier) + size <= limit
        self.serial += 1
        self.reserved[self.serial] = (tier, size)
        return [self.serial, reservation]

    @rule(item=consumes(reservations))
    def release(self, item):
        item[1].release()
        item[1].release()  # a second call does nothing
        self.reserved.pop(item[0])

    @rule(serial=consumes(arrays), elsewhere=st.booleans())
    def drop(self, serial, elsewhere):
        self.alive.pop(serial)
        if elsewhere:
            thread = threading.Thread(target=self.items.pop, args=(serial,))
            thread.start()
            thread.join()
        else:
            self.items.pop(serial)

    @rule()
    def trim(self):
        self.ledger.trim()
        for slab in self.ledger._slabs.values():
            assert slab.dirty_bytes == 0

    @invariant()
    def nobody_else_writes(self):
        for array, tag in self.items.values():
            assert (array.view(np.uint8) == tag).all()

    @invariant()
    def holds_what_is_alive(self):
        for tier in Tier:
            held = self._held(tier)
            assert self.ledger.held_bytes(tier) == held
            assert self.ledger.owners(tier) == ({"test": held} if held else {})
            assert self.ledger.peak_bytes(tier) >= held
            limit = self.ledger.budget.limit(tier)
            assert self.ledger.free_bytes(tier) == (None if limit is None else limit - held)

    @invariant()
    def every_byte_is_in_one_place(self):
        for tier, slab in self.ledger._slabs.items():
            held = self.ledger.held_bytes(tier)  # books the dead first
            mine = [entry for entry in self.alive.values() if entry[0] is tier]
            if any(address is None for _, _, address in mine):
                continue  # NumPy does not say where an array without elements lies
            live = [(addr - slab.base, addr - slab.base + size) for _, size, addr in mine]
            extents = sorted(live + slab.clean + slab.dirty)
            assert extents[0][0] == 0
            assert extents[-1][1] == len(slab.map)
            assert all(left[1] == right[0] for left, right in itertools.pairwise(extents))
            assert slab.dirty_bytes == sum(end - start for start, end in slab.dirty)
            peak = self.ledger.peak_bytes(tier)
            assert slab.dirty_bytes + held <= min(LIMIT, peak * (1 + slabs._SLACK[tier]))

    @invariant()
    def resident_pages_are_held_or_dirty(self):
        for tier, slab in self.ledger._slabs.items():
            num_extents = len(self.alive) + len(slab.dirty)
            allowed = self.ledger.held_bytes(tier) + slab.dirty_bytes + 2 * PAGE * num_extents
            assert _resident_bytes(self.ledger, tier) <= allowed


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=150, stateful_step_count=60)


def test_budget_error_says_what_is_missing():
    ledger = _ledger(host=3 * MIB)
    held = ledger.empty(2 * MIB, np.uint8, Tier.HOST, "cache")
    with pytest.raises(BudgetError) as caught:
        ledger.empty((MIB, 2), np.uint8, Tier.HOST, "sampler")
    assert str(caught.value) == (
        "host memory: sampler needs 2097152 bytes, 1048576 of 3145728 are free\n"
        "Give --memory at least 4MiB."
    )
    assert caught.value.exit_code == 4
    assert caught.value.tier == "host"
    assert caught.value.shortfall_bytes == MIB
    assert caught.value.smallest_bytes == 4 * MIB
    assert ledger.held_bytes(Tier.HOST) == held.nbytes
    enough = _ledger(host=caught.value.smallest_bytes)
    kept = [enough.empty(2 * MIB, np.uint8, Tier.HOST, name) for name in ("cache", "sampler")]
    assert sum(array.nbytes for array in kept) == enough.held_bytes(Tier.HOST)


@pytest.mark.parametrize(
    ("tier", "option"),
    [(Tier.HOST, "--memory"), (Tier.DEVICE, "--device-memory"), (Tier.DISK, "a disk budget of")],
)
def test_budget_error_names_the_option(tier, option):
    with pytest.raises(BudgetError, match=rf"\nGive {option} at least 1MiB\.$"):
        _ledger(10, 10, 10).reserve(11, tier, "test")


@pytest.mark.parametrize("limit", [0, 1, 63])
def test_a_budget_below_one_line_holds_nothing(limit):
    with pytest.raises(BudgetError):
        _ledger(host=limit).empty(1, np.uint8, Tier.HOST, "test")


def test_bytes_return_with_the_last_view():
    ledger = _ledger()
    array = ledger.empty((8, 16), np.float32, Tier.HOST, "test")
    held = ledger.held_bytes(Tier.HOST)
    views = [array[2:], array.T, torch.from_numpy(array)[3], memoryview(array)]
    del array
    while views:
        assert ledger.held_bytes(Tier.HOST) == held == 512
        views.pop()
    assert ledger.held_bytes(Tier.HOST) == 0


def test_bytes_return_from_a_cycle_when_it_is_collected():
    ledger = _ledger()
    cycle = [ledger.empty(100, np.uint8, Tier.HOST, "test")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert ledger.held_bytes(Tier.HOST) == 0


def test_what_the_collector_drops_waits_for_no_lock():
    """It runs anywhere, in a thread that holds the ledger's lock too."""
    ledger = _ledger()
    array, held = ledger.empty(100, np.uint8, Tier.HOST, "a"), ledger.reserve(9, Tier.HOST, "b")
    items = [array, held]
    del array, held

    def drop():
        with ledger._lock:
            items.pop().release()
            items.pop()

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert ledger.held_bytes(Tier.HOST) == 0


def test_an_array_outlives_its_ledger():
    array = _ledger().empty(1000, np.int64, Tier.HOST, "test")
    gc.collect()
    array[:] = np.arange(1000)
    assert array.sum() == 499500


@pytest.mark.parametrize("dtype", ["?", "<f2", "<u2", "<i8", "S3", "<M8[ns]", "i4,f4", "V7"])
def test_every_dtype_of_fixed_size(dtype):
    array = _ledger().empty((3, 2), dtype, Tier.HOST, "test")
    assert array.dtype == np.dtype(dtype)
    assert array.shape == (3, 2)
    assert array.flags.writeable
    assert array.flags.c_contiguous


@pytest.mark.parametrize("shape", [0, (), (0, 3), np.int64(4), (np.int32(2), 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_tensor_of_any_shape(shape, dtype):
    ledger = _ledger()
    tensor = ledger.tensor(shape, dtype, Tier.DEVICE, "test")
    assert tensor.dtype == dtype
    assert tuple(tensor.shape) == (tuple(shape) if isinstance(shape, tuple) else (int(shape),))
    assert tensor.is_contiguous()
    assert ledger.held_bytes(Tier.DEVICE) == 64
    assert ledger.empty(shape, np.int8, Tier.HOST, "test").shape == tuple(tensor.shape)


def test_freed_memory_goes_back_to_the_system():
    ledger = _ledger(device=64 * MIB)
    blocks = [ledger.empty(8 * MIB, np.uint8, Tier.DEVICE, "test") for _ in range(4)]
    for block in blocks:
        block[:] = 1
    assert _resident_bytes(ledger, Tier.DEVICE) == 32 * MIB
    blocks.clear()
    del block
    assert ledger.held_bytes(Tier.DEVICE) == 0
    assert _resident_bytes(ledger, Tier.DEVICE) == 32 * MIB  # kept warm for the next step
    ledger.trim()
    assert _resident_bytes(ledger, Tier.DEVICE) == 0


def _huge_bytes(slab):
    """Bytes of a slab's mapping that lie in huge pages."""
    first, last, found, inside = slab.base, slab.base + len(slab.map), 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        if line[0].islower() or line[0].isdigit():  # addresses of a mapping
            begin, end = (int(text, 16) for text in line.split()[0].split("-"))
            inside = first <= begin and end <= last
        elif inside and line.startswith("AnonHugePages:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.skipif(not huge_pages_are_given(), reason="the system gives no huge pages")
def test_large_arrays_lie_in_huge_pages_and_small_ones_do_not():
    """A huge page has no byte that nobody holds, now or after a part of it has been given back."""
    ledger = _ledger(host=64 * MIB)
    large = ledger.empty(16 * MIB, np.uint8, Tier.HOST, "test")
    small = [ledger.empty(MIB // 2, np.uint8, Tier.HOST, "test") for _ in range(16)]
    for block in (large, *small):
        block[:1] = 1
    slab = ledger._slabs[Tier.HOST]
    assert 0 < _huge_bytes(slab) <= 16 * MIB
    assert (
        _resident_bytes(ledger, Tier.HOST) <= slabs.HUGE_PAGE + 17 * PAGE
    )  # of each the first byte
    large[:] = 1
    assert _huge_bytes(slab) >= 12 * MIB  # the ends of 16 MiB may lie in no whole one
    del large, block
    ledger.trim()
    assert _huge_bytes(slab) == 0
    assert ledger.held_bytes(Tier.HOST) == 8 * MIB


@pytest.mark.parametrize(("tier", "slack"), [(Tier.HOST, 0.03), (Tier.DEVICE, 0.25)])
def test_resident_bytes_follow_the_peak(tier, slack):
    ledger = _ledger(host=64 * MIB, device=64 * MIB)
    sizes = np.random.default_rng(0).integers(1, 4 * MIB, 200)
    alive = collections.deque(maxlen=10)  # as batches: first made, first gone
    for size in sizes:
        block = ledger.empty(int(size), np.uint8, tier, "test")
        block[:] = 1
        alive.append(block)
        most = ledger.peak_bytes(tier) * (1 + slack)
        assert _resident_bytes(ledger, tier) <= most + 2 * PAGE * len(ledger._slabs[tier].dirty)


def test_a_reservation_makes_room_among_freed_pages():
    ledger = _ledger(device=8 * MIB)
    ledger.empty(6 * MIB, np.uint8, Tier.DEVICE, "test")[:] = 1
    with ledger.reserve(4 * MIB, Tier.DEVICE, "weights"):
        assert _resident_bytes(ledger, Tier.DEVICE) <= 4 * MIB
        assert ledger.owners(Tier.DEVICE) == {"weights": 4 * MIB}
    assert ledger.held_bytes(Tier.DEVICE) == 0


def test_fragmentation_fails_nothing_that_the_budget_allows():
    """Every other of many small arrays stays; page-aligned ones waste most of their room."""
    ledger = _ledger(host=128 << 10)
    small = [ledger.empty(64, np.uint8, Tier.HOST, "a", align=PAGE) for _ in range(2048)]
    assert ledger.held_bytes(Tier.HOST) == 128 << 10
    del small[::2]
    assert ledger.empty(64 << 10, np.uint8, Tier.HOST, "b", align=PAGE).nbytes == 64 << 10


def test_more_than_the_machine_can_address_is_a_named_error():
    ledger = _ledger(host=None)
    with pytest.raises(ResourceError, match=r"^host memory: no 1152921504606846976 bytes of addr"):
        ledger.empty(1 << 60, np.uint8, Tier.HOST, "test")
    assert ledger.held_bytes(Tier.HOST) == 0


def test_a_budget_beyond_the_machine_is_no_obstacle():
    ledger = _ledger(host=parse_bytes("9999999TiB"))
    assert ledger.empty(10, np.uint8, Tier.HOST, "test").shape == (10,)


def test_refused_address_space_is_a_named_error(monkeypatch):
    def refuse(*_args):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(slabs.mmap, "mmap", refuse)
    ledger = _ledger()
    with pytest.raises(ResourceError, match=r"^host memory: the system refuses 1048576 bytes of"):
        ledger.empty(10, np.uint8, Tier.HOST, "test")
    assert ledger.held_bytes(Tier.HOST) == 0


def test_threads_share_a_ledger():
    """Each checks that nobody else writes into its arrays; refusals are part of the game."""
    ledger, problems, refused = _ledger(host=256 << 10), [], []

    def work(number):
        draw = np.random.default_rng(number)
        mine = []
        for _ in range(400):
            try:
                array = ledger.empty(int(draw.integers(1, 32 << 10)), np.uint8, Tier.HOST, "test")
            except BudgetError:
                refused.append(number)
            else:
                array[:] = number
                mine.append(array)
            if not ledger.held_bytes(Tier.HOST) <= 256 << 10:
                problems.append("over the budget")
            if mine and draw.random() < 0.6:
                array = mine.pop(int(draw.integers(len(mine))))
                if not (array == number).all():
                    problems.append("overlap")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert refused  # the budget was tight enough to matter
    assert ledger.held_bytes(Tier.HOST) == 0
    assert ledger.peak_bytes(Tier.HOST) <= 256 << 10


_FORK_CHILD = """
import os, signal, sys, threading, time
import numpy as np
from gnnx.memory import Budget, Ledger, Tier

ledger = Ledger(Budget(1 << 20))
inside = threading.Event()

def hold():
    with ledger._lock:  # as it is in the middle of an allocation
        inside.set()
        time.sleep(0.3)

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    ledger.empty(100, np.uint8, Tier.HOST, "child")
    os._exit(0)
thread.join()
ledger.empty(100, np.uint8, Tier.HOST, "parent")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_while_another_thread_allocates():
    subprocess.run([sys.executable, "-W", "ignore", "-c", _FORK_CHILD], check=True, timeout=60)


_SHORT_OF_ADDRESSES = """
import resource
import numpy as np
from gnnx.memory import Budget, Ledger, Tier

limit = 2 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
ledger = Ledger(Budget.parse())
assert ledger.budget.host < limit // 2, ledger.budget
held = [ledger.empty(100 << 20, np.uint8, tier, "test") for tier in (Tier.HOST, Tier.DEVICE)]
others = np.empty(200 << 20, np.uint8)
"""


def test_default_budgets_fit_a_limit_on_address_space():
    subprocess.run([sys.executable, "-c", _SHORT_OF_ADDRESSES], check=True, timeout=60)
