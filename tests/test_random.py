"""Draws are functions of their key, spread evenly; permutations are bijections of any range."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import oracles
from gnnx.random import Key, below, mix, mix_int, permute
from gnnx.threads import kernel

SMALL = 1e-6  # p-value below which a spread is called uneven; examples are the same in every run


@kernel
def _mixed(values, out):
    for i in range(len(values)):
        out[i] = mix(values[i])


@kernel
def _below(bits, bound, out):
    for i in range(len(bits)):
        out[i] = below(bits[i], bound)


def _uneven(counts):
    """p-value of a chi-square test of equal counts."""
    return stats.chisquare(np.ravel(counts)).pvalue


def _mix_array(values):
    out = np.empty(len(values), np.uint64)
    _mixed(np.array(values, np.uint64), out)
    return out.tolist()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_mix_is_splitmix64(values):
    expected = [oracles.mix(value) for value in values]
    assert _mix_array(values) == expected
    assert [mix_int(value) for value in values] == expected


def test_mix_of_published_stream():
    """First outputs of SplitMix64 seeded with 1234567, as its reference program prints them."""
    gamma = 0x9E3779B97F4A7C15
    states = [(1234567 + i * gamma) % 2**64 for i in range(1, 6)]
    assert _mix_array(states) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(), st.integers(1, 2**32 - 1))
def test_below_is_the_scaled_high_word(seed, bound):
    bits = np.array([0, 2**64 - 1, mix_int(seed), mix_int(seed + 1)], np.uint64)
    out = np.empty(4, np.int64)
    _below(bits, bound, out)
    assert out.tolist() == [(int(b) >> 32) * bound >> 32 for b in bits]
    assert out[0] == 0
    assert out[1] == bound - 1


@given(st.tuples(*[st.integers(-(2**63), 2**64 - 1)] * 4))
def test_fold_follows_its_formula(parts):
    assert Key(*parts).fold() == oracles.fold(parts)
    assert 0 <= Key(*parts).fold() < 2**64


def test_fold_tells_keys_apart():
    """By value and by place: (1, 0) is not (0, 1)."""
    few = itertools.product(range(-1, 9), repeat=4)
    many = (
        (seed, 0, step, layer) for seed in range(10) for step in range(1000) for layer in (0, 1)
    )
    keys = {Key(*parts) for parts in itertools.chain(few, many)}
    assert len({key.fold() for key in keys}) == len(keys)


def test_fold_spreads_bits_of_neighbouring_keys():
    """Each bit of the digest flips in about half of the steps from a key to the next."""
    folds = np.array([Key(0, 0, step).fold() for step in range(4096)], np.uint64)
    flips = folds[1:] ^ folds[:-1]
    share = [(flips >> np.uint64(bit) & np.uint64(1)).mean() for bit in range(64)]
    assert 0.45 < min(share) < max(share) < 0.55


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 1000, 4096, 4097, 100_003])
def test_permute_is_a_bijection(size):
    image = permute(np.arange(size), size, Key(size))
    assert image.dtype == np.int64
    assert np.array_equal(np.sort(image), np.arange(size))


@given(st.integers(1, 20_000), st.integers(0, 2**63))
@settings(max_examples=50)
def test_permute_is_a_bijection_of_any_size(size, seed):
    image = permute(np.arange(size), size, Key(seed))
    assert np.array_equal(np.sort(image), np.arange(size))


@given(st.integers(1, 2**62), st.data())
def test_permute_position_by_position(size, data):
    """Part of a range has the images it has in the whole, and large ranges cost no memory."""
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), np.int64)
    image = permute(positions, size, Key(7, 1))
    assert len(set(image.tolist())) == len(set(positions.tolist()))
    assert all(0 <= value < size for value in image.tolist())
    one_by_one = [permute(positions[i : i + 1], size, Key(7, 1))[0] for i in range(len(positions))]
    assert image.tolist() == one_by_one


@given(st.integers(1, 2**40), st.integers(-5, 2**63), st.data())
def test_permute_is_the_network_it_says(size, seed, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), max_size=10))
    key = Key(seed, 1, 2, 3)
    expected = [oracles.permuted(position, size, oracles.fold(key)) for position in positions]
    assert permute(np.array(positions, np.int64), size, key).tolist() == expected


def test_permute_of_nothing():
    assert permute(np.empty(0, np.int64), 0, Key(0)).shape == (0,)
    assert permute(np.empty(0, np.int64), 5, Key(0)).shape == (0,)


@pytest.mark.parametrize(("position", "size"), [(0, 0), (5, 5), (-1, 5), (2**40, 3)])
@pytest.mark.timeout(20)
def test_permute_refuses_what_it_would_walk_for_ever(position, size):
    with pytest.raises(ValueError, match=rf"outside \[0, {size}\)"):
        permute(np.array([position]), size, Key(0))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_small_permutations_are_equally_likely(size):
    orders = list(itertools.permutations(range(size)))
    counts = dict.fromkeys(orders, 0)
    for seed in range(400 * math.factorial(size)):
        counts[tuple(permute(np.arange(size), size, Key(seed)).tolist())] += 1
    assert _uneven(list(counts.values())) > SMALL


@pytest.mark.parametrize("size", [5, 6, 8, 17, 30])
def test_every_position_goes_everywhere(size):
    counts = np.zeros((size, size))
    for seed in range(300 * size):
        counts[np.arange(size), permute(np.arange(size), size, Key(0, seed))] += 1
    for row in counts:
        assert _uneven(row) > SMALL


@pytest.mark.parametrize("size", [1000, 65536, 1_000_000])
def test_a_permutation_looks_like_a_shuffle(size):
    """Its start is spread over the range, and neighbours do not stay neighbours."""
    image = permute(np.arange(size), size, Key(3))
    first = image[: size // 10]
    assert _uneven(np.bincount(first * 10 // size, minlength=10)) > SMALL
    steps = (image[1:] - image[:-1]) % size
    assert _uneven(np.bincount(steps * 10 // size, minlength=10)) > SMALL
    fixed = int((image == np.arange(size)).sum())
    assert fixed < 12  # one is expected; P(12 or more) is about 1e-9
    assert abs(np.corrcoef(image, np.arange(size))[0, 1]) < 6 / math.sqrt(size)


def test_epochs_have_orders_of_their_own():
    orders = [permute(np.arange(1000), 1000, Key(0, epoch)) for epoch in range(5)]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).sum() < 12
