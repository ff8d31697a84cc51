"""Naive RAG: one search for the question itself, then an answer, by greedy decoding, in the form that the policy was taught.

After the results the policy takes a turn as in any episode, with its thought if it thinks. A turn that does not answer, such
as another search, is taken back after its thought, and the policy completes an answer there.
"""

import re
from dataclasses import dataclass, field
from typing import Any, cast

from agent_envs.formats import Format
from agent_envs.tasks.qa import QAEnv, name_kind
from agent_envs.tasks.qa_scripts import search
from agent_envs.tool_env import ToolEnv
from agent_envs.types import Turn
from agent_envs.utils.scripts import EpisodeRecorder, begin
from agent_envs.vector import ToolVectorEnv, info_of
from trainers.engines.engine import Completion, Engine, generate
from trainers.episodes.records import Recorder, make_record
from trainers.models.policy import Policy
from trainers.runtime import distributed

_PLACE = "\ue000"  # a private character: where the text of an answer stands in what a format writes


def can_be_searched_for(env: ToolEnv) -> bool:
    """Whether each episode is a question about a corpus, which Naive RAG can answer; of a mixture, whether all tasks are."""
    tasks = getattr(env, "tasks", None) or {"": env}
    return all(isinstance(task, QAEnv) for task in tasks.values())


def run_naive_rag(
    envs: ToolVectorEnv, policy: Policy, engine: Engine, instance_ids: list[int], max_new_tokens: int,
    recorder: Recorder | None = None,
) -> list[dict]:  # fmt: skip
    """The last info of each episode of Naive RAG. ``recorder`` takes the records of the episodes."""
    infos, own = [], distributed.shard(instance_ids)
    if recorder:
        recorder.lines = []
    for start in range(0, len(own), envs.num_envs):
        for episode in _run_batch(envs, policy, engine, own[start : start + envs.num_envs], max_new_tokens):
            infos.append(episode.info)
            if recorder:
                episode.record(recorder, policy)
    if recorder:
        recorder.lines = distributed.all_gather(recorder.lines)
    return distributed.all_gather(infos)


@dataclass(kw_only=True)
class _Episode:
    """A question, what one search brought, and the answer to it.

    Attributes:
        prompt: the ids up to the policy's turn; ``opening``: those of the beginning of an answer, where the turn had none.
        action: the policy's turn.
    """

    env: ToolEnv
    recorder: EpisodeRecorder
    instance: int
    instructions: str
    question: str
    query: str
    results: str = ""
    prompt: list[int] = field(default_factory=list)
    opening: list[int] = field(default_factory=list)
    action: str = ""
    sampled: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    searched: dict[str, Any] = field(default_factory=dict)

    @property
    def format(self) -> Format:
        return self.env.format

    def search(self, policy: Policy, results: str, infos: dict[str, Any]) -> None:
        """Take what the search brought."""
        self.results, self.searched, tools = results, self.recorder.record_turn(), self.format.schemas()
        prompt = policy.prompt_ids(self.instructions, self.question, tools)
        said = policy.turn_ids(self.format.message(self.query), tools) if tools else None
        prompt += policy.text_ids(self.query, ended=False) if said is None else said
        self.prompt = prompt + policy.observation_ids(self.format.messages(results), prompt, tools)
        kind = name_kind(self.recorder.instance.get("kind") or {})
        counted = {"turns": 2, "calls": int(infos["calls"]), "tool_faults": int(infos["tool_faults"])}
        has_gold = bool(self.recorder.instance.get("supporting"))
        recall = {"support_recall": float(infos["support_recall"])} if has_gold else {}
        self.info = {**recall, **counted, "kind": kind}
        self._score("")

    def takes_answer(self, policy: Policy, completion: Completion) -> bool:
        """Take the policy's turn. Returns whether it answers; else the next one is to go on after `opening`."""
        tools = self.format.schemas()
        turn = self._take(policy, completion)
        if turn.answer is not None:
            self._score(turn.answer)
            return True
        if tools:
            self.opening = policy.answer_opening(tools, turn.thought)
        else:
            begun = self.format.write(Turn(answer=_PLACE, thought=turn.thought)).partition(_PLACE)[0]
            self.opening = policy.text_ids(begun, ended=False, last=True)
        return False

    def complete(self, policy: Policy, completion: Completion) -> None:
        """Take the text of an answer after `opening`. What no form closes ends with its line."""
        answer = self._take(policy, completion).answer if completion.finish_reason == "stop" else None
        if answer is None:
            said = policy.decode(completion.tokens).rpartition("<answer>")[2]
            answer = re.split(r'</|\n|"\s*\}', said.strip())[0]
        self._score(answer)

    def _take(self, policy: Policy, completion: Completion) -> Turn:
        self.sampled += len(completion.tokens)
        self.action = policy.decode_action(self.opening + completion.tokens, self.format.schemas())
        return self.format.parse(self.action)

    def _score(self, answer: str) -> None:
        env = cast(QAEnv, self.env.active_env)
        em, f1, *_ = env.task.score(answer, env.question.golds)
        self.info |= {"em": em, self.env.PRIMARY_METRIC: em, "f1": f1}  # a mixture has its own name for it

    def record(self, recorder: Recorder, policy: Policy) -> None:
        """Add the record of the episode. No turn is paid: the first one is not the policy's."""
        messages = policy.prompt_messages(self.instructions, self.question)
        back = policy.escape_all(self.format.messages(self.results), policy.tags)
        messages += [self.format.message(self.query), *back, self.format.message(self.action)]
        unpaid = {"reward": 0.0, "reward_terms": {}, "calls": [], "found": [], "invalid": False}
        place, faults = len(messages) - 1, int(self.info["tool_faults"])
        searched = {"message": place - len(back) - 1, "action": self.query, "next_observation": self.results}
        answered = {"message": place, "action": self.action, "next_observation": ""}
        measured = {name: value for name, value in self.info.items() if name != "kind"}
        recorder.add(make_record(
            recorder.origin, {**self.recorder.instance, "instance": self.instance}, messages,
            [unpaid | searched | self.searched, unpaid | answered], measured, failed=faults > 0, tool_faults=faults,
            prompt_tokens=len(self.prompt), completion_tokens=self.sampled,
        ))  # fmt: skip


def _run_batch(
    envs: ToolVectorEnv, policy: Policy, engine: Engine, instance_ids: list[int], max_new_tokens: int
) -> list[_Episode]:
    """At most as many episodes as there are environments."""
    observations, infos = begin(envs, instance_ids)
    episodes = []
    for i, (env, number) in enumerate(zip(envs.envs, instance_ids, strict=False)):
        policy.keep(env.format)
        episodes.append(_Episode(
            env=env, recorder=EpisodeRecorder(env, info_of(infos, i)), instance=number, question=observations[i],
            instructions=infos["instructions"][i], query=env.format.write(search(observations[i])),
        ))  # fmt: skip
    idle = [""] * (envs.num_envs - len(episodes))
    results, *_, step_infos = envs.step([episode.query for episode in episodes] + idle)
    for i, episode in enumerate(episodes):
        episode.search(policy, results[i], info_of(step_infos, i))

    def take_turns(numbers: list[int]) -> dict[int, Completion]:
        prompts = {i: episodes[i].prompt + episodes[i].opening for i in numbers}
        fitting = {i: prompt for i, prompt in prompts.items() if len(prompt) < engine.max_length}  # else no answer
        return generate(engine, fitting, max_new_tokens, 0.0)

    engine.reset()
    done = take_turns(list(range(len(episodes))))
    open_ones = [i for i, completion in done.items() if not episodes[i].takes_answer(policy, completion)]
    for i, completion in take_turns(open_ones).items():
        episodes[i].complete(policy, completion)
    engine.reset()
    return episodes
