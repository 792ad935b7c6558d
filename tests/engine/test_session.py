import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from orchestrator.chat_templates.rendering import Rendered
from orchestrator.errors import AcceptanceFixedError, SessionBusyError
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import Message, TemplateOptions, from_user
from orchestrator.sessions.conversation.next_prompt import next_prompt
from orchestrator.sessions.conversation.session import Session, common_prefix_length
from orchestrator.sessions.conversation.turn_limits import FinishReason, TurnLimits
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.sampling.rule import Acceptance, SamplingRule

FILES = load_tokenizer_files(str(embedded_directory("target"))).files
END = 2
CLOCK = datetime(2026, 11, 22, tzinfo=UTC)


def codec(template: str | None = None) -> Codec:
    text = template or FILES["chat_template.jinja"].decode()
    return Codec(FILES["tokenizer.json"], json.loads(FILES["tokenizer_config.json"]), text)


RULE = SamplingRule(end_token_ids=(END,))


def limits(max_token_count: int = 100, context_length: int = 1000, stops: tuple[str, ...] = ()) -> TurnLimits:
    return TurnLimits(max_token_count, context_length, stops)


def say(session: Session, content: str, answer: str, *, end: bool = True) -> None:
    """A whole turn."""
    turn = session.begin_turn(next_prompt(session, from_user(content)).tokens(), RULE, limits(), from_user(content))
    turn.commit(session.codec.encode_rendered(answer) + ([END] if end else []))
    if turn.finish_reason is None:
        turn.cut_short()
    session.end_turn()


def test_a_turn_commits_up_to_its_end_token_and_drops_the_rest() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5, 6, 7], RULE, limits(), from_user("hello"))
    words = session.codec.encode_rendered("Return a list")
    commit = turn.commit([*words, END, 99, 98])
    assert commit.tokens == (*words, END)
    assert "".join(commit.texts) == "Return a list"
    assert commit.finish_reason is FinishReason.END_TOKEN
    session.end_turn()
    assert session.tokens == [5, 6, 7, *words, END]
    assert session.messages == [Message("user", "hello"), Message("assistant", "Return a list")]


def test_limits_end_a_turn_and_flush_its_text() -> None:
    session = Session("s", codec(), CLOCK)
    words = session.codec.encode_rendered("one two three four five six")
    turn = session.begin_turn([5], RULE, limits(max_token_count=3, stops=("zzz",)))
    assert turn.room == 3
    assert turn.commit(words).tokens == tuple(words[:3])
    assert turn.finish_reason is FinishReason.MAX_TOKENS
    assert turn.text == session.codec.decode(words[:3])
    session.end_turn()
    turn = session.begin_turn([5, 6], RULE, limits(context_length=4))
    turn.commit(words)
    assert turn.finish_reason is FinishReason.CONTEXT_LENGTH
    assert len(session.tokens) == 4


def test_a_stop_string_across_token_borders_ends_the_turn_before_it() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, limits(stops=("two th",)))
    words = session.codec.encode_rendered("one two three four")
    text = "".join(turn.commit([token]).texts[0] for token in words if turn.finish_reason is None)
    assert text == "one "
    assert turn.finish_reason is FinishReason.STOP_STRING
    assert len(session.tokens) < 1 + len(words)


def test_the_next_prompt_keeps_what_was_generated_and_adds_only_what_follows() -> None:
    session = Session("s", codec(), CLOCK)
    say(session, "What is len?", "Return the number of items.")
    before = list(session.tokens)
    prompt = next_prompt(session, from_user("And max?")).tokens()
    assert prompt[: len(before)] == before
    rest = session.codec.tokenizer.decode(prompt[len(before) :], skip_special_tokens=False)
    assert rest == "\n<|im_start|>user\nAnd max?<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_cut_short_is_closed_by_the_template() -> None:
    session = Session("s", codec(), CLOCK)
    say(session, "What is len?", "Return the", end=False)
    prompt = next_prompt(session, from_user("And max?")).tokens()
    text = session.codec.tokenizer.decode(prompt, skip_special_tokens=False)
    assert "assistant\nReturn the<|im_end|>\n<|im_start|>user\nAnd max?" in text


def test_a_template_that_rewrites_history_renders_the_whole_conversation_again() -> None:
    last_first = "{% for m in messages[::-1] %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    session = Session("s", codec(last_first), CLOCK)
    say(session, "first", "answer")
    assert (
        session.codec.decode(next_prompt(session, from_user("second")).tokens())
        == "user:second\nassistant:answer\nuser:first\n"
    )


def test_a_turn_without_an_answer_never_happened() -> None:
    session = Session("s", codec(), CLOCK, system="Be brief.")
    say(session, "one", "1")
    before = (list(session.tokens), list(session.messages))
    turn = session.begin_turn(next_prompt(session, from_user("two")).tokens(), RULE, limits(), from_user("two"))
    turn.cut_short()
    session.end_turn()
    assert (session.tokens, session.messages) == before
    assert session.turn_count == 2  # its number will never mean another turn


def test_a_cancelled_turn_keeps_its_tokens_and_gives_up_held_text() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, limits(stops=("twofold",)), from_user("count"))
    words = session.codec.encode_rendered("one two")
    seen = "".join(turn.commit(words).texts)
    assert not seen.endswith("two")
    assert seen + turn.cut_short() == "one two"
    session.end_turn()
    assert session.tokens == [5, *words]
    assert session.messages[-1] == Message("assistant", "one two")


def test_one_turn_at_a_time() -> None:
    session = Session("s", codec(), CLOCK)
    session.begin_turn([5], RULE, limits())
    with pytest.raises(SessionBusyError):
        session.begin_turn([5], RULE, limits())


def test_common_prefix_length() -> None:
    assert common_prefix_length([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix_length([1, 2], [1, 2, 4]) == 2
    assert common_prefix_length([1, 2, 4], [1, 2]) == 2
    assert common_prefix_length([], [1]) == 0


def test_a_stop_token_that_the_template_repeats_is_not_said_twice() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn(
        next_prompt(session, from_user("What is len?")).tokens(),
        SamplingRule(end_token_ids=(END, END)),
        TurnLimits(100, 1000, stop_token_ids=(END,), include_stop=True),
        from_user("What is len?"),
    )
    turn.commit([*session.codec.encode_rendered("Length."), END])
    assert (turn.finish_reason, turn.text) == (FinishReason.STOP_TOKEN, "Length.<|im_end|>")
    session.end_turn()
    text = session.codec.tokenizer.decode(
        next_prompt(session, from_user("And max?")).tokens(), skip_special_tokens=False
    )
    assert text.count("<|im_end|>") == 3, text  # after the question, the answer and the next question


def test_a_first_turn_that_never_happened_leaves_the_acceptance_open() -> None:
    session = Session("s", codec(), CLOCK)
    ratio = SamplingRule(end_token_ids=(END,), acceptance=Acceptance.RATIO)
    session.begin_turn([5], ratio, limits()).cut_short()
    session.end_turn()
    turn = session.begin_turn([5], RULE, limits())
    turn.commit([9])
    turn.cut_short()
    session.end_turn()
    with pytest.raises(AcceptanceFixedError):
        session.begin_turn([5, 9], ratio, limits())


def test_a_private_turn_makes_its_session_private_unless_it_is_undone() -> None:
    session = Session("s", codec(), CLOCK)
    for is_private, tokens, expected in (
        (False, [9], False),
        (True, [], False),
        (False, [9], False),
        (True, [9], True),
        (False, [9], True),
        (True, [], True),
    ):
        turn = session.begin_turn([5], RULE, limits(), is_private=is_private)
        assert session.is_private is (expected or is_private)
        turn.commit(tokens)
        turn.cut_short()
        session.end_turn()
        assert session.is_private is expected


def test_a_template_that_asks_for_the_date_gets_the_sessions() -> None:
    dated = "{{ strftime_now('%d %b %Y') }}|{% for m in messages %}{{ m.content }}{% endfor %}"
    session = Session("s", codec(dated), CLOCK)
    assert session.codec.decode(next_prompt(session, from_user("hello")).tokens()) == "22 Nov 2026|hello"


def test_each_token_has_the_text_that_it_made_certain() -> None:
    session = Session("s", codec(), CLOCK)
    answer = session.begin_turn([5], RULE, limits(), from_user("hello"))
    words = session.codec.encode_rendered("Return a \N{GREEK SMALL LETTER ALPHA} list")
    commit = answer.commit([*words, END])
    assert len(commit.texts) == len(commit.tokens) == len(words) + 1
    assert "".join(commit.texts) == answer.text == "Return a \N{GREEK SMALL LETTER ALPHA} list"


@pytest.mark.parametrize("include", [False, True])
def test_a_turn_that_a_stop_token_ends_shows_it_only_where_asked(include: bool) -> None:
    session = Session("s", codec(), CLOCK)
    words = session.codec.encode_rendered("one two")
    stop = session.codec.encode_rendered(" three")[0]
    rule = SamplingRule(end_token_ids=(END, stop))
    turn = session.begin_turn([5], rule, TurnLimits(100, 1000, ("two and",), (stop,), include_stop=include))
    commit = turn.commit([*words, stop, 9])
    assert (commit.tokens, commit.finish_reason) == ((*words, stop), FinishReason.STOP_TOKEN)
    assert turn.text == "".join(commit.texts) == "one two" + include * session.codec.token_text(stop)


def test_a_stop_string_is_in_the_text_where_asked() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, TurnLimits(100, 1000, ("two th",), include_stop=True))
    turn.commit(session.codec.encode_rendered("one two three four"))
    assert (turn.finish_reason, turn.text) == (FinishReason.STOP_STRING, "one two th")


@pytest.mark.parametrize("stop", ["two", "wo<|im_start|>th"], ids=["text", "special token"])
def test_the_stop_string_that_came_up_is_known(stop: str) -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, TurnLimits(100, 1000, ("zzz", stop)))
    tokens = session.codec.encode_rendered("one two<|im_start|>three four")
    turn.commit(tokens)
    assert (turn.finish_reason, turn.stop_string) == (FinishReason.STOP_STRING, stop)


def test_a_turn_that_ends_otherwise_has_no_stop_string() -> None:
    """Even if its last, incomplete character makes one certain."""
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, TurnLimits(100, 1000, ("\ufffd",)))
    turn.commit([*session.codec.encode_rendered("é")[:1], END])
    assert (turn.finish_reason, turn.text, turn.stop_string) == (FinishReason.END_TOKEN, "", None)


def test_a_turn_has_room_for_what_its_limits_and_the_context_leave() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5, 6, 7], RULE, limits(max_token_count=9, context_length=10))
    assert (turn.generated_count, turn.room) == (0, 7)
    turn.commit([40, 41])
    assert (turn.generated_count, turn.room) == (2, 5)
    assert turn.commit([42] * 9).finish_reason is FinishReason.CONTEXT_LENGTH
    assert (turn.room, len(session.tokens)) == (0, 10)
    session.end_turn()
    turn = session.begin_turn([5, 6], RULE, limits(max_token_count=3))
    assert turn.room == 3
    assert turn.commit([42] * 9).tokens == (42,) * 3
    assert (turn.room, turn.finish_reason) == (0, FinishReason.MAX_TOKENS)


def test_at_both_limits_at_once_and_at_a_stop_string_too_the_reason_is_the_first_of_them() -> None:
    def reason(stops: tuple[str, ...], token_count: int) -> FinishReason | None:
        session = Session("s", codec(), CLOCK)
        turn = session.begin_turn([5], RULE, limits(token_count, 2, stops))
        return turn.commit(session.codec.encode_rendered("one")).finish_reason

    assert reason((), 1) is FinishReason.MAX_TOKENS
    assert reason((), 2) is FinishReason.CONTEXT_LENGTH
    assert reason(("o",), 1) is FinishReason.STOP_STRING


def test_a_turn_that_has_ended_is_not_cut_short_and_gives_nothing_up_again() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, limits(stops=("twofold",)))
    turn.commit([*session.codec.encode_rendered("one two"), END])
    assert turn.text == "one two"
    assert turn.cut_short() == ""
    assert (turn.finish_reason, turn.text) == (FinishReason.END_TOKEN, "one two")


def test_a_system_message_comes_first_and_a_turn_undone_leaves_the_next_prompt_as_it_was() -> None:
    session = Session("s", codec(), CLOCK, system="Be brief.")
    first = next_prompt(session, from_user("one")).tokens()
    assert session.codec.tokenizer.decode(first, skip_special_tokens=False).startswith("<|im_start|>system\nBe brief.")
    say(session, "one", "1")
    expected = next_prompt(session, from_user("two")).tokens()
    tokens = session.tokens
    given = list(expected)
    turn = session.begin_turn(given, RULE, limits(), from_user("two"))
    assert session.tokens == given and session.tokens is not given, "the prompt stays the caller's"
    turn.commit([])
    session.end_turn()
    assert session.tokens is tokens and next_prompt(session, from_user("two")).tokens() == expected
    turn = session.begin_turn(expected, RULE, limits(), from_user("two"))
    turn.commit([40])
    turn.cut_short()
    session.end_turn()
    assert session.tokens == [*expected, 40]
    assert session.messages[-2] == Message("user", "two")


def test_after_a_turn_cut_short_the_next_one_that_ends_by_itself_says_its_end_once() -> None:
    session = Session("s", codec(), CLOCK)
    say(session, "one", "1", end=False)
    say(session, "two", "2")
    text = session.codec.tokenizer.decode(next_prompt(session, from_user("three")).tokens(), skip_special_tokens=False)
    assert text.count("<|im_end|>") == 5, text
    say(session, "three", "3", end=False)
    text = session.codec.tokenizer.decode(next_prompt(session, from_user("four")).tokens(), skip_special_tokens=False)
    assert text.count("<|im_end|>") == 7, text


def test_a_session_keeps_the_acceptance_of_its_first_turn() -> None:
    session = Session("s", codec(), CLOCK)
    assert session.acceptance is None
    say(session, "one", "1")
    assert session.acceptance is Acceptance.COUPLED
    session.begin_turn([5], RULE, limits())
    session.end_turn()
    assert session.acceptance is Acceptance.COUPLED
    ratio = SamplingRule(acceptance=Acceptance.RATIO)
    with pytest.raises(AcceptanceFixedError, match="began with acceptance COUPLED"):
        session.begin_turn([5], ratio, limits())


def test_an_answers_text_is_that_of_all_its_rounds() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, limits())
    for token in [*session.codec.encode_rendered("one two three"), END]:
        turn.commit([token])
    session.end_turn()
    assert turn.text == "one two three"
    assert session.messages == [Message("assistant", "one two three")], "there was no user message"


@pytest.mark.parametrize("bounds", [limits(3, 1000, ("threefold",)), limits(100, 4, ("threefold",))], ids=str)
def test_what_was_held_back_is_given_up_at_a_limit(bounds: TurnLimits) -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, bounds)
    words = session.codec.encode_rendered("one two three")
    assert len(words) == 3
    assert "".join(turn.commit(words).texts) == turn.text == "one two three"


def test_a_turn_cut_short_says_so_and_commits_no_more() -> None:
    session = Session("s", codec(), CLOCK)
    turn = session.begin_turn([5], RULE, limits())
    turn.commit([40])
    turn.cut_short()
    assert turn.finish_reason is FinishReason.CANCELLED
    with pytest.raises(AssertionError, match="the turn has ended"):
        turn.commit([41])


def test_what_was_generated_stays_as_it_was_through_every_turn() -> None:
    """An answer in other tokens than the tokenizer would take for its text."""
    session = Session("s", codec(), CLOCK, system="Be brief.")
    for question in ("one", "two", "three"):
        spelt = [token for letter in "Return" for token in session.codec.encode_rendered(letter)]
        assert spelt != session.codec.encode_rendered("Return")
        before = list(session.tokens)
        prompt = next_prompt(session, from_user(question)).tokens()
        assert prompt[: len(before)] == before
        session.begin_turn(prompt, RULE, limits(), from_user(question)).commit([*spelt, END])
        session.end_turn()
        assert session.tokens == [*prompt, *spelt, END]


CONTENT_ALONE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


def test_a_first_prompt_holds_all_that_stands_before_it_in_any_template() -> None:
    session = Session("s", codec(CONTENT_ALONE), CLOCK, system="Be brief.")
    assert session.codec.decode(next_prompt(session, from_user("one")).tokens()) == "Be brief.\none\n"


def test_after_a_turn_cut_short_nothing_of_the_template_is_left_out() -> None:
    session = Session("s", codec(CONTENT_ALONE), CLOCK)
    say(session, "one", "Return\n", end=False)
    assert session.codec.decode(next_prompt(session, from_user("two")).tokens()) == "one\nReturn\n\ntwo\n"


def test_each_turn_renders_the_chat_template_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("s", codec(), CLOCK, system="Be brief.")
    rendered: list[int] = []
    render = Codec.render_with_places

    def counted(
        self: Codec, messages: Sequence[Message], clock: datetime, options: TemplateOptions, **more: bool
    ) -> Rendered:
        rendered.append(len(messages))
        return render(self, messages, clock, options, **more)

    monkeypatch.setattr(Codec, "render_with_places", counted)
    for question in ("one", "two", "three"):
        following, again = (
            next_prompt(session, from_user(question)),
            next_prompt(session, from_user(question)),
        )
        prompt = following.tokens()
        again.last_rendered = None
        count = len(rendered)
        assert again.tokens() == prompt, "the same prompt as by rendering the earlier one again"
        del rendered[count:]
        turn = session.begin_turn(prompt, RULE, limits(), from_user(question), following.rendered)
        turn.commit([*session.codec.encode_rendered("Return"), END])
        session.end_turn()
    assert rendered == [2, 4, 6]


def test_a_turn_undone_leaves_the_last_rendered_prompt_as_it_was() -> None:
    session = Session("s", codec(), CLOCK)
    first = next_prompt(session, from_user("one"))
    session.begin_turn(first.tokens(), RULE, limits(), from_user("one"), first.rendered).commit([40])
    session.end_turn()
    second = next_prompt(session, from_user("two"))
    session.begin_turn(second.tokens(), RULE, limits(), from_user("two"), second.rendered)
    session.end_turn()
    assert session.rendered == first.rendered is not None
    assert next_prompt(session, from_user("two")).tokens() == second.tokens()


def test_a_template_that_changes_the_earlier_prompt_is_noticed_without_rendering_it_again() -> None:
    counting = "{{ messages | length }}|{% for m in messages %}{{ m.content }}|{% endfor %}"
    session = Session("s", codec(counting), CLOCK)
    first = next_prompt(session, from_user("one"))
    session.begin_turn(first.tokens(), RULE, limits(), from_user("one"), first.rendered).commit([40])
    session.end_turn()
    following, again = next_prompt(session, from_user("two")), next_prompt(session, from_user("two"))
    again.last_rendered = None
    assert following.tokens() == again.tokens()
