"""The tools over a corpus, `SearchTool` for passages and `ReadTool` for articles, and how passages are shown."""

import html
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from agent_envs.tools.function import ToolError
from agent_envs.tools.schema import one_text
from agent_envs.types import ToolResult
from retrieval_index import IndexCorrupt, Passage, Searcher
from retrieval_index.corpus import Corpus

MORE = " …"  # the mark of a cut; one token in most vocabularies
MAX_QUERY, MAX_TITLE = 2000, 500  # characters; longer ones fail
_LISTED = 1_000_000  # titles of larger corpora are searched for, and not listed in memory
FOUND = 50  # passages to retrieve if the title of an article is searched for
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?= )")
_LINE = re.compile(r'\[\d+\] (?:"((?:[^"]|"")*)"|(.*?)): (.*)')


def show_passage(number: int, passage: Passage, max_chars: int | None = None) -> str:
    """Return a passage as the agent reads it, on one line: ``[1] Title: text``, of at most ``max_chars`` characters.
    A title that contains ": " or starts with a quote is put in double quotes, and quotes inside it are doubled. `read_shown`
    is the inverse."""
    title, text = (" ".join(part.split()) for part in (passage.title, passage.text))
    if ": " in title or title.startswith('"'):
        title = '"' + title.replace('"', '""') + '"'
    head = f"[{number}] {title}: "
    if max_chars is None:
        return head + text
    return (head + cut(text, max_chars - len(head)))[:max_chars]


def read_shown(observation: str) -> list[tuple[str, str]]:
    """Return (title, text) of each passage that `show_passage` wrote into an observation."""
    found = (_LINE.search(line) for line in observation.removesuffix("</information>").splitlines())
    return [(m[2] if m[1] is None else m[1].replace('""', '"'), m[3]) for m in found if m]


def cut(text: str, max_chars: int) -> str:
    """Cut a text to at most ``max_chars`` characters, with the mark " …" if something is left out.

    It is cut after a sentence, if one ends in the last third of the room, and else after a word.
    """
    if len(text) <= max_chars:
        return text
    room = max(max_chars - len(MORE), 0)
    head = text[: room + 1]  # one character more: a word may end right here
    end = max(_sentence_ends(head), default=0)
    if end < room * 2 / 3:
        end = head.rfind(" ")
    return text[: end if end > 0 else room] + MORE


def _sentence_ends(text: str) -> Iterator[int]:
    """Iterate over the ends of sentences; not after an initial or a short title, as in "J. Doe" and "St. Ives"."""
    for match in _SENTENCE_END.finditer(text):
        word = text[: match.start()].rpartition(" ")[2].lstrip("(\"'“‘")
        if (len(word) > 2 or not word[:1].isupper()) and not text[match.end() + 1 : match.end() + 2].islower():
            yield match.end()


def _asks_a_server(tool: Any) -> bool:
    return getattr(tool.searcher, "io_bound", False)


@dataclass(eq=False)
class SearchTool:
    """Search over a corpus of passages.

    Args:
        k: passages per query.
        max_chars: characters of a passage, its title included: see `cut`.
        max_tokens: tokens of a passage, if ``tokenizer`` is given.
        tokenizer: an `agent_envs.token_counter.TokenCounter`.
    """

    name: ClassVar[str] = "search"
    parameters: ClassVar[dict[str, Any]] = one_text("query")
    interchangeable: ClassVar[bool] = True
    ignores_case: ClassVar[bool] = True
    io_bound = property(_asks_a_server)

    searcher: Searcher
    k: int = 3
    max_chars: int = 1200
    max_tokens: int | None = None
    tokenizer: Any = None
    description: str = "search Wikipedia; returns the passages that match the query best."

    def __post_init__(self):
        for name in ("k", "max_chars"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        corpus = getattr(self.searcher, "corpus", None)  # a server keeps its own
        if corpus is not None and self.k > len(corpus):
            warnings.warn(
                f"k is {self.k}, and the corpus has {len(corpus)} passages: a search shows no more", stacklevel=2
            )
        if self.max_tokens is not None and (self.tokenizer is None or self.max_tokens < 2):
            what = f"max_tokens needs a tokenizer, and must be at least 2, got {self.max_tokens}"
            raise ValueError(f"{what}: it is the passage_tokens of an environment")

    @property
    def max_output(self) -> int:
        """Characters that hold all passages: one that is cut off would still count as shown."""
        return self.k * (self.max_chars + 50)

    @property
    def batch_key(self) -> tuple:
        """Equal for tools that find the same, so that environments over one index make one batch."""
        tokens = self.max_tokens, getattr(self.tokenizer, "name", None)
        return "search", id(self.searcher), self.k, self.max_chars, *tokens

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        """Search for all queries in one call of the searcher; each result lists passages, one per line: see `show_passage`."""
        queries = [one["query"] for one in arguments]
        found = iter(_search(self.searcher, [query for query in queries if len(query) <= MAX_QUERY], self.k))
        return [self._report(next(found)) if len(q) <= MAX_QUERY else _too_long("query", MAX_QUERY, q) for q in queries]

    def _report(self, hits: list) -> ToolResult:
        if not hits:
            return ToolResult("Nothing found. Try other words.", data=[])
        return ToolResult("\n".join(self.show(n, p) for n, p in enumerate(hits, 1)), data=hits)

    def show(self, number: int, passage: Passage) -> str:
        """Show a passage, cut if it is too long."""
        shown = show_passage(number, passage, self.max_chars)
        if self.max_tokens is None or (room := self.tokenizer.prefix(shown, self.max_tokens)) >= len(shown):
            return shown
        room = self.tokenizer.prefix(shown, self.max_tokens - 1)  # the mark of the cut is one token
        return show_passage(number, passage, room + len(MORE))


@dataclass(eq=False)
class ReadTool:
    """Open an article with all its passages by its title, ignoring case.

    Text beyond ``max_chars`` comes in parts, requested as "Title #2". If the searcher is on a server or has more than a million
    passages, the title is searched for, and only the first 50 passages found can be shown.
    """

    name: ClassVar[str] = "read"
    description: ClassVar[str] = "open the article with this title; returns its text in full."
    parameters: ClassVar[dict[str, Any]] = one_text("title")
    interchangeable: ClassVar[bool] = True
    ignores_case: ClassVar[bool] = True
    io_bound = property(_asks_a_server)

    searcher: Searcher
    max_chars: int = 4000

    @property
    def batch_key(self) -> tuple:
        """Equal for tools that would read the same."""
        return "read", id(self.searcher), self.max_chars

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        """Return an article, or a part of it, for each call; its passages are the ``data``."""
        return [self._read(one["title"]) for one in arguments]

    def _read(self, title: str) -> ToolResult:
        if len(title) > MAX_TITLE:
            return _too_long("title", MAX_TITLE, title)
        passages, number = self._find(title), 1
        part = re.fullmatch(r"(.*\S)\s*#(\d{1,4})", title.strip(), re.DOTALL)
        if part and not passages:
            passages, title, number = self._find(part[1]), part[1], int(part[2])
        if not passages:
            near = dict.fromkeys(p.title for p in _search(self.searcher, [title], 3)[0])
            hint = " Near to it: " * bool(near) + "; ".join(near)
            return ToolResult(f"There is no article with this title.{hint}", [])
        parts = list(self._parts(passages))
        if not 1 <= number <= len(parts):
            return ToolResult(f"This article has {len(parts)} parts.", [])
        lines = [line for _, line in parts[number - 1]]
        if number < len(parts):
            lines.append(f"(part {number} of {len(parts)}; the next one is: {passages[0].title} #{number + 1})")
        elif len(passages) == FOUND and not self._lists_titles():
            lines.append(f"(the {FOUND} passages that a search finds of this article; there may be more)")
        return ToolResult("\n".join(lines), data=[passage for passage, _ in parts[number - 1]])

    def _find(self, title: str) -> list[Passage]:
        wanted = title_key(title)
        if self._lists_titles():
            corpus = self.searcher.corpus
            return [corpus[row] for row in _rows_by_title(corpus).get(wanted, ())]
        found = [p for p in _search(self.searcher, [title], FOUND)[0] if title_key(p.title) == wanted]
        return sorted(found, key=lambda passage: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", passage.id)])

    def _lists_titles(self) -> bool:
        corpus = getattr(self.searcher, "corpus", None)  # a server keeps its own
        return corpus is not None and len(corpus) <= _LISTED

    def _parts(self, passages: Iterable[Passage]) -> Iterator[list[tuple[Passage, str]]]:
        """Group the passages with their lines into parts of at most ``max_chars`` characters."""
        part: list[tuple[Passage, str]] = []
        size = 0
        for number, passage in enumerate(passages, 1):
            for line in self._lines(number, passage):
                if part and size + len(line) > self.max_chars:
                    yield part
                    part, size = [], 0
                part.append((passage, line))
                size += len(line)
        yield part

    def _lines(self, number: int, passage: Passage) -> Iterator[str]:
        """Yield a passage on one line, or in pieces on several lines if it is longer than a part."""
        text = " ".join(passage.text.split())
        room = self.max_chars - len(show_passage(number, replace(passage, text="")))
        while len(text) > room > len(MORE):
            piece = cut(text, room).removesuffix(MORE)
            yield show_passage(number, replace(passage, text=piece + MORE))
            text = text[len(piece) :].lstrip()
        yield show_passage(number, replace(passage, text=text), self.max_chars)


def _too_long(what: str, most: int, given: str) -> ToolResult:
    return ToolResult(f"A {what} may have {most} characters at most, not {len(given)}.", data=[], ok=False)


def _search(searcher: Searcher, queries: list[str], k: int) -> list[list[Passage]]:
    """Search as `Searcher.search` does.

    Raises:
        ToolError: the searcher rejects this one query, but not others.
        ValueError: it rejects a batch, or any query, which is not the agent's mistake.
    """
    try:
        return searcher.search(queries, k)
    except IndexCorrupt:
        raise
    except ValueError as error:
        if len(queries) != 1:
            raise
        try:
            searcher.search(["town"], k)
        except ValueError:
            raise error from None
        raise ToolError(f"it does not take this query: {error}") from error


def title_key(title: str) -> str:
    """A title for comparison: without case, HTML entities and surplus white space."""
    return " ".join(html.unescape(title).casefold().split())


@lru_cache(maxsize=4)
def _rows_by_title(corpus: Corpus) -> dict[str, list[int]]:
    """Return the rows of each title; made once per corpus, as environments share it."""
    rows: dict[str, list[int]] = {}
    for row, passage in enumerate(corpus):
        rows.setdefault(title_key(passage.title), []).append(row)
    return rows
