"""The field of noise: its definition in plain integers, its distribution, and that nothing else has
a part in it."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.stats import expon, kstest

from slipstream.sampling.kernel import (
    BLOCK,
    Domain,
    Floats,
    _exp,
    coin,
    first_arrival,
    first_place,
    most_noise,
    other_arrivals,
    random_words,
    second_arrival,
)
from slipstream.sampling.rule import SAMPLING_VERSION
from tests import oracle

# Of Random123's kat_vectors for philox4x64-10, for counter and key zero.
KNOWN_ANSWER = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
LOW = 2**64 - 1
PINNED = [2.003065984966183, 0.19872818286588978, 2.742994575865911]


def philox4x64(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10, written out from the paper."""
    for _ in range(10):
        first, second = counter[0] * 0xD2E7470EE14C6C93, counter[2] * 0xCA5A826395121157
        counter = [second >> 64 ^ counter[1] ^ key[0], second & LOW, first >> 64 ^ counter[3] ^ key[1], first & LOW]
        key = [key[0] + 0x9E3779B97F4A7C15 & LOW, key[1] + 0xBB67AE8584CAA73B & LOW]
    return counter


def word(seed: int, position: int, domain: Domain, index: int) -> int:
    return philox4x64([1 + index // 4, position, domain, 0], [seed, 0])[index % 4]


def wait(bits: int) -> float:
    return -math.log(((bits >> 12) + 0.5) / 2**52)


def by_the_definition(seed: int, position: int, block: int) -> list[float]:
    """When each token of a block arrives."""
    heads = [word(seed, position, domain, block) for domain in (Domain.FIRST, Domain.SECOND)]
    first, place = wait(heads[0]) / BLOCK, heads[0] % BLOCK
    second = first + wait(heads[1]) / (BLOCK - 1)
    waits = [wait(word(seed, position, Domain.OTHERS, block * BLOCK + token)) for token in range(BLOCK)]
    least = min(each for token, each in enumerate(waits) if token != place)
    return [first if token == place else second + (each - least) for token, each in enumerate(waits)]


def arrivals(seed: int, position: int, block: int) -> Floats:
    """When each token of a block arrives, by the functions that choose."""
    start = block // 4 * 4
    words, times = random_words(seed, position, Domain.FIRST, start, 4), np.empty(BLOCK)
    first, place = first_arrival(words[block - start]), first_place(words[block - start])
    second = second_arrival(np.uint64(seed), np.uint64(position), block, first)
    other_arrivals(np.uint64(seed), np.uint64(position), block, place, second, times)
    assert math.isinf(times[place]) and times.min() == pytest.approx(second, rel=1e-12)
    times[place] = first
    return times


def field(seed: int, position: int, count: int) -> Floats:
    """The noise of the tokens 0 to ``count`` - 1, a multiple of 64."""
    noise: Floats = -np.log(np.concatenate([arrivals(seed, position, block) for block in range(count // BLOCK)]))
    return noise


def test_philox_written_out_gives_the_published_answer() -> None:
    assert philox4x64([0] * 4, [0] * 2) == KNOWN_ANSWER


@pytest.mark.parametrize("domain", Domain)
def test_seed_position_use_and_index_each_have_their_place_in_key_and_counter(domain: Domain) -> None:
    """Were any of them exchanged, draft and target would still agree, on another text."""
    seed, position, start = 0x299F31D0A4093822, 0x5_0000_0007, 4 * 0x243F6A88
    expected = [word(seed, position, domain, start + index) for index in range(7)]
    assert random_words(seed, position, domain, start, 7).tolist() == expected


def test_noise_does_not_depend_on_earlier_draws() -> None:
    first = random_words(3, 4, Domain.OTHERS, 64, 5).tolist()
    random_words(9, 1, Domain.FIRST, 0, 3)
    assert random_words(3, 4, Domain.OTHERS, 64, 5).tolist() == first


@pytest.mark.parametrize(("seed", "position", "block"), [(0, 0, 0), (7, 31, 2), (2**63 - 1, 2**31, 2003)])
def test_a_blocks_arrivals_are_as_they_are_defined(seed: int, position: int, block: int) -> None:
    assert arrivals(seed, position, block).tolist() == pytest.approx(
        by_the_definition(seed, position, block), rel=1e-12
    )


def test_the_bound_on_a_first_arrivals_noise_is_one_and_near() -> None:
    words = [*random_words(5, 6, Domain.FIRST, 0, 4000), *(np.uint64(2**64 - 2**shift) for shift in range(64))]
    words += [np.uint64(0), np.uint64(2**64 - 1), np.uint64(2**63 - 1)]
    slack = np.array([most_noise(word) + math.log(first_arrival(word)) for word in words])
    assert slack.min() > -1e-9, "but for rounding, for which a near tie leaves room"
    assert np.median(slack[:4000]) < 2.2


def test_what_texts_are_compared_with_is_the_same_field() -> None:
    for seed, position in ((0, 0), (2**63 - 1, 2**31), (8, 31)):
        assert oracle.field(seed, position, 640) == pytest.approx(field(seed, position, 640), rel=1e-10)


def test_the_field_is_what_it_always_was() -> None:
    """Values of this version: a text must not change with the release. A change of them raises
    the version."""
    got = [field(seed, position, 128)[token] for seed, position, token in ((7, 0, 0), (7, 31, 5), (8, 31, 100))]
    assert SAMPLING_VERSION == 3
    assert got == pytest.approx(PINNED, rel=1e-12)


def test_threads_draw_without_disturbing_one_another() -> None:
    def draw(seed: int) -> list[list[int]]:
        return [random_words(seed, position, Domain.OTHERS, 0, 9).tolist() for position in range(300)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw, range(8))) == [draw(seed) for seed in range(8)]


def test_arrivals_are_independent_exponentials() -> None:
    """Each token's own over many seeds, and all tokens' of one seed; and neighbours of a block know
    nothing of one another."""
    one_seed = np.exp(-field(5, 1, 128_000))
    assert kstest(one_seed, expon.cdf).pvalue > 1e-4
    many = np.exp(-np.stack([field(seed, 9, BLOCK) for seed in range(4000)]))
    for token in (0, 17, 63):
        assert kstest(many[:, token], expon.cdf).pvalue > 1e-4
    correlations = np.corrcoef(np.minimum(many, 1.0).T) - np.eye(BLOCK)
    assert np.abs(correlations).max() < 5.5 / math.sqrt(4000)
    smallest = many.argmin(axis=1)
    assert np.bincount(smallest, minlength=BLOCK).std() < 2 * math.sqrt(4000 / BLOCK)
    lone = expon.cdf(many[np.arange(4000), smallest] * BLOCK)
    assert kstest(lone, "uniform").pvalue > 1e-4


def test_coins_are_fair_and_every_use_has_its_own() -> None:
    coins = np.array([[coin(seed, 3, domain) for domain in Domain] for seed in range(3000)])
    assert ((coins > 0) & (coins < 1)).all()
    for use in range(len(Domain)):
        assert kstest(coins[:, use], "uniform").pvalue > 1e-4
    assert np.abs(np.corrcoef(coins.T) - np.eye(len(Domain))).max() < 0.1


def test_weights_are_exponentials_to_two_units_in_the_last_place() -> None:
    exponents = np.concatenate([np.linspace(-87, 0, 5_001), np.linspace(-0.7, 0, 5_001)]).astype(np.float32)
    found = np.array([_exp(exponent) for exponent in exponents])
    exact = np.exp(exponents.astype(np.float64))
    assert (np.abs(found - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
    assert [float(_exp(np.float32(exponent))) for exponent in (0.0, -87.5, -np.inf)] == [1.0, 0.0, 0.0]
