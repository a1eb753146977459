"""Keys dealt to buckets on disk, kept once each and looked up, against a dictionary."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnx.errors import BudgetError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.prepare.arrays import Workspace
from gnnx.prepare.lookup import KeyList

TEXTS = st.text(st.sampled_from("ab\0\u00e9\u65e5"), max_size=20) | st.sampled_from(
    ["a" * 4000, "a" * 3999 + "b", "customer-1", "customer-2"]
)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)


def listed(workspace, kind, *columns, ids=None, step=7):
    keys = KeyList(workspace)
    for i in range(0, len(columns[0]), step):
        some = None if ids is None else ids[i : i + step]
        keys.add([pa.array(column[i : i + step], kind) for column in columns], some)
    keys.close()
    return keys


@pytest.mark.parametrize("memory", ["1MiB", None])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_keys_are_kept_once_and_found(tmp_path_factory, memory, data):
    kind, draw = data.draw(st.sampled_from([(pa.string(), TEXTS), (pa.int64(), INTEGERS)]))
    rows = data.draw(st.lists(st.tuples(*2 * [st.none() | draw]), max_size=60))
    sources, targets = ([row[i] for row in rows] for i in range(2))
    keys = [key for row in rows for key in row]
    others = data.draw(st.lists(draw, unique=True, max_size=20))
    chosen = sorted({*others, *keys[::3]} - {None})
    ids = np.arange(len(chosen)) * 3 + 1
    expected = dict(zip(chosen, ids.tolist(), strict=True))
    folder = tmp_path_factory.mktemp("scratch")
    with Workspace(folder, Ledger(Budget.parse(memory or "64MiB"))) as workspace:
        ends = listed(workspace, kind, sources, targets)
        distinct = [key for array in ends.distinct() for key in array.to_pylist()]
        assert len(distinct) == len(set(distinct))
        assert set(distinct) == {*keys} - {None}
        known = listed(workspace, kind, chosen, ids=ids)
        found = [x for piece in ends.look_up(known, np.dtype(np.int32)) for x in piece.T.ravel()]
    assert found == [expected.get(key, -1) for key in keys]


def test_many_keys_in_little_memory_and_any_number_of_threads(tmp_path):
    """Tables grow, records cross the ends of pieces, and one key is there very often."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 50_000, 300_000)
    numbers[::3] = 7
    keys = [f"key {number}" for number in numbers]
    with Workspace(tmp_path, Ledger(Budget.parse("16MiB"))) as workspace:
        ends = listed(workspace, pa.string(), keys[::2], keys[1::2], step=1 << 14)
        distinct = pa.concat_arrays(list(ends.distinct())).to_pylist()
        assert sorted(distinct) == sorted(set(keys))
        ids = np.array([int(key[4:]) for key in distinct])
        known = listed(workspace, pa.string(), distinct, ids=ids, step=1 << 14)
        found = [piece.T.ravel() for piece in ends.look_up(known, np.dtype(np.int64))]
        assert np.array_equal(np.concatenate(found), numbers)
        assert workspace.ledger.peak_bytes(Tier.HOST) <= 16 << 20


def test_a_bucket_too_large_for_the_memory_is_refused(tmp_path):
    keys = [f"{number:0500}" for number in range(60_000)]
    with (
        Workspace(tmp_path, Ledger(Budget.parse("1MiB"))) as workspace,
        pytest.raises(BudgetError, match="keys needs"),
    ):
        list(listed(workspace, pa.string(), keys, step=1 << 14).distinct())
