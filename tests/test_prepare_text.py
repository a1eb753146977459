"""Tables in text: what is a line, a header, a field; where errors point; exact numbers."""

import gzip
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnx import threads
from gnnx.errors import DataError, UsageError
from gnnx.memory import Budget, Ledger
from gnnx.prepare.arrays import Workspace
from gnnx.prepare.report import EXAMPLES, Dropped
from gnnx.prepare.text import TextFormat, TextTable


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


def parse(folder, text, name="t.csv", *, columns=2, limit=100, piece_bytes=64, dtype=None, **form):
    """Ids of a text where `columns` is given, else numbers of a dtype."""
    data = text if isinstance(text, bytes) else text.encode()
    path = folder / name
    data = gzip.compress(data) if path.suffix == ".gz" else data
    path.write_bytes(data)
    with Workspace(folder, Ledger(Budget())) as space:
        space.piece_bytes = piece_bytes
        table = TextTable(space, path, TextFormat(**form))
        array = table.numbers(dtype) if dtype else table.ids(columns, limit)
        rows = [piece.copy() for piece in array.pieces()]
    assert path.read_bytes() == data
    return np.concatenate(rows) if rows else np.empty(array.shape)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1,2\n3,4\n", {}),
        ("1,2\n3,4", {}),
        ("1 2\r\n3 4\r\n", {}),
        ("1\t2\n3\t4\n", {}),
        ("1;2\n3;4\n", {}),
        ("  1   2  0.5\n\n\t3 4\t0.7\n", {"delimiter": " "}),
        ("1, 2 ,x\n 3,4,\n", {}),
        ("# a comment\n#1 9\n1 2\n# 7 7\n3 4\n", {}),
        ("% a comment\n1 2\n3 4\n", {"comment": "%"}),
        ("src,dst\n1,2\n3,4\n", {}),
        ("# c\n\nsrc dst weight\n1 2 0\n3 4 0\n", {}),
        ("9,9\n1,2\n3,4\n", {"header": True}),
        ("\ufeff1,2\n3,4\n", {}),
        ("\ufeffsrc,dst\n1,2\n3,4\n", {}),
        ("1|2\n3|4\n", {"delimiter": "|"}),
        ("1\t2\n3\t4\n", {"delimiter": "\\t"}),
        ("01 02\n003 4\n", {}),
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.txt.gz"])
def test_edges(folder, text, form, name):
    assert parse(folder, text, name, **form).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "src,dst\n", "\r\n # x\r\n"])
def test_no_edges(folder, text):
    assert parse(folder, text).shape == (0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n\n# x\n3 100\n", "t.csv:4: node 100 is outside the 100 nodes"),
        ("1 2\n-3 4\n", "t.csv:2: node -3 is outside the 100 nodes"),
        ("a b\n1 2\nalice 3\n", "t.csv:3: 'alice' is not an integer id"),
        ("1,2\n1.0,2\n", "t.csv:2: '1.0' is not an integer id"),
        ("1,2\n3 4,5\n", "t.csv:2: '3 4' is not an integer id"),
        ("1,2\n3,,5\n", "t.csv:2: '' is not an integer id"),
        ("1 2\n3 4x\n", "t.csv:2: '4x' is not an integer id"),
        ("1 2\n99999999999999999999 1\n", "t.csv:2: '99999999999999999999' is not an integer id"),
        ("1 2\n3\n", "t.csv:2: 2 columns expected, fewer found"),
        ("1,2\n3,\n", "t.csv:2: 2 columns expected, fewer found"),
        ("1,2\r\n3\r\n", "t.csv:2: 2 columns expected, fewer found"),
        ("1 alice\n2 bob\n", "t.csv:1: 'alice' is not an integer id"),
    ],
)
def test_wrong_edges(folder, text, message):
    with pytest.raises(DataError) as failure:
        parse(folder, text)
    assert failure.value.cause == message


def test_line_numbers_count_every_line_of_a_long_file(folder):
    lines = [f"{i % 100} {i // 7 % 100}" for i in range(5000)]
    lines[4321] = "5 100"
    with pytest.raises(DataError, match=r"^t\.csv:4322: node 100 is outside the 100 nodes"):
        parse(folder, "\n".join(lines))


def test_damaged_gzip(folder):
    path = folder / "cut.txt.gz"
    path.write_bytes(gzip.compress(b"1 2\n" * 10_000)[:-20])
    with Workspace(folder, Ledger(Budget())) as space:
        table = TextTable(space, path, TextFormat())
        with pytest.raises(DataError, match=r"^cut\.txt\.gz: cannot be decompressed: "):
            table.ids(2, 10)
        path.write_bytes(b"1 2\n")
        with pytest.raises(DataError, match=r"^cut\.txt\.gz: cannot be decompressed: "):
            TextTable(space, path, TextFormat())


@pytest.mark.parametrize("option", ["delimiter", "comment"])
def test_a_sign_is_one_character(option):
    with pytest.raises(UsageError, match=f"^{option} 'ab' is not one character"):
        TextFormat(**{option: "ab"})


@given(
    edges=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=60),
    blanks=st.sampled_from([" ", "\t", ", ", " ,", ";"]),
    end=st.sampled_from(["\n", "\r\n", " \n", "\n\n"]),
    piece_bytes=st.integers(24, 200),
)
def test_any_edges(folder, edges, blanks, end, piece_bytes):
    text = "".join(f"{s}{blanks}{d}{end}" for s, d in edges)
    found = parse(folder, text, limit=2**41, piece_bytes=piece_bytes)
    assert found.tolist() == [list(edge) for edge in edges]


@given(
    values=st.lists(st.floats(width=64), min_size=1, max_size=40),
    form=st.sampled_from(["{!r}", "{:.3f}", "{:.17e}", "{:+.9g}"]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_numbers_are_the_nearest(folder, values, form, dtype):
    fields = [form.format(value) for value in values]
    found = parse(folder, "\n".join(fields), dtype=dtype, header=False)
    with np.errstate(over="ignore"):
        expected = np.array([float(field) for field in fields]).astype(dtype)
    np.testing.assert_array_equal(found[:, 0], expected)
    assert (np.signbit(found[:, 0]) == np.signbit(expected))[~np.isnan(expected)].all()


def test_many_numbers_are_the_nearest(folder):
    """Powers of ten across the range: through the fast way and the slow one."""
    rng = np.random.default_rng(0)
    values = 10 ** rng.uniform(-45, 39, 20_000) * rng.choice([-1, 1], 20_000)
    text = "\n".join(map(repr, values.tolist()))
    with np.errstate(over="ignore"):
        expected = values.astype(np.float32)
    found = parse(folder, text, dtype=np.float32, piece_bytes=4096)
    assert (found[:, 0] == expected).all()


def test_missing_numbers(folder):
    text = "a,b,c\n1,,3\nnan, inf ,-INF\n,,\n"
    expected = [[1, np.nan, 3], [np.nan, np.inf, -np.inf], [np.nan] * 3]
    np.testing.assert_array_equal(parse(folder, text, dtype=np.float32), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "t.csv:2: 2 columns expected, 1 found"),
        ("1,2\n\n3,4,5\n", "t.csv:3: 2 columns expected, 3 found"),
        ("1,2\n3,x\n", "t.csv:2: 'x' is not a number"),
        ("1,2\n3,1_000\n", "t.csv:2: '1_000' is not a number"),
        ("1 2\n3 4e\n", "t.csv:2: '4e' is not a number"),
    ],
)
def test_wrong_numbers(folder, text, message):
    with pytest.raises(DataError) as failure:
        parse(folder, text, dtype=np.float64)
    assert failure.value.cause == message


def test_line_longer_than_a_piece(folder):
    fields = [str(i / 8) for i in range(3000)]
    text = " ".join(fields) + "\n" + " ".join(reversed(fields)) + "\n"
    found = parse(folder, text, dtype=np.float64)
    assert (found == [np.arange(3000) / 8, np.arange(3000)[::-1] / 8]).all()


# Blocks and threads


def expected_ids(text, columns, limit):
    """Row of ids or what is told of the fault, of each line that has data: the obvious way."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(" \t\r") and not line.lstrip(" \t\r").startswith("#"):
            fields = [field.strip(" \r") for field in line.split(",")]
            if fields[-1] == "":
                fields.pop()  # the line ends there
            row = fields[:columns]
            faults = filter(None, (id_fault(field, limit) for field in row))
            few = f"{columns} columns expected, fewer found" if len(row) < columns else None
            fault = next(faults, few)
            yield f"{number}: {fault}" if fault else [int(field) for field in row]


def id_fault(field, limit):
    if not re.fullmatch(r"-?[0-9]{1,18}", field):
        return f"{field!r} is not an integer id"
    inside = 0 <= int(field) < limit
    return None if inside else f"node {int(field)} is outside the {limit} nodes"


LINES = st.one_of(
    st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda ids: f"{ids[0]},{ids[1]}"),
    st.integers(0, 80).map(lambda n: f" 7 , 8,{'x' * n}"),  # longer than a block, or not
    st.sampled_from(["", "  ", "#", "# 5,100", "5,6\r", "\r", "0005,6,7", "98,99,"]),
)
FAULTS = st.sampled_from(["5,100", "-1,5", "5,x", "5", "5,", ",5", "1.5,2", "5,1e3", "4 4,5"])


@settings(max_examples=300)
@given(data=st.data())
def test_ids_and_faults_whatever_the_blocks_and_threads(folder, data):
    lines = data.draw(st.lists(LINES, max_size=60))
    for fault in data.draw(st.lists(FAULTS, max_size=3)):
        lines.insert(data.draw(st.integers(0, len(lines))), fault)
    text = "\n".join(["1,2", *lines]) + data.draw(st.sampled_from(["", "\n", "\r\n"]))
    columns, drop = data.draw(st.sampled_from([1, 2])), data.draw(st.booleans())
    path = folder / data.draw(st.sampled_from(["t.csv", "t.csv.gz"]))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    expected = list(expected_ids(text, columns, 100))
    rows = [row for row in expected if isinstance(row, list)]
    told = [f"{path.name}:{fault}" for fault in expected if isinstance(fault, str)]
    before = threads.num_threads()
    threads.set_num_threads(data.draw(st.sampled_from([1, 2, 5])))
    try:
        with Workspace(folder, Ledger(Budget())) as space:
            space.piece_bytes = data.draw(st.integers(8, 600))
            dropped = Dropped() if drop else None
            table = TextTable(space, path, TextFormat(","), None, dropped)
            if told and not drop:
                with pytest.raises(DataError) as failure:
                    table.ids(columns, 100)
                assert failure.value.cause == told[0]
                return
            array = table.ids(columns, 100)
            found = [piece.copy().reshape(-1, columns) for piece in array.pieces()]
    finally:
        threads.set_num_threads(before)
    assert np.concatenate([np.empty((0, columns), int), *found]).tolist() == rows
    assert array.shape == ((len(rows),) if columns == 1 else (len(rows), columns))
    if drop:
        assert (dropped.count, dropped.first) == (len(told), told[:EXAMPLES])


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_fault_is_told_before_damage_that_follows_it(folder, num_threads):
    """Blocks are read ahead, but what comes first is told first."""
    path = folder / "both.txt.gz"
    text = "".join(f"{i % 10} {i % 7}\n" for i in range(3000))
    at = text.index("\n", 300) + 1
    path.write_bytes(gzip.compress((text[:at] + "8 x\n" + text[at:]).encode(), 0)[:-3000])
    before = threads.num_threads()
    threads.set_num_threads(num_threads)
    try:
        with Workspace(folder, Ledger(Budget())) as space:
            space.piece_bytes = 16 << 10
            table = TextTable(space, path, TextFormat())
            line = text[:at].count("\n") + 1
            with pytest.raises(DataError, match=rf"^both\.txt\.gz:{line}: 'x' is not an integer"):
                table.ids(2, 10)
    finally:
        threads.set_num_threads(before)


def test_largest_id(folder):
    path = folder / "largest.txt"
    for text, largest in (("3 4\n9 1 77\n", 9), ("# none\n", -1)):
        path.write_text(text)
        with Workspace(folder, Ledger(Budget())) as space:
            assert TextTable(space, path, TextFormat()).largest_id() == largest
