import math

import numpy as np
import pytest

from slipstream.sampling.noise import GUMBEL_SPAN, Domain, Words, gumbel, philox4x32, uniform

# Random123's kat_vectors for philox4x32-10: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
PINNED = [3.06903732495041, 0.9124332578255425, 1.0571368983121008]


def words(text: str) -> tuple[Words, ...]:
    return tuple(np.array([int(word, 16)], dtype=np.uint64) for word in text.split())


def u64(*values: int) -> Words:
    return np.array(values, dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, result: str) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    assert [int(word[0]) for word in philox4x32((c0, c1, c2, c3), (k0, k1))] == [int(w[0]) for w in words(result)]


def test_uniform_reads_the_lane_that_the_token_names() -> None:
    seed = 0x299F31D0A4093822
    lanes = philox4x32((u64(5), u64(7), u64(0), u64(0)), (u64(seed & 0xFFFFFFFF), u64(seed >> 32)))
    got = uniform(u64(*[seed] * 4), u64(7, 7, 7, 7), u64(20, 21, 22, 23))
    assert got.tolist() == [((int(lane[0]) >> 8) + 0.5) / 2**24 for lane in lanes]


@pytest.mark.parametrize("domain", range(4))
def test_seed_position_token_and_use_each_have_their_place_in_key_and_counter(domain: int) -> None:
    """Written out in plain integers: were any of them exchanged, draft and target would still agree, on another text."""
    seed, position, token = 0x299F31D0A4093822, 0x5_0000_0007, 4 * 0x243F6A88 + 2
    low, high = 0xFFFFFFFF, 32
    counter = (u64(token // 4), u64(position & low), u64(position >> high), u64(domain))
    word = int(philox4x32(counter, (u64(seed & low), u64(seed >> high)))[2][0])
    u = ((word >> 8) + 0.5) / 2**24
    assert uniform(u64(seed), u64(position), u64(token), Domain(domain)).tolist() == [u]
    noise = gumbel(u64(seed), u64(position), u64(token), Domain(domain))
    assert noise == pytest.approx(-math.log(-math.log(u)), rel=1e-12)


def test_a_choices_noise_is_what_it_always_was() -> None:
    """Values of this release: a text must not change with the version."""
    assert gumbel(u64(7, 7, 8), u64(0, 31, 31), u64(0, 5, 5)) == pytest.approx(PINNED, rel=1e-12)


def test_noise_is_the_same_alone_and_in_any_batch() -> None:
    tokens = np.arange(1000, dtype=np.uint64)
    many = gumbel(np.full(1000, 9, np.uint64), np.full(1000, 3, np.uint64), tokens)
    assert [gumbel(u64(9), u64(3), u64(token))[0] for token in (0, 1, 500, 999)] == many[[0, 1, 500, 999]].tolist()


def test_span_is_the_distance_of_the_extreme_values() -> None:
    smallest, largest = 0.5 / 2**24, 1 - 0.5 / 2**24
    assert pytest.approx(-np.log(-np.log(largest)) + np.log(-np.log(smallest)), abs=1e-6) == GUMBEL_SPAN
    drawn = gumbel(np.full(100_000, 1, np.uint64), np.zeros(100_000, np.uint64), np.arange(100_000, dtype=np.uint64))
    assert drawn.max() - drawn.min() < GUMBEL_SPAN
