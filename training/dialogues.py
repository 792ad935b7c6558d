"""Dialogues drawn from the corpus: questions in many phrasings, follow-ups, repeats, small talk,
and unknown names.

A question is a core phrasing, sometimes with a greeting or a sentence before it and a request after
it, or the name between random words. The model should learn to read the name, not the phrasing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from training.corpus import Entry

SYSTEM_PROMPTS = (
    "You answer questions about Python's standard library.",
    "You are a helpful assistant.",
    "You are a patient teacher of Python. Answer briefly.",
    "Answer in one sentence.",
)

QUESTION_PHRASINGS = (
    "What does {} do?",
    "What is {}?",
    "Explain {}.",
    "Describe {} for me.",
    "Tell me about {}.",
    "How does {} work?",
    "{}?",
    "In one sentence, what is {} good for?",
    "I came across `{}` in some code. What is it?",
    "What is {} for?",
    "What's {}?",
    "What is the purpose of {}?",
    "What can I do with {}?",
    "Why would I use {}?",
    "When should I use {}?",
    "When is {} useful?",
    "Can you explain {} to me?",
    "Could you tell me what {} does?",
    "Do you know {}?",
    "Give me a short description of {}.",
    "Define {}.",
    "help({})",
    "What happens when I call {}()?",
    "What will {} give me?",
    "I do not understand {}.",
    "I would like to know what {} is.",
    "Please explain what {} means.",
    "Somebody told me to use {}. What does it do?",
    "My code calls {} and I have no idea why.",
    "I keep forgetting {}.",
    "The manual mentions {}; what is that?",
    "Is {} what I need? What is it?",
    "How would you describe {} to a beginner?",
    "{} - what is that?",
    "Summarise {}.",
    "What do people use {} for?",
    "Which job does {} do?",
)
SENTENCE_PHRASINGS = (
    "While reading a pull request I met {}; what is its job?",
    "After all these years I still wonder about {}.",
    "Should this loop become {}?",
    "The linter suggests {} instead. What would that do?",
    "Given what I have here, could {} help, and how?",
    "They took {} out of the example: why was it there?",
    "Suppose I typed {} into the interpreter. What then?",
    "Between us: I never understood {} and its use.",
    "If somebody asked you about {} in the street, what would you answer?",
    "Whoever wrote this was fond of {}. For what?",
    "Since {} is in the standard library, it must be good for something; for what?",
    "There are five calls of {} on this page. Do they do anything?",
    "Without {} the script does not run, so what is it?",
    "Does {} do that for me?",
    "Would {} save me some typing here?",
    "At noon I have to explain {} to my team. How?",
    "Can {} be trusted with that; what does it promise?",
    "I nearly deleted {} today. What does it provide?",
    "Now that I look at it, {} seems useful: in which way?",
    "Among all these names, {} is the one I do not know.",
    "The answer was {}, they said. What is that, and is it any good?",
    "First tell me about {}, then we shall see.",
    "Instead of my own code I could call {}, couldn't I?",
    "Once {} has returned, what have I got?",
    "My notes say only {}. What did I mean?",
    "According to the index there is {} as well. What for?",
    "Whenever I import it I see {} beside it; what is its purpose?",
    "As far as you know, what is the point of {}?",
    "Reading the source of a web server, I stumbled over {}.",
    "In which situation would an expert reach for {}?",
    "Somewhere in this file {} is called with no arguments; what comes back?",
    "The exam asked for {} and I left it blank. What should I have written?",
    "Translate the jargon, please: what is {}, in plain English?",
    "Half of the traceback is about {}. What was it supposed to do?",
    "To whom is {} of any use, and what for?",
    "It says here that {} takes care of it. Of what?",
    "All I remember is the name, {}.",
    "Let me guess: {} does something with files? What does it really do?",
    "Show me that you know {}.",
    "Two questions: what is {}, and who needs it?",
    "Our style guide forbids {}; what does it do at all?",
    "No idea what {} could be. You?",
)
"""Phrasings in which the name is one word of a longer sentence, or of two."""

FOLLOW_UP_PHRASINGS = (
    "And {}?",
    "What about {}?",
    "Now {}.",
    "Thanks. And what does {} do?",
    "OK, and {}?",
    "Next: {}.",
    "I see. Then what is {}?",
    "How about {}?",
    "Got it. {}?",
    "Then there is {}. What is it for?",
    "And how is that different from {}?",
    "One more: {}.",
    "Also {}, please.",
    "Let us go on with {}.",
)
REPEAT_PHRASINGS = ("Again, please.", "Say that again.", "What was that again?", "Could you repeat that?", "Once more?")

HELD_OUT_PHRASINGS = (
    "Could you please remind me what {} is for?",
    "My colleague uses {} everywhere. Why would one need that?",
    "If {} vanished tomorrow, what would we lose?",
    "A reviewer wrote that {} fits here; is that so, and what does it offer?",
    "Before I rewrite this by hand: does {} cover it?",
)
"""Phrasings that no training dialogue has."""

_OPENERS = ("Hi!", "Hello.", "Hey,", "Sorry,", "Quick question:", "Right,", "So,", "Hm.", "Good morning!", "Excuse me,")
_CONTEXTS = (
    "I am reading somebody's code.",
    "I have an interview tomorrow.",
    "There is a line here that I do not get.",
    "My teacher mentioned it today.",
    "We are cleaning up an old project.",
    "I am new to Python.",
    "The tests use it in many places.",
    "Our build broke this morning.",
    "I found this on a mailing list.",
    "Everybody at work seems to know this one.",
)
_TAILS = (
    "Thanks!",
    "Please.",
    "Keep it short.",
    "One sentence is enough.",
    "I am in a hurry.",
    "Just the basics.",
    "It puzzles me.",
)

_SMALL_TALK = (
    (
        ("Hello!", "Hi.", "Hey there!", "Good morning!", "Good evening."),
        "Hello! Ask me about a name in Python's standard library.",
    ),
    (("Thanks!", "Thank you.", "Great, thanks.", "That helps.", "Perfect."), "You are welcome."),
    (("Bye!", "Goodbye.", "See you.", "That was all."), "Goodbye!"),
    (
        ("Who are you?", "What are you?", "What can you do?", "What do you know?", "Help!", "How do I use you?"),
        "I am a very small model. I know what Python's documentation says of the names in its standard library.",
    ),
    (("How are you?", "How is it going?", "All well?"), "Fine, thank you. What would you like to know about Python?"),
)
CANNOT_SAY = "I cannot say. I only know names in Python's standard library."
UNKNOWN_NAME = "I do not know that name."
_OTHER_QUESTIONS = (
    "What is the capital of {}?",
    "Who won the {} yesterday?",
    "Write a poem about {}.",
    "What is the weather like in {}?",
    "How do I cook {}?",
    "Tell me a joke about {}.",
    "Why is the {} so blue?",
    "Translate {} into German.",
    "How old is {}?",
    "What is 17 times {}?",
    "Do you like {}?",
    "Is {} better than Rust?",
    "Write a program that sorts {}.",
    "Why do my {} crash?",
)
_OTHER_THINGS = """
    France Peru Kenya Norway Japan Berlin London Cairo winter summer football tennis chess rice soup bread potatoes
    cats dogs birds love music Mozart Shakespeare Einstein 23 512 the sky the sea Java C++ Go numbers words programs
    servers databases
""".split()
_SYLLABLES = """
    con per lex tra mo ri den fa sul ket pro vin ta lo gra bus nel do fi rem pa sto war mi gen tol ba cu he xi
""".split()
_COMMON_WORDS = """
    a an the this that it is was are be do does did has have had can could will would should may might must and or
    but not no if then so because when where why how who which what there here now never always often sometimes
    everywhere nowhere everybody nobody somebody one two many most more less very quite rather just only also too
    even still yet again already I you we they he she me us them my your our their need want like use using used
    mean offer help lose gain find see know think wonder say tell ask please thanks code line file project team
    colleague review test bug build tomorrow today yesterday before after while during without with for from to of
    in on at by about into over under instead myself yourself really actually exactly something anything nothing
""".split()
CONTEXT_PROBABILITY = 0.3
RANDOM_PHRASING_PROBABILITY = 0.3
SENTENCE_PHRASING_PROBABILITY = 0.35
"""Probability of a sentence phrasing, for questions that are neither random nor follow-ups."""
SYSTEM_PROMPT_PROBABILITY = 0.2
ASIDE_PROBABILITY = 0.08
"""Probability of small talk, an unknown name or a different question before a turn."""
REPEAT_PROBABILITY = 0.04
TURN_COUNT_WEIGHTS = {1: 10, 2: 5, 3: 3, 4: 3, 6: 2, 8: 2, 12: 1, 16: 1, 24: 0.4, 32: 0.4}
"""Weights of dialogues by their number of turns; 32 turns are about 1,500 tokens."""

Message = dict[str, str]
Dialogue = list[Message]


Words = tuple[list[str], list[str]]
"""Words of the answers, and common words. None is the name of an entry."""


def _some(words: Words, most: int, rng: random.Random) -> str:
    return " ".join(rng.choice(words[rng.random() < 0.6]) for _ in range(rng.randint(0, most)))


def _random_phrasing(words: Words, rng: random.Random) -> str:
    before, after = _some(words, 8, rng), _some(words, 5, rng)
    if rng.random() < 0.3:  # a sentence of its own, before or after
        other = _some(words, 8, rng).capitalize() + rng.choice(".?!")
        before, after = (f"{other} {before}", after) if rng.random() < 0.5 else (before, f"{after}. {other}")
    text = f"{before} {{}} {after}".strip() + rng.choice(("?", ".", "", "!"))
    return text[:1].upper() + text[1:] if rng.random() < 0.6 else text


def _question(symbol: str, *, follow_up: bool, words: Words, rng: random.Random) -> str:
    if rng.random() < RANDOM_PHRASING_PROBABILITY:
        text = _random_phrasing(words, rng)
    elif follow_up and rng.random() < 0.5:
        text = rng.choice(FOLLOW_UP_PHRASINGS)
    else:
        in_sentence = rng.random() < SENTENCE_PHRASING_PROBABILITY
        text = rng.choice(SENTENCE_PHRASINGS if in_sentence else QUESTION_PHRASINGS)
        if rng.random() < CONTEXT_PROBABILITY:
            before = rng.choice((*_OPENERS, *_CONTEXTS, ""))
            text = f"{before} {text} {rng.choice((*_TAILS, '', ''))}".strip()
    return text.replace("{}", symbol if rng.random() < 0.85 else rng.choice((f"`{symbol}`", f"{symbol}()")))


def _made_up_name(entries: list[Entry], known: set[str], rng: random.Random) -> str:
    """Return a name that is not in the corpus, with or without one of its modules."""
    while True:
        name = "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 3)))
        owner = rng.choice(entries).symbol.rpartition(".")[0]
        name = f"{owner}.{name}" if owner and rng.random() < 0.6 else name
        if name not in known:
            return name


def _aside(entries: list[Entry], known: set[str], words: Words, rng: random.Random) -> tuple[str, str]:
    """Return a question about no name of the corpus, and its answer."""
    kind = rng.random()
    if kind < 0.4:
        said, answer = rng.choice(_SMALL_TALK)
        return rng.choice(said), answer
    if kind < 0.7:
        name = _made_up_name(entries, known, rng)
        return _question(name, follow_up=rng.random() < 0.5, words=words, rng=rng), UNKNOWN_NAME
    return rng.choice(_OTHER_QUESTIONS).format(rng.choice(_OTHER_THINGS)), CANNOT_SAY


def _turn(question: str, answer: str) -> Dialogue:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def draw_pass(entries: list[Entry], rng: random.Random) -> Iterator[Dialogue]:
    """Return every entry once, in random order, grouped into dialogues of one to 32 turns."""
    known = {entry.symbol for entry in entries}
    said = {word for entry in entries for word in entry.answer.split() if word.isalpha()}
    words = sorted(said - known), sorted(set(_COMMON_WORDS) - known)  # or "all" would be one more question
    order = rng.sample(entries, len(entries))
    while order:
        turn_count = rng.choices(list(TURN_COUNT_WEIGHTS), list(TURN_COUNT_WEIGHTS.values()))[0]
        dialogue: Dialogue = []
        if rng.random() < SYSTEM_PROMPT_PROBABILITY:
            dialogue.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
        for index in range(turn_count):
            if rng.random() < ASIDE_PROBABILITY:
                dialogue += _turn(*_aside(entries, known, words, rng))
            elif index and rng.random() < REPEAT_PROBABILITY:
                dialogue += _turn(rng.choice(REPEAT_PHRASINGS), dialogue[-1]["content"])
            elif order:
                entry = order.pop()
                dialogue += _turn(_question(entry.symbol, follow_up=index > 0, words=words, rng=rng), entry.answer)
        yield dialogue


def held_out_question(entry: Entry, phrasing: str = HELD_OUT_PHRASINGS[0]) -> Dialogue:
    """Return a question in a phrasing that no training dialogue uses."""
    return [{"role": "user", "content": phrasing.format(entry.symbol)}]
