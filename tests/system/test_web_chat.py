"""The web chat in a real browser, in front of a real gateway and the embedded pair."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from slipstream.bearer_tokens import make_token
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.distilling.records import read_shards
from tests.dropping_proxy import DroppingProxy
from tests.gateway_process import GatewayProcess, gateway_process
from tests.system.conftest import PAPER_PAIR
from tools.chromium import MISSING, chromium, find_chromium

expect.set_options(timeout=60_000)  # a busy machine takes its time

QUESTION = "What does os.path.join do?"
LONG = Settings(temperature=5.0, seed=3, max_token_count=800, draft_length=0)
"""A turn of the embedded pair that is long and takes seconds on any machine."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip(MISSING)
    with chromium(program) as running:
        yield running


@pytest.fixture(scope="module")
def services() -> Iterator[LocalServices]:
    with LocalServices(PairSettings()) as local:
        yield local


def opened(browser: Browser, gateway: GatewayProcess, path: str = "/", **context: Any) -> Page:
    """A page in a context of its own. An error in its console fails the test that waits for it."""
    page = browser.new_context(reduced_motion="reduce", **context).new_page()
    page.set_default_timeout(60_000)
    page.goto(f"http://{gateway.address}{path}")
    return page


@pytest.fixture
def page(browser: Browser, gateway: GatewayProcess) -> Iterator[Page]:
    opened_page = opened(browser, gateway)
    errors: list[str] = []
    opened_page.on("pageerror", lambda error: errors.append(str(error)))
    opened_page.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)
    yield opened_page
    opened_page.context.close()
    assert errors == []


def ask(page: Page, content: str) -> None:
    page.get_by_label("Message", exact=True).fill(content)
    page.keyboard.press("Enter")


def wait_for_turns(page: Page, count: int) -> None:
    """Wait until so many turns are there, and the last one has ended."""
    expect(page.get_by_role("article")).to_have_count(count)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def answer(page: Page, turn: int) -> str:
    return page.get_by_role("article").nth(turn - 1).locator(".text").inner_text()


def session_id(page: Page) -> str:
    return page.url.rpartition("#")[2]


def choose(page: Page, **values: str) -> None:
    """Change settings, by the labels of their fields."""
    page.get_by_role("button", name="Settings").click()
    for label, value in values.items():
        field = page.get_by_role("dialog", name="Settings").get_by_label(label.replace("_", " "))
        if label == "Speculation":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name="Done").click()


def choose_long(page: Page) -> None:
    choose(page, Temperature="5", Most_tokens="800", Seed="3", Speculation="off")


@pytest.mark.essential
def test_three_turns_with_a_reload_in_the_middle_of_one(
    page: Page, services: LocalServices, grpc_client: Client
) -> None:
    ask(page, QUESTION)
    wait_for_turns(page, 1)
    choose_long(page)
    ask(page, "And json.dumps?")
    page.get_by_role("article").nth(1).locator("[data-token='9']").wait_for(state="attached")
    verifier = services.services["verifier"].process
    verifier.send_signal(signal.SIGSTOP)
    try:
        seen = answer(page, 2)
        page.reload()
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        page.get_by_role("article").nth(1).locator("[data-token='9']").wait_for(state="attached")
        assert answer(page, 2).startswith(seen[:20])
    finally:
        verifier.send_signal(signal.SIGCONT)
    wait_for_turns(page, 2)
    page.reload()
    ask(page, "Thanks!")
    wait_for_turns(page, 3)
    exported = grpc_client.export_session(session_id(page))["turns"]
    with grpc_client.create_session() as session:
        expected = [session.send(QUESTION).wait(), session.send("And json.dumps?", LONG).wait()]
    assert [turn["text"] for turn in exported[:2]] == [each.text for each in expected]
    assert answer(page, 1) == expected[0].text
    assert page.evaluate("document.querySelectorAll('article').length") == 3


@pytest.mark.parametrize("late", ["**/server", "**/export"])
def test_a_message_leaves_once_the_conversation_is_there(page: Page, grpc_client: Client, late: str) -> None:
    """Enter counts, however early it is pressed."""
    ask(page, QUESTION)
    wait_for_turns(page, 1)
    held: list[Route] = []
    page.route(late, lambda route: held.append(route), times=1)
    with page.expect_request(late):
        page.reload()
    ask(page, "Thanks!")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Thanks!")
    (held_request,) = held
    held_request.continue_()
    wait_for_turns(page, 2)
    assert [turn["turn"] for turn in grpc_client.export_session(session_id(page))["turns"]] == [1, 2]


def test_a_turn_ends_with_escape_and_keeps_its_text(page: Page, grpc_client: Client) -> None:
    choose_long(page)
    ask(page, QUESTION)
    page.locator("[data-token='3']").wait_for(state="attached")
    page.keyboard.press("Escape")
    expect(page.get_by_text("You stopped this answer.")).to_be_visible()
    (turn,) = grpc_client.export_session(session_id(page))["turns"]
    assert turn["finishReason"] == "FINISH_REASON_CANCELLED"
    assert 0 < len(turn["tokenIds"]) < 800


def test_an_answer_given_again_has_another_seed_and_the_first_one_stays(page: Page, grpc_client: Client) -> None:
    choose(page, Temperature="5", Most_tokens="12", Seed="3")
    ask(page, QUESTION)
    wait_for_turns(page, 1)
    first, text = session_id(page), answer(page, 1)
    page.get_by_role("button", name="Again").click()
    expect(page.get_by_text("Version 2 of 2")).to_be_visible()
    wait_for_turns(page, 1)
    second = session_id(page)
    seeds = [grpc_client.export_session(each)["turns"][0]["seed"] for each in (first, second)]
    assert seeds[0] == "3" != seeds[1]
    assert answer(page, 1) != text
    page.get_by_role("button", name="Earlier version").click()
    expect(page.get_by_text("Version 1 of 2")).to_be_visible()
    expect(page.locator(".text")).to_have_text(text)


def test_a_turn_of_several_messages_is_shown_and_answered_again(
    browser: Browser, gateway: GatewayProcess, grpc_client: Client
) -> None:
    first = grpc_client.create_session().session_id
    messages = [{"role": "ROLE_USER", "content": content} for content in ("Good morning.", QUESTION)]
    body = {"messages": messages, "settings": {"maxTokenCount": 3}}
    assert gateway.send(f"/slipstream/v1/sessions/{first}/messages", body).status == 200
    page = opened(browser, gateway, f"/#{first}")
    expect(page.get_by_role("article")).to_contain_text(f"Good morning.\n\n{QUESTION}")
    page.get_by_role("button", name="Again").click()
    expect(page).not_to_have_url(f"http://{gateway.address}/#{first}")
    wait_for_turns(page, 1)
    asked = grpc_client.get_turn(session_id(page), 1)
    assert [message.content for message in asked.messages] == ["Good morning.", QUESTION]
    page.context.close()


def test_settings_reach_the_turn_and_a_reload_keeps_them(page: Page, grpc_client: Client) -> None:
    choose(
        page,
        Temperature="0.5",
        Top_p="0.9",
        Most_tokens="4",
        Seed="9007199254740993",
        Speculation="off",
        System_prompt="Be brief.",
    )
    page.reload()
    ask(page, QUESTION)
    wait_for_turns(page, 1)
    asked = grpc_client.get_turn(session_id(page), 1)
    assert asked.system == "Be brief."
    assert asked.settings.sampling.temperature == pytest.approx(0.5)
    assert asked.settings.sampling.top_p == pytest.approx(0.9)
    assert asked.settings.sampling.seed == 9007199254740993
    assert asked.settings.max_token_count == 4
    assert asked.settings.speculation.WhichOneof("mode") == "off"
    expect(page.get_by_text("The answer reached the most tokens")).to_be_visible()


KEPT_OUT = "Keep my messages out of what is collected"


def test_a_page_of_a_server_that_collects_nothing_has_no_switch_for_it(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("dialog", name="Settings").get_by_label("Seed")).to_be_visible()
    expect(page.get_by_label(KEPT_OUT)).to_have_count(0)


def test_what_a_user_of_the_page_keeps_out_is_not_collected(browser: Browser, tmp_path: Path) -> None:
    flags = [*PAPER_PAIR.target_flags, "--collect", str(tmp_path / "out"), "--collect-text", "--collect-share", "1"]
    with (
        LocalServices(dataclasses.replace(PAPER_PAIR, target_flags=flags)) as services,
        gateway_process(services.orchestrator_address) as gateway,
        Client(services.orchestrator_address) as client,
    ):
        page = opened(browser, gateway)
        choose(page, Most_tokens="20", Speculation="fixed")  # hints, so that it can race without
        ask(page, "one")
        wait_for_turns(page, 1)
        page.get_by_role("button", name="Settings").click()
        page.get_by_label(KEPT_OUT).check()
        page.get_by_role("button", name="Done").click()
        page.get_by_role("button", name="Race it without hints").click()
        expect(page.locator(".verdict.good")).to_contain_text("The same")
        page.reload()
        ask(page, "two")
        wait_for_turns(page, 2)
        settings = [client.get_turn(session_id(page), turn).settings for turn in (1, 2)]
        assert [each.do_not_collect for each in settings] == [False, True]
        page.context.close()
    (record,) = read_shards(tmp_path / "out")
    assert len(record.chosen) == 20


def test_an_answer_without_hints_has_the_same_words(page: Page, grpc_client: Client) -> None:
    choose(page, Temperature="1", Speculation="fixed")
    ask(page, QUESTION)
    wait_for_turns(page, 1)
    before = len(list(grpc_client.list_sessions()))
    page.get_by_role("button", name="Race it without hints").click()
    expect(page.locator(".verdict.good")).to_contain_text("The same")
    expect(page.get_by_text("off: measured").first).to_be_attached()
    assert len(list(grpc_client.list_sessions())) == before  # the comparison's session is deleted


def test_tokens_have_origins_and_tell_their_alternatives(page: Page) -> None:
    choose(page, Speculation="fixed")
    ask(page, QUESTION)
    wait_for_turns(page, 1)
    assert page.locator(".text .token.hinted").count() > 0
    assert page.locator(".text .token").count() > page.locator(".text .token.hinted").count()
    page.locator("[data-token='2']").hover()
    expect(page.locator(".card tr")).to_have_count(5)
    page.mouse.move(0, 0)
    expect(page.locator(".card")).to_have_count(0)
    page.locator(".text").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token.chosen")).to_have_attribute("data-token", "1")
    page.keyboard.press("Escape")
    expect(page.locator(".card")).to_have_count(0)


def test_a_tap_shows_a_tokens_alternatives(browser: Browser, gateway: GatewayProcess) -> None:
    page = opened(browser, gateway, has_touch=True, viewport={"width": 390, "height": 780})
    ask(page, QUESTION)
    wait_for_turns(page, 1)
    page.locator("[data-token='2']").tap()
    expect(page.locator(".card tr")).to_have_count(5)
    page.locator(".asked").tap()
    expect(page.locator(".card")).to_have_count(0)
    page.context.close()


def test_conversations_are_renamed_and_deleted(page: Page, grpc_client: Client) -> None:
    page.get_by_label("Message", exact=True).fill("Two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    page.keyboard.press("Enter")
    wait_for_turns(page, 1)
    name = session_id(page)
    assert grpc_client.get_session(name).messages[0].content == "Two\nlines"
    row = page.get_by_role("listitem").filter(has_text="Two").first
    row.hover()
    row.get_by_role("button", name="Rename").click()
    page.get_by_label("New title").fill("A better title")
    page.keyboard.press("Enter")
    row = page.get_by_role("listitem").filter(has_text="A better title").first
    expect(row).to_be_visible()
    assert grpc_client.get_session(name).info.metadata["title"] == "A better title"
    row.hover()
    row.get_by_role("button", name="Delete A better title").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("article")).to_have_count(0)
    assert name not in [each.session_id for each in grpc_client.list_sessions()]


def test_a_lost_connection_is_made_again_and_no_token_comes_twice(
    browser: Browser, gateway: GatewayProcess, grpc_client: Client
) -> None:
    with DroppingProxy(gateway.address) as proxy:
        page = opened(browser, dataclasses.replace(gateway, address=proxy.address))
        choose_long(page)
        ask(page, QUESTION)
        page.locator("[data-token='3']").wait_for(state="attached")
        proxy.drop()
        wait_for_turns(page, 1)
        (turn,) = grpc_client.export_session(session_id(page))["turns"]
        expect(page.get_by_role("heading", name=f"{len(turn['tokenIds'])} tokens in").first).to_be_attached()
        page.context.close()


def test_a_killed_orchestrator_only_makes_the_page_wait(browser: Browser, tmp_path: Path) -> None:
    slow = PairSettings(
        target="arithmetic:ends=0&forward_ms=25",
        draft="",
        store=str(tmp_path / "sessions.db"),
        orchestrator_flags=["--session-lease-seconds", "5"],
    )
    with LocalServices(slow) as services, gateway_process(services.orchestrator_address) as gateway:
        page = opened(browser, gateway)
        choose(page, Most_tokens="300", Speculation="off")
        ask(page, "hello")
        page.locator("[data-token='3']").wait_for(state="attached")
        orchestrator = services.services["orchestrator"].process
        orchestrator.kill()
        orchestrator.wait()
        expect(page.get_by_text("The connection was lost.")).to_be_visible()
        services.start_orchestrator().wait_until_healthy()
        wait_for_turns(page, 1)
        expect(page.get_by_role("heading", name="300 tokens in").first).to_be_attached()
        with Client(services.orchestrator_address) as client:
            (turn,) = client.export_session(session_id(page))["turns"]
        assert len(turn["tokenIds"]) == 300
        page.context.close()


def test_tags_in_an_answer_are_text(page: Page) -> None:
    ask(page, QUESTION)
    wait_for_turns(page, 1)
    text = "<img src=x onerror=alert(1)> **bold** [a](javascript:alert(1)) [b](https://example.org) ```\n<b>"

    def answer_with_tags(route: Route) -> None:
        events: list[Mapping[str, Any]] = [
            {"turn": 1, "started": {"sessionId": "s", "seed": "1"}},
            {"turn": 1, "delta": {"text": text, "tokenIds": [1], "tokenTextByteCounts": [len(text)]}},
            {"turn": 1, "finished": {"finishReason": "FINISH_REASON_END_TOKEN"}},
        ]
        body = "".join(f"data: {json.dumps({'event': event})}\n\n" for event in events) + "data: [DONE]\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/events?*", answer_with_tags)
    page.reload()
    shown = page.locator(".text")
    expect(shown.locator("strong")).to_have_text("bold")
    expect(shown).to_contain_text("<img src=x onerror=alert(1)>")
    assert [link.get_attribute("href") for link in shown.locator("a").all()] == ["https://example.org"]
    assert shown.locator("img, b").count() == 0


@pytest.mark.parametrize(
    "context",
    [
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"color_scheme": "light", "viewport": {"width": 360, "height": 700}},
    ],
    ids=["light", "dark", "narrow"],
)
def test_axe_finds_nothing(browser: Browser, gateway: GatewayProcess, context: dict[str, Any]) -> None:
    page = opened(browser, gateway, **context)
    found: list[str] = []

    def look() -> None:
        found.extend(f"{each['id']}: {each['nodes'][0]['html']}" for each in Axe().run(page).response["violations"])

    expect(page.get_by_role("button", name=QUESTION, exact=True)).to_be_enabled()
    look()
    page.get_by_role("button", name=QUESTION, exact=True).click()
    wait_for_turns(page, 1)
    page.locator(".text").focus()
    page.keyboard.press("ArrowRight")
    look()
    if "viewport" in context:
        page.get_by_text("How the last answer came").click()
        page.get_by_role("button", name="Conversations").click()
        look()
    page.get_by_role("button", name="Settings").click()
    look()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.context.close()
    assert found == []


@pytest.mark.essential
def test_a_session_of_another_principal_is_refused(browser: Browser, tmp_path: Path) -> None:
    tokens = {name: make_token() for name in ("alice", "bob")}
    lines = [
        f'[[principals]]\nname = "{name}"\ntokens = [{{ id = "{kept.id}", salt = "{kept.salt}", sha256 = "{kept.sha256}" }}]'
        for name, (_, kept) in tokens.items()
    ]
    (tmp_path / "access.toml").write_text("\n".join(lines))
    guarded = dataclasses.replace(PAPER_PAIR, orchestrator_flags=["--access", str(tmp_path / "access.toml")])
    with LocalServices(guarded) as services, gateway_process(services.orchestrator_address) as gateway:
        headers = {"authorization": f"Bearer {tokens['alice'][0]}"}
        created = gateway.send("/slipstream/v1/sessions", {"metadata": {"title": "of alice"}}, headers)
        page = opened(browser, gateway, f"/#{created.body['session']['id']}")
        dialog = page.get_by_role("dialog", name="This server asks for a token")
        expect(dialog).to_be_visible()
        dialog.get_by_label("Access token").fill(tokens["bob"][0])
        dialog.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("alert")).to_contain_text("no session")
        expect(page.get_by_text("of alice")).to_have_count(0)
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("dialog", name="Settings").get_by_label("Access token").fill(tokens["alice"][0])
        page.get_by_role("button", name="Done").click()
        expect(page.get_by_text("of alice").first).to_be_visible()
        page.reload()  # the tab keeps the token
        expect(page.get_by_text("of alice").first).to_be_visible()
        page.context.close()
