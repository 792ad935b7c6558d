"""Take the pictures of the web chat in docs/pictures: python -m tools.picture_web_chat.

The embedded pair answers with seven hints a step, and at a temperature at which some are wrong: the
pictures show all origins.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from slipstream.cli.local import LocalServices, PairSettings, free_address
from tools.chromium import MISSING, chromium, find_chromium

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 780}
KEPT_SETTINGS = '{"speculation": "fixed", "draftLength": "7", "temperature": "1.2", "seed": "5"}'
QUESTIONS = (
    "What does os.path.join do?",
    "And collections.Counter?",
    "My colleague uses functools.partial everywhere. Why would one need that?",
)


def take(browser: Browser, address: str, name: str, *, chats: bool, **context: Any) -> None:
    """Take one picture: of a conversation, or of the first screen."""
    page = browser.new_context(reduced_motion="reduce", **context).new_page()
    page.add_init_script(f"localStorage.setItem('slipstream.settings', '{KEPT_SETTINGS}')")
    page.goto(f"http://{address}/")
    page.locator(".prompt:enabled").first.wait_for()
    if chats:
        _chat(page)
    page.screenshot(path=PICTURES / f"web-chat-{name}.png")
    page.context.close()


def _chat(page: Page) -> None:
    for number, question in enumerate(QUESTIONS, 1):
        page.get_by_label("Message", exact=True).fill(question)
        page.keyboard.press("Enter")
        page.get_by_role("article").nth(number - 1).get_by_role("button", name="Again").wait_for()
    page.get_by_role("button", name="Race it without hints").click()
    page.locator(".verdict.good").wait_for()
    page.get_by_role("article").last.locator(".token.recovered").last.hover()
    page.wait_for_timeout(400)  # until bars have grown


def main() -> None:
    """Take all pictures. Exits with one line where there is no browser."""
    program = find_chromium()
    if program is None:
        sys.exit(MISSING)
    address = free_address()
    with LocalServices(PairSettings(), gateway=address), chromium(program) as browser:
        take(browser, address, "first", chats=False, viewport=WIDE)
        take(browser, address, "light", chats=True, viewport=WIDE)
        take(browser, address, "dark", chats=True, viewport=WIDE, color_scheme="dark")
        take(browser, address, "narrow", chats=True, viewport=NARROW)


if __name__ == "__main__":
    main()
