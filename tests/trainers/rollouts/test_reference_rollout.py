"""What an update is given, end to end: the questions and groups of a batch, the ids of a conversation, its probabilities,
anchors and failures. The other half of `test_reference_update`."""

import copy

import numpy as np
import pytest
import torch
from drive_update import collect_batch, play_episodes, run_update
from reference import Reference, logprobs, strip_padding

from agent_envs.types import ToolCall, Turn
from trainers.factory import make_envs

SMALL = '{"entities": 60, "questions": 20, "max_turns": 3}'
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def policy(make_policy):
    """One that ends about every fourth turn by itself within six tokens, at the temperature of these tests."""
    policy = make_policy("bytes", 3)
    ids = policy.prompt_ids("Say something.", "one")
    with torch.no_grad():
        hidden = policy.model.base_model(torch.tensor([ids])).last_hidden_state[0]
        logits = policy.model(torch.tensor([ids])).logits[0]
        direction = hidden.mean(0) / hidden.mean(0).norm() ** 2
        policy.model.lm_head.weight[policy.eos_id] = direction * logits.max(1).values.mean() * 0.9
    return policy


@pytest.fixture(scope="module")
def recited(policy, recite):
    """Nine episodes in three groups, of three turns."""
    texts = [[f"{group} is asked", "two", "three"] for group in "abc" for _ in range(3)]
    rewards = [[0.5 * (i % 2), 0.25 * (i % 3), 1.0 * (i % 5 == 0)] for i in range(9)]
    torch.manual_seed(0)
    return play_episodes(
        recite(texts, rewards), policy, seeds=[0, 1, 2], group_size=3, max_new_tokens=6, temperature=TEMPERATURE
    )


def test_a_turn_ends_once_whoever_ended_it(policy, recited):
    """The policy's own end of a turn is not written again; a turn that was cut off gets one from the template."""
    end, start = "<|im_end|>", "<|im_start|>"
    ended_itself = []
    for i, episode in enumerate(recited):
        asked = f"{'abc'[i // 3]} is asked"
        context = f"{start}system\nSay something.{end}\n{start}user\n{asked}{end}\n{start}assistant\n"
        ids = policy.tokenizer(context).input_ids
        for turn, told in zip(episode.turns, ["two", "three", None], strict=True):
            assert turn.prompt == ids
            ended_itself.append(turn.tokens[-1] == policy.eos_id)
            missing = "" if ended_itself[-1] else end
            ids = ids + turn.tokens
            ids = ids + policy.tokenizer(f"{missing}\n{start}user\n{told}{end}\n{start}assistant\n").input_ids
    assert {True, False} == set(ended_itself)


def test_probabilities_are_those_of_the_temperature(policy, recited):
    for episode in recited:
        (row,) = strip_padding(episode)
        with torch.no_grad():
            expected = logprobs(copy.deepcopy(policy.model).double(), row, TEMPERATURE)[0].tolist()
        assert [token.old for token in row.tokens] == pytest.approx(expected, abs=1e-4)


def test_an_update_of_what_was_played(policy, recited):
    options = dict(temperature=TEMPERATURE, epochs=2, minibatches=2, lr=2e-3, scale_by_std=True)
    got = run_update("grpo", options, policy, [recited])
    expected = Reference("grpo", options, policy.model, follow=got.gradients)
    expected.update(recited, np.random.default_rng(0))
    for ours, theirs in zip(got.gradients, expected.gradients, strict=True):
        norm = max(float(x.norm()) for x in theirs.values())
        assert all(float((ours[name] - x).norm()) < 1e-4 * norm for name, x in theirs.items())


def first_prompt(policy, seed: int) -> list[int]:
    """What is asked after a reset with this seed, in an environment by itself."""
    env = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 1).envs[0]
    observation, info = env.reset(seed=seed)
    return policy.prompt_ids(info["instructions"], observation)


def test_members_of_a_group_are_asked_one_question_and_groups_are_asked_others(policy):
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 6)
    episodes = play_episodes(envs, policy, seeds=[3, 4, 5], group_size=2, max_new_tokens=2)
    assert [episode.group for episode in episodes] == [0, 0, 1, 1, 2, 2]
    expected = [first_prompt(policy, seed) for seed in (3, 3, 4, 4, 5, 5)]
    assert [episode.turns[0].prompt for episode in episodes] == expected
    assert expected[0] != expected[2] != expected[4] != expected[0]


@pytest.mark.parametrize("number", [0, 3])
def test_the_batch_of_an_update(policy, number):
    """Its questions are drawn by the run's seed and the update's number; it is played at the temperature of the run."""
    options = dict(questions_per_update=3, group_size=2, temperature=TEMPERATURE, max_new_tokens=5, seed=7)
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 6)
    episodes = collect_batch(options, envs, policy, number)
    drawn = np.random.default_rng([7, number]).integers(2**31, size=3).tolist()
    expected = [first_prompt(policy, seed) for seed in drawn for _ in range(2)]
    assert [episode.group for episode in episodes] == [0, 0, 1, 1, 2, 2]
    assert [episode.turns[0].prompt for episode in episodes] == expected
    assert expected[0] != expected[2] != expected[4] != expected[0]
    assert all(len(turn.tokens) <= 5 for episode in episodes for turn in episode.turns)
    for episode in episodes[::2]:
        row = strip_padding(episode)[0]
        with torch.no_grad():
            own = logprobs(policy.model, row, TEMPERATURE)[0].tolist()
        assert [token.old for token in row.tokens] == pytest.approx(own, abs=1e-3)


def search(env, query: str) -> str:
    return env.format.write(Turn(calls=(ToolCall("search", {"query": query}),)))


def test_anchors_are_the_states_that_turns_were_taken_in(policy):
    """Searches for the gold titles, one of which is found at each turn; compared with environments played by hand."""
    envs, by_hand = (make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 4) for _ in range(2))
    said, expected = [], []
    for env, seed in zip(by_hand.envs, (3, 3, 4, 4), strict=True):
        env.reset(seed=seed)
        titles = env.question.supporting_titles
        queries = [titles[0], "nothing of the kind", titles[-1]] if len(said) % 2 else [titles[0], titles[-1], "x"]
        said.append([search(env, query) for query in queries])
        expected.append([])
        for action in said[-1]:
            expected[-1].append(env.anchor())
            env.step(action)
    episodes = play_episodes(envs, policy, said, seeds=[3, 4], group_size=2)
    assert [episode.anchors for episode in episodes] == expected
    assert all(anchors[0] == () and len(set(anchors)) > 1 for anchors in expected)


def test_a_context_that_the_environment_rewrote_begins_a_row(policy):
    """Of the last turn alone: what is prompted with is what an environment played by hand says."""
    kwargs = SMALL.replace("}", ', "context": "window:1"}')
    envs, by_hand = (make_envs("AgentR1/MiniWiki-Easy-v0", kwargs, "train", 2) for _ in range(2))
    said = [[search(env, word) for word in ("one", "two", "three")] for env in by_hand.envs]
    episodes = play_episodes(envs, policy, said, seeds=[3], group_size=2)
    for env, episode, actions in zip(by_hand.envs, episodes, said, strict=True):
        context, info = env.reset(seed=3)
        instructions, rewritten = info["instructions"], 0
        for turn, action in zip(episode.turns, actions, strict=True):
            if isinstance(context, list):
                assert turn.prompt == policy.prompt_ids(instructions, context)
            *_, info = env.step(action)
            context = info.get("context")
            rewritten += context is not None
        assert rewritten and len(strip_padding(episode)) == 1 + rewritten


class Breaks:
    """A tool that breaks at some of its calls, and is not called for others beside its own."""

    interchangeable, lane = False, None

    def __init__(self, tool, at: set[int]):
        self.tool, self.at, self.calls = tool, at, 0

    def __getattr__(self, name: str):
        return getattr(self.tool, name)

    def execute_batch(self, arguments):
        self.calls += 1
        if self.calls - 1 in self.at:
            raise RuntimeError("the index is gone")
        return self.tool.execute_batch(arguments)


def test_an_episode_stays_failed_once_a_tool_broke(policy):
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 4)
    broken = [{0}, set(), {1}, {2}]
    for env, at in zip(envs.envs, broken, strict=True):
        env.tools = {"search": Breaks(env.tools["search"], at)}
    said = [[search(env, word) for word in ("one", "two", "three")] for env in envs.envs]
    episodes = play_episodes(envs, policy, said, seeds=[3, 4], group_size=2)
    assert [episode.failed for episode in episodes] == [True, False, True, True]
    assert [len(episode.turns) for episode in episodes] == [3] * 4  # the episode goes on all the same


def test_attempts_at_one_instance_have_chances_of_their_own(policy):
    """The arms are the same and so is the choice; the payoffs are those of an environment with this luck."""
    envs, by_hand = (make_envs("AgentR1/Bandit-v0", "{}", "train", 16) for _ in range(2))
    said, expected = [], []
    for i, env in enumerate(by_hand.envs):
        env.reset(seed=i // 8, options={"noise_seed": i % 8})
        said.append([env.format.write(Turn(answer=env.arms.risky))])
        expected.append(env.step(said[-1][0])[1])
    episodes = play_episodes(envs, policy, said, seeds=[0, 1], group_size=8)
    assert [episode.turns[0].reward for episode in episodes] == expected
    assert any(len(set(payoffs)) > 1 for payoffs in (expected[:8], expected[8:]))
