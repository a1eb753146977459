"""Counter-based draws: every random number is a pure function of a key and a position.

Nothing is drawn from a stream, so results depend on no thread, worker, rank or resume point, and
the draws of batches to come are known in advance. The mixing function is the finaliser of
SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnnx import threads
from gnnx.threads import inlined, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: SplitMix64's increment
_MASK = (1 << 64) - 1
_GRAIN = 1 << 12  # positions


class Key(NamedTuple):
    """What a draw is keyed by; together with a node's id it names one draw of a whole training."""

    seed: int
    epoch: int = 0
    step: int = 0
    layer: int = 0

    def fold(self) -> int:
        """64-bit digest: state = mix(state ^ mix((part + 1) * gamma)) over the parts in order."""
        state = 0
        for part in self:
            state = mix_int(state ^ mix_int((part + 1) * GAMMA & _MASK))
        return state


def mix_int(value: int) -> int:
    """SplitMix64's finaliser on one Python integer: the reference of `mix`."""
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


@inlined
def mix(value: Any) -> Any:
    """SplitMix64's finaliser on a uint64, inside kernels."""
    x = np.uint64(value)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inlined
def below(bits: Any, bound: Any) -> Any:
    """Integer in [0, bound) from 64 random bits, for bound < 2^32: the high word, scaled.

    The bias is below bound / 2^32, which no test of a sampler can see for real degrees.
    """
    return np.int64(((bits >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@inlined
def _half_bits(size: Any) -> Any:
    """Half the bits h of a network over [0, size): 4^h >= size."""
    half = 1
    while (1 << (2 * half)) < size:
        half += 1
    return half


@inlined
def _turned(value: Any, half: Any, state: Any) -> Any:
    """Image of a uint64 of 2·half bits under a six-round Feistel network."""
    mask = np.uint64((1 << half) - 1)
    left, right = value >> np.uint64(half), value & mask
    for turn in range(6):
        turned = mix(right ^ (state + np.uint64(turn) * np.uint64(GAMMA)))
        left, right = right, left ^ (turned & mask)
    return (left << np.uint64(half)) | right


@inlined
def permuted(position: Any, size: Any, state: Any) -> Any:
    """Image of a position in [0, size) under the permutation that a uint64 stands for.

    A six-round Feistel network on twice h bits, 4^h >= size, with cycle walking (Black and Rogaway,
    "Ciphers with arbitrary finite domains", 2002): at most 4 walks on average.
    """
    half = _half_bits(size)
    value = np.uint64(position)
    while True:
        value = _turned(value, half, state)
        if value < np.uint64(size):
            return np.int64(value)


@kernel
def _permute(positions: Any, size: Any, state: Any, out: Any) -> None:
    """As `permuted`, a step of all positions at a time, which the processor overlaps."""
    half, count = _half_bits(size), len(positions)
    out[:] = positions
    walking = np.arange(count)
    while count > 0:
        outside = 0
        for k in range(count):
            i = walking[k]
            value = _turned(np.uint64(out[i]), half, state)
            out[i] = np.int64(value)
            walking[outside] = i
            outside += value >= np.uint64(size)
        count = outside


def permute(positions: NDArray[np.int64], size: int, key: Key) -> NDArray[np.int64]:
    """Images of positions under a keyed permutation of [0, size), as `permuted` has them.

    Computed position by position, so that no array of `size` exists.

    Parameters
    ----------
    positions
        (B,) int64, each in [0, size).
    size
        Size of the permuted range.
    key
        Which permutation.

    Returns
    -------
    ndarray
        (B,) int64, distinct for distinct positions, each in [0, size).

    Raises
    ------
    ValueError
        A position is outside [0, size): its cycle need never enter the range.
    """
    if len(positions) and not 0 <= positions.min() <= positions.max() < size:
        raise ValueError(f"positions outside [0, {size})")
    out = np.empty(len(positions), np.int64)
    given, state = np.ascontiguousarray(positions, np.int64), np.uint64(key.fold())
    threads.run(
        lambda begin, end: _permute(given[begin:end], size, state, out[begin:end]),
        len(given),
        grain=_GRAIN,
    )
    return out
