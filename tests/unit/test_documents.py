"""The documents: links lead to a file and a heading, and the limits on their size hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT, anchors, blocks, links, shown_blocks
from tools.reference.payoff import best_length, expected_tokens, synchronous_speedup


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize(
    ("name", "most_lines"),
    [("README.md", 120), ("docs/architecture.md", 200), ("docs/benchmarks/README.md", 120), ("CHANGELOG.md", 120)],
)
def test_a_page_stays_within_its_lines(name: str, most_lines: int) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= most_lines


def test_the_readme_has_at_most_1400_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1400


def test_every_block_of_readme_and_guides_says_what_it_is() -> None:
    known = {"sh", "python", "js", "console", "text", "toml"}
    assert [
        block.place for block in shown_blocks("") + shown_blocks(*{b.language for b in shown_blocks()} - known)
    ] == []


def test_pages_with_programs_for_node_are_those_whose_programs_tests_run() -> None:
    # test_openai_libraries.py runs those of the first page, test_node_client.py the others.
    assert {block.page.name for block in shown_blocks("js")} == {"clients.md", "other-languages.md"}


def test_every_decision_has_a_number_of_its_own() -> None:
    names = [path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")]
    assert len({name[:4] for name in names}) == len(names)


def test_no_page_has_an_open_fence() -> None:
    for page in PAGES:
        fences = len(re.findall(r"^```", page.read_text(), re.MULTILINE))
        assert fences == 2 * len(list(blocks(page))), page


def test_the_formula_of_what_speculation_brings_agrees_with_sums_by_hand() -> None:
    # By hand: K = 2 and a = 0.5 bring 1 + 0.5 + 0.25 tokens. A round takes 20 + 2 * 3 + 10 ms,
    # beside 20 ms a token.
    assert expected_tokens(0.5, 2) == pytest.approx(1.75)
    assert synchronous_speedup(0.5, 20, 10, 3, 2) == pytest.approx(1.75 * 20 / 36)
    speeds = [synchronous_speedup(0.8, 25, 10, 3, length) for length in range(1, 33)]
    assert best_length(0.8, 25, 10) == 1 + speeds.index(max(speeds))
