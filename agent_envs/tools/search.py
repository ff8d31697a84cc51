"""The search tool."""

from dataclasses import dataclass
from typing import Any, ClassVar

from agent_envs.types import ToolResult
from retrieval_index import Searcher


@dataclass(eq=False)
class SearchTool:
    """Search over a corpus of passages.

    Args:
        searcher: what to search.
        k: passages per query.
        max_chars: each passage is cut to this many characters, so that one long article cannot fill the context.
        max_query: a query of more characters fails; the cost of a search grows with the words in it.
    """

    name: ClassVar[str] = "search"
    description: ClassVar[str] = "search Wikipedia; returns the passages that match the query best."
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
        "additionalProperties": False,
    }

    interchangeable: ClassVar[bool] = True
    ignores_case: ClassVar[bool] = True

    searcher: Searcher
    k: int = 3
    max_chars: int = 1200
    max_query: int = 2000

    def __post_init__(self):
        if min(self.k, self.max_chars, self.max_query) < 1:
            given = f"{self.k}, {self.max_chars} and {self.max_query}"
            raise ValueError(f"k, max_chars and max_query must be at least 1, got {given}")

    @property
    def batch_key(self) -> tuple:
        """Equal for tools that would find the same: environments over one index make one batch."""
        return "search", id(self.searcher), self.k, self.max_chars, self.max_query

    @property
    def io_bound(self) -> bool:
        """Whether the searcher is: one that asks a server is."""
        return getattr(self.searcher, "io_bound", False)

    def execute(self, arguments: dict[str, Any]) -> ToolResult:
        """One search; see `execute_batch`."""
        return self.execute_batch([arguments])[0]

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        """One call of the searcher for all queries; each result lists passages as ``[n] title: text``."""
        queries = [a["query"] for a in arguments]
        found = iter(self.searcher.search([q for q in queries if len(q) <= self.max_query], self.k))
        return [self._report(next(found)) if len(q) <= self.max_query else self._too_long(q) for q in queries]

    def _too_long(self, query: str) -> ToolResult:
        return ToolResult(f"A query may have {self.max_query} characters at most, not {len(query)}.", data=[], ok=False)

    def _report(self, hits: list) -> ToolResult:
        if not hits:
            return ToolResult("Nothing found. Try other words.", data=[])
        lines = (f"[{n}] {p.title}: {p.text}"[: self.max_chars] for n, p in enumerate(hits, 1))
        return ToolResult("\n".join(lines), data=hits)
