"""Scripted searchers: baselines to compare with, and demonstrators to imitate."""

import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from agent_envs.data.question import Question
from agent_envs.tasks.answering import call
from agent_envs.tool_env import ToolEnv
from agent_envs.tools.search import SearchTool, read_shown
from agent_envs.types import Turn
from agent_envs.utils.scripts import Script
from retrieval_index import Passage

# Patterns of answers to questions with these words; the pattern of names ("") is for all other questions.
_CANDIDATES = {
    "when": r"(?:\d{1,2} )?(?:[A-Z][a-z]+ )?(?:\d{1,2}, )?\b[12]\d{3}\b",
    "how many": r"\b(?!(?:1[5-9]|20)\d\d\b)\d[\d,.]*\b(?! [A-Z])",  # neither years nor days of a month
    "": r"[A-Z][\w'’.-]*(?: (?:(?:of|the|and|de|von) )*[A-Z][\w'’.-]*)*",
}
_YES_NO = re.compile(r"(?:is|are|was|were|do|does|did|has|have|can)\b", re.IGNORECASE)
_QUESTION_WORD = r"(?:Who|Whom|Whose|Which|What|When|Where|How|In which|In what|Of)\b"
_COMMON = set(
    "a an and are at by did do does for from had has have he her his how in is it its of on or she that the their they "
    "this to was were what when where which who whom whose with".split()
)


def search(query: str, thought: str | None = None) -> Turn:
    """A turn with one search."""
    return replace(call("search", query=query.strip()), thought=thought)


def oracle(env: Any, rng: random.Random) -> Script:
    """Search for each gold title, or for the question if none is known, and give the gold answer."""
    titles = env.question.supporting_titles or (env.question.question,)
    for title in dict.fromkeys(titles):  # two gold paragraphs may share a title
        yield search(title)
    yield Turn(answer=env.question.answer.strip())


def early_stopping(env: Any, rng: random.Random, continue_probability: float = 0.3) -> Script:
    """Search and read correctly, but stop too early: SFT on this script teaches the tools and not the task.

    After each article the script notes the fact that it looked up. It continues with ``continue_probability``; else it answers.
    Its exact match on questions of n hops is ``continue_probability ** (n - 1)``.
    """
    hops = _hops(env.question)
    last = 0
    while last + 1 < len(hops) and rng.random() < continue_probability:
        last += 1
    thought = None
    for title, fact, _ in hops[: last + 1]:
        yield search(title, thought)
        thought = fact.strip()
    yield Turn(answer=hops[last][2].strip(), thought=thought)


def careless(
    env: Any, rng: random.Random, continue_probability: float = 0.3, mistake_probability: float = 0.5
) -> Script:
    """Search, read and compare correctly, but stop too early and confuse names.

    After each article the script notes the fact and what else the question asks for. It continues with
    ``continue_probability``; else it answers what it has found so far. Of two names for a fact it takes the wrong one with
    ``mistake_probability``. It needs questions with a ``decomposition`` that names each article, as MiniWiki's do.
    """
    question: Question = env.question
    steps: Sequence[Mapping[str, Any]] = question.decomposition or ()
    compares = question.type in ("comparison", "yes_no")
    thought, compared = None, []
    for number, step in enumerate(steps):
        yield search(step["title"], thought)
        mistaken = "rival" in step and rng.random() < mistake_probability
        name = step["rival"] if mistaken else step["answer"]
        thought = note_fact(step, name) + what_next(question, number)
        if compares and "reference" not in step:
            compared.append(name)
            thought += verdict(compared[0], compared[1], question.question) if len(compared) == 2 else ""
        goes_on = step is not steps[-1] and (compares or not mistaken) and rng.random() < continue_probability
        if not goes_on and not (compares and step is steps[-1]):
            yield Turn(answer=name, thought=thought)
            return
    answer = question.answer if question.type != "yes_no" else "yes" if len(set(compared)) == 1 else "no"
    yield Turn(answer=answer, thought=thought)


def note_fact(step: Mapping[str, Any], found: str) -> str:
    """Write a step of a decomposition as a thought: the entity, its property, and what was found.

    >>> note_fact({"question": "founder of Iron Owl Band?", "reference": True}, "Night Trio")
    "Iron Owl Band, founder: Night Trio's"
    >>> told_with = {"question": "founder of Iron Owl Band?", "answer": "Ann Lee"}
    >>> note_fact({"question": "father of Ann Lee?", "told_with": told_with}, "Bo Lee")
    'Iron Owl Band, founder: Ann Lee; founder / father: not the same; Ann Lee, father: Bo Lee'
    """
    first = step.get("told_with")
    what, _, whose = step["question"].rstrip("?").rpartition(" of ")
    noted = f"{whose}, {what}: {found}" + "'s" * ("reference" in step)
    if not first:
        return noted
    return f"{note_fact(first, first['answer'])}{compare_texts(_noun(first), what)}; {noted}"


def what_next(question: Question, number: int) -> str:
    """The end of a thought after a step: in a comparison, the article to read next; else whether the fact is what was
    asked for. Returns "" if the article refers to another one, or if nothing is left to compare."""
    steps = question.decomposition or ()
    if "reference" in steps[number]:
        return ""
    if question.type in ("comparison", "yes_no"):
        return compare_next(question.question, steps[number + 1]["title"]) if number + 1 < len(steps) else ""
    return compare_texts(_noun(steps[number]), _noun(steps[-1]))


def compare_next(question: str, title: str) -> str:
    """The end of a thought: which time a comparison asks for, if any, and the article to read next.

    >>> compare_next("Which film was released later, A or B?", "B"), compare_next("Do A and B share a river?", "B")
    ('; later; then B', '; then B')
    """
    asked = asked_time(question)
    return f"{asked and f'; {asked}'}; then {title}"


def _noun(step: Mapping[str, Any]) -> str:
    """What a step of a decomposition looks up: "founder" of "founder of Iron Owl Band?"."""
    return step["question"].rpartition(" of ")[0]


def compare_texts(first: str, second: str) -> str:
    """The end of a thought: two texts and whether they are the same.

    >>> compare_texts("hometown", "river"), compare_texts("Ormland", "Ormland")
    ('; hometown / river: not the same', '; Ormland / Ormland: same')
    """
    return f"; {first} / {second}: {'same' if first == second else 'not the same'}"


def verdict(first: str, second: str, question: str = "") -> str:
    """The end of a thought: how two years, dates (by year) or names compare, and whether ``question`` asks for this.

    >>> verdict("1950", "1961"), verdict("12 May 1961", "3 March 1950"), verdict("Ormland", "Bronia")
    ('; 1950 / 1961: later', '; 1961 / 1950: earlier', '; Ormland / Bronia: not the same')
    >>> verdict("1950", "1961", "Which film was released later, A or B?")
    '; 1950 / 1961: later / later: same'
    """
    if not (first[-4:].isdigit() and second[-4:].isdigit()):
        return compare_texts(first, second)
    first, second = first[-4:], second[-4:]
    found, asked = "later" if second > first else "earlier", asked_time(question)
    as_asked = compare_texts(found, asked).removeprefix(f"; {found}") if asked else ""
    return f"; {first} / {second}: {found}{as_asked}"


def asked_time(question: str) -> str:
    """Which of two times a question asks for: "earlier", "later" or ""."""
    asked = re.search(r"\b(?:earlier|later)\b", question)
    return asked[0] if asked else ""


def constant(env: Any, rng: random.Random) -> Script:
    """Give the same answer to every question: `QATask.constant`."""
    yield Turn(answer=env.task.constant)


def scripted(env: Any, rng: random.Random) -> Script:
    """The stronger of two scripts: `rule` for the questions of a benchmark, `heuristic` for MiniWiki's."""
    return (heuristic if env.task.drawn else rule)(env, rng)


def rule(env: ToolEnv, rng: random.Random) -> Script:
    """Answer "yes" to yes/no questions, and the first of two options if the question offers them. Else search once, and
    answer with the first name, date or number of the sentence most like the question."""
    question = env.first_observation.strip()
    if _YES_NO.match(question):
        yield Turn(answer="yes")
    elif option := first_option(question):
        yield Turn(answer=option)
    else:
        found = yield search(question)
        kind = "when" if re.search(r"\b(?:what|which) year\b", question.lower()) else _kind(question)
        yield Turn(answer=_clue(found, question, question, kind) or "unknown")


def first_option(question: str) -> str:
    """The first option of a question that offers two; "" where it offers none.

    >>> first_option("Who was born first, Ada Kern or Bo Fox?"), first_option("Who is older Ada Kern or Bo Fox?")
    ('Ada Kern', 'Ada Kern')
    """
    before, offered, _ = " ".join(question.split()).rstrip("? ").rpartition(" or ")
    if not offered:
        return ""
    option = re.split(r"[,:;] | - |\b(?:[Bb]etween|either) ", before.rstrip(", "))[-1]
    if re.match(r"(?:[Tt]he |[Aa]n? )?[A-Z\d\"]", option) and not re.match(_QUESTION_WORD, option):
        return option.strip()
    names = re.findall(_CANDIDATES[""], option)  # no comma: "Who is older Ada Kern or Bo Fox?"
    return names[-1] if names and option.endswith(names[-1]) else option.strip()


def guess(env: ToolEnv, rng: random.Random) -> Script:
    """Search for a random word of the question, and answer with a random name from the result."""
    found = yield search(rng.choice(env.first_observation.split()))
    names = re.findall(_CANDIDATES[""], found)
    yield Turn(answer=rng.choice(names) if names else "unknown")


def _hops(question: Question) -> list[tuple[str, str, str]]:
    """The reading steps to the answer, each (title, fact to look up there, what is found). Without a decomposition, the gold
    titles in order."""
    steps = question.decomposition or ()
    if steps and all("title" in step for step in steps):
        titles, found = [step["title"] for step in steps], [step["answer"] for step in steps]
        facts = [re.sub(r"#(\d+)", lambda m: found[int(m[1]) - 1], step["question"]).rstrip("?") for step in steps]
    else:
        facts = titles = list(dict.fromkeys(question.supporting_titles)) or [question.question]
        found = [*titles[1:], ""]
    found[-1] = question.answer  # a comparison asks for more than the last article states
    return list(zip(titles, facts, found, strict=True))


def heuristic(env: ToolEnv, rng: random.Random) -> Script:
    """Search for the question, then for a name in the sentence most like it, and answer from the sentence most like the
    question. Gold titles and answers are not used."""
    question = env.first_observation
    found = yield search(question)
    bridge = _clue(found, question, question, "")
    if bridge:
        found = yield search(bridge)
    if _YES_NO.match(question):
        yield Turn(answer="yes")
        return
    yield Turn(answer=_clue(found, question, f"{question} {bridge}", _kind(question)) or bridge or "unknown")


def _kind(question: str) -> str:
    """The key of `_CANDIDATES` for what the question asks for."""
    return next((kind for kind in ("when", "how many") if kind in question.lower()), "")


def _clue(observation: str, question: str, known: str, kind: str) -> str:
    """The first name, date or number that is not in ``known``, from the sentence that shares most words with the question."""
    wanted, known = _stems(question), known.lower()
    best, clue = -1.0, ""
    for title, text in read_shown(observation):
        for sentence in re.split(r"(?<=[.!?]) ", text):
            names = [name.rstrip(".,") for name in re.findall(_CANDIDATES[kind], re.sub(r"^The ", "", sentence))]
            names = [name for name in names if _stems(name) and name.lower() not in known and name != title]
            score = len(_stems(sentence) & wanted) + 0.5 * len(_stems(title) & wanted)
            if names and score > best:
                best, clue = score, names[0]
    return clue


def _stems(text: str) -> set[str]:
    """The first five letters of the words, so that "directed" and "director" are equal."""
    return {word[:5] for word in re.findall(r"\w+", text.lower()) if word not in _COMMON}


# -- the reader --------------------------------------------------------------------------------------------------------

_WORD = r"(?:[^\W_a-zß-ÿ]|\d)[\w'’.\-]*"  # begins with a capital or a digit
_NAME = re.compile(rf"{_WORD}(?:,? (?:(?:a|and|at|de|du|for|in|la|le|of|on|the|to|van|von|&) )*{_WORD})*")
_BRACKETS = re.compile(r"\s*\([^()]*\)$")  # tells articles of the same name apart; texts do not repeat it
_VERDICTS = {"yes", "no"}


def reader(env: Any, rng: random.Random) -> Script:
    """Search for the question, then for titles and names *that were read*, and answer once the text read holds the answer.

    If no search can help, the script answers "unknown". It uses the gold passages and the gold answer only to choose among
    what a reader could write. A demonstrator that writes gold titles it has not read teaches models to invent queries.
    """
    read, gold_text, queries = [env.first_observation], "", [env.first_observation.strip()]
    while True:
        observation = yield search(queries[-1])
        shown = [f"{title}: {text}" for title, text in read_shown(observation)]
        read += shown
        found = _find(env, queries[-1])
        if len(shown) == len(found):  # else some were cut before their text began
            gold_text += "".join(f"{text}\n" for text, p in zip(shown, found, strict=True) if env.is_gold(p))
        if (answer := _find_answer(env, gold_text)) is not None:
            yield Turn(answer=answer.strip())
            return
        following = _choose_query(env, read, queries) if len(queries) + 1 < env.max_turns else None
        if following is None:
            yield Turn(answer="unknown")
            return
        queries.append(following)


def _find_answer(env: Any, gold_text: str) -> str | None:
    """The answer if it can be known: for a comparison from all gold passages, else from one that holds it."""
    question, text = env.question, gold_text
    is_verdict = {_fold(answer) for answer in question.golds} <= _VERDICTS
    if is_verdict or "comparison" in (question.type or ""):
        text = "" if env.missing_titles() else f"{question.question}\n{gold_text}"
    return next((a for a in question.golds if _stands_in(a, text) or (is_verdict and text)), None)


def _choose_query(env: Any, read: list[str], queries: list[str]) -> str | None:
    """The title of a missing gold passage, if it is in the text read so far; else a name in that text that finds one."""
    text = "\n".join(read)
    titles = [name for title in env.missing_titles() for name in (title, _BRACKETS.sub("", title))]
    known = _best_query(env, (title for title in titles if _stands_in(title, text)), queries)
    return known or _best_query(env, _names(read), queries)


def _best_query(env: Any, candidates: Iterable[str], queries: list[str]) -> str | None:
    """The candidate that ranks a missing gold passage highest, of equal ones the longest; None if none finds one."""
    found = []
    for query in dict.fromkeys(c for c in candidates if c not in queries):
        ranks = [rank for rank, passage in enumerate(_find(env, query)) if env.is_gold(passage, missing=True)]
        found += [(rank, -len(query), query) for rank in ranks[:1]]
    return min(found)[-1] if found else None


def _find(env: Any, query: str) -> list[Passage]:
    """The passages that a search would show, without a call in the episode."""
    tool = cast(SearchTool, env.tools["search"])
    return tool.searcher.search([query], tool.k)[0]


def _names(read: Iterable[str]) -> Iterator[str]:
    """The names, years and numbers in what was read."""
    for text in read:
        yield from (name.rstrip(".,'") for name in _NAME.findall(text) if len(name) > 2)


def _fold(text: str) -> str:
    """The words of a text, in lower case and without accents."""
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(re.findall(r"\w+", "".join(letters).lower()))


def _stands_in(phrase: str, text: str) -> bool:
    folded = _fold(phrase)
    return bool(folded) and f" {folded} " in f" {_fold(text)} "
