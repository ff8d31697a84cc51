"""A demonstrator for real questions that does nothing a reader could not do: it searches for the question first, then for
a title or a name *that stands in what was asked or read*, and answers once the answer stands in the text before it.

It knows the gold passages and the gold answer, and uses them to choose among what a reader could write, never to write
anything else. A demonstrator that types gold titles out of nowhere teaches to invent queries.
"""

import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, cast

from agent_envs.data.question import Question
from agent_envs.tasks.qa_scripts import search
from agent_envs.tools import Tool
from agent_envs.tools.search import SearchTool, read_shown
from agent_envs.types import Turn
from agent_envs.utils.scripts import Script
from retrieval_index import Passage

_WORD = r"(?:[^\W_a-zß-ÿ]|\d)[\w'’.\-]*"  # begins with a capital or a digit
_NAME = re.compile(rf"{_WORD}(?:,? (?:(?:a|and|at|de|du|for|in|la|le|of|on|the|to|van|von|&) )*{_WORD})*")
_BRACKETS = re.compile(r"\s*\([^()]*\)$")  # what tells articles of one name apart, which texts do not repeat
_VERDICTS = {"yes", "no"}


class HasEvidence(Protocol):
    """An environment in an episode about a question whose gold passages are known: an `agent_envs.tasks.qa.QAEnv`."""

    question: Question
    first_observation: str
    max_turns: int
    tools: Mapping[str, Tool]

    def is_gold(self, passage: Passage, missing: bool = False) -> bool:
        """Whether a passage supports the answer, and with ``missing`` has not been shown so far."""
        ...

    def missing_titles(self) -> list[str]:
        """Titles of the gold passages that have not been shown so far."""
        ...


def reader(env: HasEvidence, rng: random.Random) -> Script:
    """Search for the question, then for what is missing by a name that was read, then answer.

    Stuck, it answers "unknown": such an episode is no demonstration.
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


def _find_answer(env: HasEvidence, gold_text: str) -> str | None:
    """The answer if it can be told: that of a comparison from all of the gold passages, any other from one of them that
    holds it, as it is spelled there."""
    question, text = env.question, gold_text
    is_verdict = {_fold(answer) for answer in question.golds} <= _VERDICTS
    if is_verdict or "comparison" in (question.type or ""):
        text = "" if env.missing_titles() else f"{question.question}\n{gold_text}"
    return next((a for a in question.golds if _stands_in(a, text) or (is_verdict and text)), None)


def _choose_query(env: HasEvidence, read: list[str], queries: list[str]) -> str | None:
    """The title of a missing gold passage, if it stands in what was read; else a name in it that finds one."""
    text = "\n".join(read)
    titles = [name for title in env.missing_titles() for name in (title, _BRACKETS.sub("", title))]
    return _best_query(env, (t for t in titles if _stands_in(t, text)), queries) or _best_query(
        env, _names(read), queries
    )


def _best_query(env: HasEvidence, candidates: Iterable[str], queries: list[str]) -> str | None:
    """The candidate that ranks a missing gold passage first, the longest of equals; None where none of them finds one."""
    found = []
    for query in dict.fromkeys(c for c in candidates if c not in queries):
        ranks = [rank for rank, passage in enumerate(_find(env, query)) if env.is_gold(passage, missing=True)]
        found += [(rank, -len(query), query) for rank in ranks[:1]]
    return min(found)[-1] if found else None


def _find(env: HasEvidence, query: str) -> list[Passage]:
    """What a search shows, without a search in the episode."""
    tool = cast(SearchTool, env.tools["search"])
    return tool.searcher.search([query], tool.k)[0]


def _names(read: Iterable[str]) -> Iterator[str]:
    """Names, years and numbers."""
    for text in read:
        yield from (name.rstrip(".,'") for name in _NAME.findall(text) if len(name) > 2)


def _fold(text: str) -> str:
    """Words alone, in lower case and without accents."""
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(re.findall(r"\w+", "".join(letters).lower()))


def _stands_in(phrase: str, text: str) -> bool:
    folded = _fold(phrase)
    return bool(folded) and f" {folded} " in f" {_fold(text)} "
