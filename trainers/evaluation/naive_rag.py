"""Naive RAG: one search for the question itself, then an answer by greedy decoding, in the format that the policy was taught.

After the results, the policy takes a turn as in any episode, with its thought if it thinks. A turn that does not answer, such
as another search, is cut after its thought, and the policy completes an answer from there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent_envs.stopping import StopChecker
from agent_envs.tasks.qa import QAEnv
from agent_envs.tasks.qa_scripts import search
from agent_envs.tool_env import ToolEnv
from agent_envs.types import Turn
from agent_envs.vector import ToolVectorEnv
from trainers.engines.engine import Completion, Engine, SamplingParams, generate
from trainers.episodes.records import Recorder
from trainers.evaluation.evaluator import run_policy
from trainers.models.policy import Policy

_PLACE = "\ue000"  # a private-use character that marks the place of an answer's text
_NO_ANSWER = "unknown"


def can_be_searched_for(env: ToolEnv) -> bool:
    """Whether each episode is a question about a corpus, with a turn left after a search; for a mixture, in all its tasks."""
    return all(isinstance(task, QAEnv) and task.max_turns > 1 for task in env.members.values())


def run_naive_rag(
    envs: ToolVectorEnv, policy: Policy, engine: Engine, instance_ids: list[int], max_new_tokens: int,
    recorder: Recorder | None = None,
) -> list[dict]:  # fmt: skip
    """Run Naive RAG; return the last info of each episode. ``recorder`` collects the records of the episodes."""
    one_search = _OneSearch(engine, policy, envs.envs)
    return run_policy(envs, policy, one_search, instance_ids, max_new_tokens, recorder=recorder)[0]


class _OneSearch:
    """An engine whose first turn in an episode searches for the question, and whose second turn answers."""

    def __init__(self, engine: Engine, policy: Policy, envs: Sequence[ToolEnv]):
        self._engine, self._policy, self._envs = engine, policy, envs
        self.max_length, self.processed = engine.max_length, engine.processed
        self._cut = StopChecker(policy, envs[0].stop).cut
        self.reset()

    def reset(self) -> None:
        self._engine.reset()
        self._searched, self._done = set[int](), dict[int, Completion]()

    def submit(
        self, prompts: dict[int, list[int]], params: SamplingParams, seeds: Mapping[int, int] | None = None
    ) -> None:
        after = {key: prompt for key, prompt in prompts.items() if key in self._searched}
        for key in prompts:
            if key not in self._searched:
                self._done[key] = self._write(key, search(self._envs[key].first_observation))
        self._searched |= prompts.keys()
        openings: dict[int, list[int]] = {}  # beginnings of answers, for turns without one
        for key, completion in generate(self._engine, after, params.max_new_tokens, params.temperature).items():
            turn = self._read(key, completion.tokens)
            if turn.answer is None:
                openings[key] = self._open(key, turn.thought)
            else:
                self._done[key] = replace(completion, finish_reason="stop")
        begun = {key: after[key] + opening for key, opening in openings.items()}
        begun = {key: prompt for key, prompt in begun.items() if len(prompt) < self.max_length}
        completions = generate(self._engine, begun, params.max_new_tokens, params.temperature)
        for key, opening in openings.items():
            self._done[key] = self._complete(key, opening, completions.get(key, Completion()))

    def wait(self) -> dict[int, Completion]:
        done, self._done = self._done, {}
        return done

    def _read(self, key: int, tokens: list[int]) -> Turn:
        format = self._envs[key].format
        return format.parse(self._policy.decode_action(tokens, format.schemas()))

    def _write(self, key: int, turn: Turn) -> Completion:
        format, policy = self._envs[key].format, self._policy
        action, tools = format.write(turn), format.schemas()
        return _as_completion(
            policy.turn_ids(format.message(action), tools) if tools else policy.text_ids(action, ended=False)
        )

    def _open(self, key: int, thought: str | None) -> list[int]:
        """Make the ids of a turn's thought and the beginning of an answer."""
        format = self._envs[key].format
        if tools := format.schemas():
            return self._policy.answer_opening(tools, thought)
        begun = format.write(Turn(answer=_PLACE, thought=thought)).partition(_PLACE)[0]
        return self._policy.text_ids(begun, ended=False, last=True)

    def _complete(self, key: int, opening: list[int], completion: Completion) -> Completion:
        """Make the completed answer a turn. A text that no format closes ends with its line."""
        whole = opening + completion.tokens  # the engine does not know of a thought that is closed in the opening
        tokens = self._cut(whole)
        if (completion.finish_reason == "stop" or tokens != whole) and self._read(key, tokens).answer is not None:
            return _as_completion(tokens)
        said = self._policy.decode(tokens[len(opening) :]).rpartition("<answer>")[2]
        try:
            return self._write(key, Turn(answer=re.split(r'</|\n|"\s*\}', said.strip())[0].strip()))
        except ValueError:  # the format cannot express it: it is empty or has tags in it
            return self._write(key, Turn(answer=_NO_ANSWER))


def _as_completion(tokens: list[int]) -> Completion:
    return Completion(tokens=tokens, logprobs=[0.0] * len(tokens), finish_reason="stop")
