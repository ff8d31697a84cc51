"""Multi-hop question answering: search a corpus, read, search again, answer."""

from typing import Any

import numpy as np

from agent_envs import scoring
from agent_envs.benchmark import load
from agent_envs.data.question import Question
from agent_envs.rewards import QARewards, shaping
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import SearchTool
from agent_envs.types import ToolResult, Turn


class QAEnv(ToolEnv):
    """Answer a question with the help of a search tool.

    The agent sees the question, then the passages that its searches return. The episode terminates with a submitted
    answer and is truncated after ``max_turns`` turns.

    Args:
        benchmark: ``"hotpotqa"``, ``"2wikimultihopqa"``, ``"musique"`` or ``"miniwiki"``.
        split: ``"train"`` or ``"validation"``.
        k: passages per search.
        max_turns: turns before truncation.
        max_calls: searches in one turn; more make it invalid.
        max_chars: characters of each passage that the agent gets to read.
        rewards: weights by name, put over the defaults of `QARewards`.
        **source_arguments: where the data comes from, see `agent_envs.benchmark.load`; for MiniWiki, what world.

    ``info`` at reset names ``source`` (a stand-in can never pass for the real benchmark), ``question_id``, ``type`` and
    ``instructions`` (the system prompt). Every step has ``reward_terms``, ``valid``, ``turns``, ``calls`` and
    ``support_recall`` (share of gold passages found so far); the last one also ``em``, ``f1``, ``prediction`` and
    ``golds``.

    ``reset(options={"question": i})`` picks question number ``i`` in place of a random one.
    """

    def __init__(
        self,
        benchmark: str = "miniwiki",
        split: str = "train",
        k: int = 3,
        max_turns: int = 5,
        max_calls: int = 5,
        max_chars: int = 1200,
        rewards: dict[str, Any] | None = None,
        render_mode: str | None = None,
        **source_arguments: Any,
    ):
        self.rewards = QARewards.from_dict(rewards)
        self.task = load(benchmark, split=split, **source_arguments)
        super().__init__((SearchTool(self.task.searcher, k, max_chars),), max_turns, max_calls, render_mode)

    @property
    def questions(self) -> list[Question]:
        """All questions of the split, in a fixed order."""
        return self.task.questions

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if unknown := set(options) - {"question"}:
            raise ValueError(f"unknown reset options {sorted(unknown)}; known: ['question']")
        index = options.get("question")
        if index is None:
            index = self.np_random.integers(len(self.questions))
        if not 0 <= index < len(self.questions):
            raise ValueError(f"question must be in 0..{len(self.questions) - 1}, got {index}")
        self.question = self.questions[index]
        self._found: set[str] = set()
        self._gold = set(self.question.supporting_titles)
        info = {
            "source": self.task.source,
            "question_id": self.question.id,
            "type": self.question.type or "",
            "instructions": self.format.instructions(),
        }
        return self.question.question, info

    def judge(self, turn: Turn, results: list[ToolResult], done: bool) -> tuple[dict[str, float], dict[str, Any]]:
        w = self.rewards
        potential_before = self._recall()
        self._found.update(p.title for result in results if result.ok for p in result.data if p.title in self._gold)
        failed = turn.error is not None or not all(result.ok for result in results)
        terms = {
            "answer": 0.0,
            "format": 0.0,
            "progress": w.progress * shaping(w.gamma, potential_before, self._recall(), done),
            "invalid": float(w.invalid) if failed else 0.0,
            "repeat": float(w.repeat) if self._is_repeat(turn.calls) else 0.0,
        }
        extra: dict[str, Any] = {"support_recall": self._recall()}
        if done:
            prediction = turn.answer or ""
            scores = scoring.answer_scores(prediction, self.question.golds)
            terms["answer"] = w.answer * (scores.em if w.metric == "em" else scores.f1)
            if turn.answer is not None:
                valid = [past.error is None for past in self.history.turns] + [True]
                terms["format"] = w.format * float(np.mean(valid))
            extra |= {"em": scores.em, "f1": scores.f1, "prediction": prediction, "golds": list(self.question.golds)}
        return terms, extra

    def _recall(self) -> float:
        """Share of the gold passages that the agent has been shown; the potential Φ."""
        return len(self._found) / len(self._gold) if self._gold else 0.0
