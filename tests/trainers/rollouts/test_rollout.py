import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from agent_envs.context import make_context
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.rollouts.agent_rollout import cause_of_failure
from trainers.rollouts.rollout import rollout
from trainers.rollouts.statistics import episode_metrics
from trainers.rollouts.timing import Timing

SMALL = '{"entities": 60, "questions": 20, "max_turns": 2}'


@pytest.fixture
def playing(make_policy):
    policy = make_policy("bytes")
    return policy, TransformersEngine(policy, ("</search>", "</answer>"))


def test_episodes_of_different_lengths_end_on_their_own(playing, recite):
    policy, engine = playing
    envs = recite([["a"], ["b", "c", "d"], ["e", "f"]])
    episodes = rollout(envs, policy, engine, seeds=[1, 2, 3], max_new_tokens=5)
    assert [len(e.steps) for e in episodes] == [1, 3, 2]
    assert [e.group for e in episodes] == [0, 1, 2]
    assert all(e.truncated for e in episodes)
    assert [e.info["turns"] for e in episodes] == [1, 3, 2]
    assert [e.score for e in episodes] == [1.0, 3.0, 2.0]


def test_other_turns_go_on_while_tools_wait(playing, recite, monkeypatch):
    """The environments wait for the engine, as a tool would for its server: nothing would ever come of it in turns."""
    policy, engine = playing
    envs = recite([["a", "b", "c"], ["d", "e"], ["f", "g", "h"]])
    expected = rollout(envs, policy, engine, seeds=[0] * 3, max_new_tokens=5, temperature=0)
    for env in envs.envs:
        env.tools = {"slow": SimpleNamespace(io_bound=True)}
    went_on, wait, step = threading.Event(), engine.wait, envs.step

    def noted():
        went_on.set()
        return wait()

    def waiting(actions, **options):
        assert went_on.wait(30)
        went_on.clear()
        return step(actions, **options)

    monkeypatch.setattr(engine, "wait", noted)
    monkeypatch.setattr(envs, "step", waiting)
    assert engine.wait() == {}  # nothing is open
    went_on.clear()
    episodes = rollout(envs, policy, engine, seeds=[0] * 3, max_new_tokens=5, temperature=0)
    assert [[step.tokens for step in e.steps] for e in episodes] == [
        [step.tokens for step in e.steps] for e in expected
    ]
    assert [e.episode_return for e in episodes] == [e.episode_return for e in expected]


def test_turns_that_reach_their_length_are_cut(playing):
    policy, engine = playing
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 2)
    episodes = rollout(envs, policy, engine, seeds=[1, 2], max_new_tokens=3, temperature=0)
    assert all(turn["cut"] for episode in episodes for turn in episode.turns)
    assert episode_metrics(episodes, "em")["train/cut_turns"] == 1


@pytest.mark.parametrize("asked", [{"seeds": [3, 4], "group_size": 2}, {"questions": [7, 0]}])
def test_transcripts_are_complete(playing, asked):
    policy, engine = playing
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 5)  # some stay idle
    episodes = rollout(envs, policy, engine, **asked, max_new_tokens=4)
    questions = [episode.turns[0]["observation"] for episode in episodes]
    if "questions" in asked:
        assert questions == [envs.envs[0].questions[number].question for number in asked["questions"]]
    else:
        assert questions[0] == questions[1] != questions[2] == questions[3]
    for episode in episodes:
        assert [turn["action"] for turn in episode.turns] == [policy.decode(step.tokens) for step in episode.steps]
        assert sum(turn["reward"] for turn in episode.turns) == pytest.approx(episode.episode_return)
        assert sum(episode.reward_terms.values()) == pytest.approx(episode.episode_return)
        assert {"em", "f1", "support_recall", "turns", "calls"} <= set(episode.info)


def test_what_took_how_long_and_how_many_tokens(playing, recite):
    policy, engine = playing
    timing = Timing()
    episodes = rollout(recite([["a", "b", "c"], ["a"]]), policy, engine, seeds=[0] * 2, max_new_tokens=5, timing=timing)
    taken = timing.pop_metrics()
    assert {"time/prefill", "time/decode", "time/tools", "tokens/prefill", "tokens/decode"} == set(taken)
    assert all(value > 0 for value in taken.values())
    assert taken["tokens/decode"] == sum(len(step.tokens) for e in episodes for step in e.steps)
    read = sum(len(e.steps[-1].prompt) - sum(len(step.tokens) for step in e.steps[:-1]) for e in episodes)
    assert taken["tokens/prefill"] == read
    assert timing.pop_metrics() == {}


@pytest.mark.parametrize(("room", "turns"), ((-1, 2), (0, 3)))
def test_an_episode_ends_where_the_model_can_read_no_further_turn(playing, recite, room, turns):
    policy, engine = playing
    texts = [["one", "two", "three, which is long"], ["four", "five", "six"]]
    longest, _ = rollout(recite(texts), policy, engine, seeds=[0, 1], max_new_tokens=4, temperature=0.0)
    engine.max_length = len(longest.steps[2].prompt) + 4 + room
    episode, shorter = rollout(recite(texts), policy, engine, seeds=[0, 1], max_new_tokens=4, temperature=0.0)
    assert [len(e.steps) for e in (longest, episode, shorter)] == [3, turns, 3]
    assert [step.tokens for step in episode.steps] == [step.tokens for step in longest.steps[:turns]]
    assert episode.truncated
    assert episode.info["turns"] == turns


def test_the_next_turn_need_not_be_as_long_as_one_may_be(playing, recite):
    policy, engine = playing
    engine.max_length = 400
    submit = engine.submit
    engine.submit = lambda prompts, params: submit(prompts, replace(params, max_new_tokens=4))  # a policy that is brief
    envs = recite([["one", "two", "three"]])
    (episode,) = rollout(envs, policy, engine, seeds=[0], max_new_tokens=399)
    assert len(episode.steps) == 3
    assert envs.envs[0].fits is None  # environments know no policy after a rollout


def test_one_task_of_a_mixture_that_rewrites_leaves_the_others_their_limit(playing):
    policy, engine = playing
    tasks = {"AgentR1/Sokoban-v0": 1, "AgentR1/Bandit-v0": {"weight": 1, "kwargs": {"context": "window:1"}}}
    envs = make_envs("AgentR1/Mixture-v0", json.dumps({"tasks": tasks}), "train", 8)
    engine.max_length = 1100
    for episode in rollout(envs, policy, engine, seeds=list(range(8)), max_new_tokens=40):
        assert max(len(step.prompt + step.tokens) for step in episode.steps) <= 1100


@pytest.mark.parametrize("context", ["window:2", "summary:2"])
def test_a_rewritten_context_that_the_model_cannot_read_ends_its_episode(playing, recite, context):
    policy, engine = playing

    def play():
        envs = recite([["x" * 90] * 6, ["y"] * 6])
        for env in envs.envs:
            env.context = make_context(context)
        return rollout(envs, policy, engine, seeds=[0, 1], max_new_tokens=4, temperature=0.0)

    free, _ = play()
    longest = [len(step.prompt) for step in free.steps]
    engine.max_length = max(longest) + 3  # no room for a turn of four
    episode, short = play()
    assert episode.truncated and len(short.steps) == 6
    assert len(episode.steps) == longest.index(max(longest)), "it ends before the prompt that is too long"
    engine.max_length += 1
    assert len(play()[0].steps) == 6


def test_of_a_task_that_is_too_long_to_be_read_nothing_is_learned(playing, recite):
    policy, engine = playing
    engine.max_length = 100
    long, short = rollout(recite([["x" * 200], ["y"]]), policy, engine, seeds=[0, 1], max_new_tokens=4)
    assert long.failed and not long.steps and long.info == {"paid": 0.0}
    assert "and the model reads 100 at most: take fewer or shorter passages" in cause_of_failure(long)
    assert not short.failed and short.steps
