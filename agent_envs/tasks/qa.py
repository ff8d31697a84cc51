"""Multi-hop question answering: search a corpus, read, search again, answer."""

import difflib
import html
import inspect
from collections.abc import Mapping
from typing import Any

from agent_envs import scoring
from agent_envs.data.question import Question, paragraph_key
from agent_envs.generators.instances import choose_instance
from agent_envs.judge import Judge
from agent_envs.rewards import (
    AtEnd,
    AtLeast,
    Format,
    Gain,
    Gate,
    Invalid,
    Metric,
    Minus,
    Repeat,
    Reward,
    Shaping,
    Term,
    Thought,
    ThoughtfulFormat,
)
from agent_envs.tasks import qa_scripts
from agent_envs.tasks.qa_data import check_depth, load, source_parameters
from agent_envs.token_counter import TokenCounter
from agent_envs.tool_env import COMMON, ToolEnv
from agent_envs.tools import ReadTool, SearchTool, Tool
from agent_envs.tools.search import FOUND
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.vector import vector_entry_point
from retrieval_index import Passage, RemoteSearcher

_WELL_FORMED = AtLeast(Format(), 1.0)
_HALF_FORMED = AtLeast(ThoughtfulFormat(), 0.5)


class QAEnv(ToolEnv):
    """Answer a question with the help of a search tool. The episode terminates with an answer.

    Args:
        benchmark: a name of `agent_envs.tasks.qa_data.BENCHMARKS`; "own" for your questions, see
            `agent_envs.data.own.load_own`.
        split: ``"train"`` or ``"validation"``.
        k: passages per search.
        max_turns: turns before truncation.
        max_chars: characters of each passage that a search shows; a longer one is cut at a sentence or word, and
            marked.
        passage_tokens: a second limit on each passage that a search shows, in tokens of ``tokenizer``. None: no limit.
        read: adds a second tool, ``read``, that opens an article in full by its title.
        judge: arguments of `agent_envs.judge.Judge`, for the reward term ``judge``. Off by default.
        instructions: the task in a sentence or two, in your words.
        entities, types, hops, difficulty, world_seed, questions, holdout: the world's articles and questions; benchmarks
            take data, corpus, index, source. Others: `ToolEnv`'s.

    At reset ``info`` has ``source``, ``question_id``, ``type`` and ``instructions`` (the system prompt). Every step has
    ``support_recall``, the share of gold passages found; `evidence` and `shows` define what counts. The last step adds
    ``em``, ``f1``, ``support_f1`` and ``joint_f1`` of the passages shown, ``prediction``, ``golds`` and ``kind``.
    ``substring_em`` and ``mentioned``: whether a gold answer is in the answer, or anywhere in the turn.

    ``reset(options={"question": i})`` picks question number ``i``.
    """

    REWARD = Reward(
        answer=(1.0, AtEnd(Metric("em"))),
        format=(0.05, Format()),
        progress=(0.3, Shaping("support_recall")),
        invalid=(-0.1, Invalid()),
        repeat=(-0.05, Repeat()),
        f1=(0.0, AtEnd(Metric("f1"))),
        evidence=(0.0, Gain("support_recall")),
        think=(0.0, Thought()),
        judge=(0.0, AtEnd(Metric("judged"))),
    )
    PRESETS = {  # noqa: RUF012
        "search_r1": Reward(answer=(1.0, AtEnd(Metric("em")))),
        "agent_r1": Reward(  # −1 + format + 1 if the answer holds a gold answer, 0.2 if only the last turn mentions one
            answer=(0.8, AtEnd(Gate(Metric("substring_em"), _HALF_FORMED))),
            mention=(0.2, AtEnd(Gate(Metric("mentioned"), _HALF_FORMED))),
            format=(1.0, AtEnd(Minus(ThoughtfulFormat(), 1.0))),
        ),
        "em_if_well_formed": Reward(
            answer=(1.0, AtEnd(Gate(Metric("em"), _WELL_FORMED))), format=(1.0, AtEnd(Minus(Format(), 1.0)))
        ),
        "ragen": Reward(answer=(1.0, AtEnd(Gate(Metric("f1"), AtLeast(Metric("f1"), 0.3))))),
    }
    PRIMARY_METRIC = "em"

    questions: tuple[Question, ...]

    SCRIPTS = {  # noqa: RUF012
        "random": qa_scripts.guess,
        "constant": qa_scripts.constant,
        "scripted": qa_scripts.scripted,
        "reader": qa_scripts.reader,
        "oracle": qa_scripts.oracle,
    }

    def __init__(
        self,
        benchmark: str = "miniwiki",
        split: str = "train",
        k: int = 3,
        max_turns: int = 5,
        max_chars: int = 1200,
        passage_tokens: int | None = None,
        read: bool = False,
        judge: dict[str, Any] | None = None,
        instructions: str = "Answer the question.",
        **source_arguments: Any,
    ):
        common = {name: source_arguments.pop(name) for name in COMMON & set(source_arguments)}
        _check_names(benchmark, source_arguments)
        self.task = load(benchmark, split=split, **source_arguments)
        self.split, self.questions = split, self.task.questions
        counter = TokenCounter(common["tokenizer"]) if passage_tokens and common.get("tokenizer") else None
        search = SearchTool(self.task.searcher, k, max_chars, max_tokens=passage_tokens, tokenizer=counter)
        if benchmark == "own":
            search.description = "search the collection; returns the passages that match the query best."
        tools: list[Tool] = [search]
        if isinstance(self.task.searcher, RemoteSearcher):
            check_depth(self.task.searcher, max(search.k, FOUND) if read else search.k)
        if read:
            tools.append(ReadTool(self.task.searcher))
        super().__init__(tools, instructions=instructions, max_turns=max_turns, **common)
        self.llm_judge = Judge(**judge) if judge else None
        weighed = isinstance(common.get("rewards"), Mapping) and "judge" in common["rewards"]
        if not self.llm_judge and weighed and self.reward["judge"][0]:
            raise ValueError('the reward term judge needs a judge: give judge={"url": …, "model": …} as well')
        if self.llm_judge and not weighed and not self.reward.get("judge", (0.0,))[0]:
            judged: Term = AtEnd(Metric("judged"))
            self.reward = Reward(**{**self.reward, "judge": (1.0, judged)})

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        number = choose_instance(self.np_random, options, range(len(self.questions)), "question")
        self.question = self.questions[number]
        self._gold = set(self.question.supporting_paragraphs or map(html.unescape, self.question.supporting_titles))
        self._found: set[str] = set()  # gold passages that the agent has been shown
        self._brought_up: set[str] = set()  # all passages that the agent has been shown
        info = {"source": self.task.source, "question_id": self.question.id, "type": self.question.type or ""}
        return self.question.question, info

    def anchor(self) -> tuple[str, ...]:
        """The gold passages found so far, which also identify the hop."""
        return tuple(sorted(self._found))

    def describe_source(self) -> str:
        return self.task.source

    def describe_instance(self) -> dict[str, Any]:
        question = self.question
        titles = [html.unescape(title) for title in question.supporting_titles]
        return {"id": question.id, "golds": list(question.golds), "kind": self._kind(), "supporting": titles}

    def _kind(self) -> dict[str, Any]:
        question = self.question
        hops = len(question.decomposition or question.supporting_paragraphs or question.supporting_titles)
        return {"type": "yes_no" if self._asks_verdict() else question.type or "", "hops": hops}

    def _asks_verdict(self) -> bool:
        """Whether the answer is yes or no, whatever the benchmark calls the question."""
        return {gold.strip().lower() for gold in self.question.golds} <= {"yes", "no"}

    def found_evidence(self) -> list[bool]:
        titles = map(html.unescape, self.question.supporting_titles)
        return [key in self._found for key in self.question.supporting_paragraphs or titles]

    def evidence(self, passage: Passage) -> str:
        """The key of a passage: of its text if the gold paragraphs of the question are known, else its title."""
        return paragraph_key(passage.text) if self.question.supporting_paragraphs else html.unescape(passage.title)

    def shows(self, tool: Tool, passage: Passage, text: str) -> bool:
        """Whether a passage counts as shown, which a tool returned with ``text``; a gold passage without its answer does not."""
        if not self.is_gold(passage) or self._asks_verdict() or not self._covers(passage.text):
            return True
        return bool(self._covers(tool.show(1, passage) if isinstance(tool, SearchTool) else text))

    def is_gold(self, passage: Passage, missing: bool = False) -> bool:
        """Whether a passage supports the answer and, with ``missing``, has not been shown so far."""
        return self.evidence(passage) in (self._gold - self._found if missing else self._gold)

    def missing_titles(self) -> list[str]:
        """Titles of the gold passages that have not been shown so far, in the order of the hops."""
        titles = map(html.unescape, self.question.supporting_titles)
        return list(dict.fromkeys(t for t, found in zip(titles, self.found_evidence(), strict=True) if not found))

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        pairs = zip(turn.calls, results, strict=True)
        found = [(self.tools[call.name], p, result.text) for call, result in pairs if result.ok for p in result.data]
        shown = {self.evidence(passage) for tool, passage, text in found if self.shows(tool, passage, text)}
        self._brought_up |= shown
        self._found |= shown & self._gold
        metrics = {"support_recall": len(self._found) / len(self._gold) if self._gold else 0.0}
        if not done:
            return TurnOutcome(metrics)
        prediction, golds = turn.answer or "", self.question.golds
        scores = self.task.score(prediction, golds)
        metrics |= {"em": scores.em, "f1": scores.f1, "substring_em": self._covers(prediction)}
        metrics["mentioned"] = metrics["substring_em"] or self._covers(_written(turn))
        if self._gold:
            support = scoring.support_scores(self._brought_up, self._gold)
            metrics |= {"support_f1": support.f1, "joint_f1": scoring.joint_scores(scores, support).f1}
        if self.llm_judge:
            verdict = self.llm_judge(self.question.question, golds, prediction)
            metrics |= {"judged": verdict or 0.0, "judge_unclear": float(verdict is None)}
        ending = {"prediction": prediction, "golds": list(golds), "kind": name_kind(self._kind())}
        return TurnOutcome(metrics, ending)

    def _covers(self, prediction: str) -> float:
        return scoring.substring_match(prediction, self.question.golds, self.task.normalize)


def _check_names(benchmark: str, arguments: Mapping[str, Any]) -> None:
    """Raise a TypeError for arguments that neither the benchmark nor any task takes."""
    own = set(inspect.signature(QAEnv.__init__).parameters) - {"self", "benchmark", "source_arguments"}
    known = [*source_parameters(benchmark), "holdout", *sorted(own | COMMON)]
    for name in sorted(set(arguments) - set(known)):
        near = difflib.get_close_matches(name, known, 1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        # In Python's words: libraries look for them when they try arguments that an environment may not take.
        raise TypeError(f"{benchmark} got an unexpected keyword argument {name!r}{meant}; known: {known}")


def name_kind(kind: Mapping[str, Any]) -> str:
    """The kind of a question for tables: its type, or its number of hops.

    >>> name_kind({"type": "yes_no", "hops": 2}), name_kind({"type": "chain", "hops": 1}), name_kind({"type": "", "hops": 3})
    ('yes or no', '1 hop', '3 hops')
    """
    type, hops = kind.get("type", ""), kind.get("hops", 0)
    if type and type != "chain":
        return {"yes_no": "yes or no"}.get(type, type.replace("_", " "))
    return f"{hops} hop{'s' * (hops != 1)}" if hops else ""


def _written(turn: Turn) -> str:
    """Return the text of a turn without its tags."""
    arguments = (str(value) for call in turn.calls for value in call.arguments.values())
    return " ".join(filter(None, (turn.thought, *arguments, turn.answer)))


make_vector = vector_entry_point(QAEnv)
