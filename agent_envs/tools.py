"""Tools: they act and report what happened. What it means for the task is the environment's business."""

from typing import Any, Protocol

from agent_envs.types import ToolCall, ToolResult
from retrieval_index import Searcher


class Tool(Protocol):
    """Something an agent can call.

    Attributes:
        name: how the agent calls it.
        description: one sentence for the agent.
        parameters: JSON schema of the arguments, an object with ``properties`` and ``required``.
    """

    name: str
    description: str
    parameters: dict[str, Any]

    def execute(self, arguments: dict[str, Any]) -> ToolResult: ...

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        """Many calls at once, in order; environments use this, so that a vector of them makes one call."""
        ...


class SearchTool:
    """Search over a corpus of passages.

    Args:
        searcher: what to search.
        k: passages per query.
        max_chars: each passage is cut to this many characters, so that one long article cannot fill the context.
        max_query: a query of more characters fails; the cost of a search grows with the words in it.
    """

    name = "search"
    description = "search Wikipedia; returns the passages that match the query best."
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}  # noqa: RUF012

    def __init__(self, searcher: Searcher, k: int = 3, max_chars: int = 1200, max_query: int = 2000):
        if min(k, max_chars, max_query) < 1:
            raise ValueError(f"k, max_chars and max_query must be at least 1, got {k}, {max_chars} and {max_query}")
        self.searcher, self.k, self.max_chars, self.max_query = searcher, k, max_chars, max_query

    def execute(self, arguments: dict[str, Any]) -> ToolResult:
        return self.execute_batch([arguments])[0]

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
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


def run_calls(tools: dict[str, Tool], calls: list[ToolCall]) -> list[ToolResult]:
    """Run ``calls``, one batch per tool, and return the results in the order of the calls."""
    results: list[ToolResult | None] = [None] * len(calls)
    for name in dict.fromkeys(call.name for call in calls):
        where = [i for i, call in enumerate(calls) if call.name == name]
        batch = tools[name].execute_batch([calls[i].arguments for i in where])
        for i, result in zip(where, batch, strict=True):
            results[i] = result
    return results
