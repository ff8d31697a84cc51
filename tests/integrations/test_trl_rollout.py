"""`agent_envs.integrations.trl` without TRL: its rollouts are ours, id by id."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest
from plug_setup import MINIWIKI, SMALL, make_policy, ours
from transformers.utils import get_json_schema

from agent_envs.integrations import Episode, trl
from trainers.trajectory import to_sequences

LAKE = "AgentR1/FrozenLake-v0"


def replaying(policy, episodes, extra=()):
    """A trainer whose sampler says what was said in ``episodes``; it goes on with ``extra`` behind the end of a turn."""
    turns = {tuple(step.prompt): [] for episode in episodes for step in episode.steps}
    for episode in episodes:
        for step in episode.steps:
            turns[tuple(step.prompt)].append(step)

    def sample(prompts, images, fields, num_generations):
        steps = [turns[tuple(prompt)].pop(0) for prompt in prompts]
        more = [list(extra) if step.tokens[-1] not in policy.end_ids else [] for step in steps]
        said = [step.tokens + own for step, own in zip(steps, more, strict=True)]
        return said, [step.logprobs + [0.0] * len(own) for step, own in zip(steps, more, strict=True)]

    return SimpleNamespace(
        _generate_single_turn=sample, accelerator=SimpleNamespace(process_index=0), mask_truncated_completions=False,
        eos_token_ids=[policy.eos_id], generation_config=SimpleNamespace(),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["bytes", "words"])
@pytest.mark.parametrize(("id", "kwargs"), [(MINIWIKI, SMALL), (LAKE, {})])
def test_ids_masks_and_rewards_are_those_of_our_rollout(kind, id, kwargs):
    policy, group_size = make_policy(kind), 3
    data = trl.dataset(id, 2, seed=5, **kwargs)
    episodes = ours(policy, id, kwargs, data["seed"], group_size)
    played = trl.rollout_func(id, policy.tokenizer, **kwargs)(
        [prompt for prompt in data["prompt"] for _ in range(group_size)], replaying(policy, episodes)
    )
    for i, episode in enumerate(episodes):
        (sequence,) = to_sequences(episode.steps)
        start = len(episode.steps[0].prompt)
        assert played["prompt_ids"][i] + played["completion_ids"][i] == sequence.ids
        assert [bool(own) for own in played["env_mask"][i]] == sequence.mask[start:]
        assert played["logprobs"][i] == sequence.logprobs[start:]
        assert played["turn_rewards"][i] == [step.reward for step in episode.steps]
        assert played["env_metrics"][i]["turns"] == len(episode.steps)
    paid = trl.episode_return(None, played["turn_rewards"], env_metrics=played["env_metrics"])
    assert paid == pytest.approx([episode.episode_return for episode in episodes])


def test_what_is_sampled_behind_the_end_of_a_turn_is_cut_off():
    policy, turn = make_policy("bytes"), "<search>town</search>"
    data = trl.dataset(MINIWIKI, 1, **SMALL)
    tail = policy.encode(" and more")

    def sample(prompts, *rest):
        return [policy.encode(turn) + tail for _ in prompts], None

    trainer = replaying(policy, [])
    trainer._generate_single_turn = sample
    played = trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)(list(data["prompt"]), trainer)
    own = [i for i, mine in zip(played["completion_ids"][0], played["env_mask"][0], strict=True) if mine]
    assert own == policy.encode(turn) * 3 and played["logprobs"] is None


def test_held_out_questions_are_played_in_their_split():
    policy = make_policy("bytes")
    play = trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)
    prompts = [trl.dataset(MINIWIKI, 1, split=split, **SMALL)["prompt"][0] for split in ("train", "validation")]
    assert prompts[0][1]["content"] != prompts[1][1]["content"]
    trainer = replaying(policy, [])
    trainer._generate_single_turn = lambda asked, *rest: ([policy.encode("<answer>x</answer>") for _ in asked], None)
    assert len(play(prompts, trainer)["turn_rewards"]) == 2


def test_what_cannot_be_trained_is_refused():
    policy = make_policy("bytes")
    trainer, prompts = replaying(policy, []), list(trl.dataset(MINIWIKI, 1, **SMALL)["prompt"])
    with pytest.raises(ValueError, match="context at 'append'"):
        trl.rollout_func(MINIWIKI, policy.tokenizer, context="window:1", **SMALL)
    with pytest.raises(ValueError, match="special tokens"):
        trl.rollout_func(MINIWIKI, policy.tokenizer, format="harmony", **SMALL)
    with pytest.raises(ValueError, match="the same arguments"):
        trl.rollout_func(MINIWIKI, policy.tokenizer, format="hermes", **SMALL)(prompts, trainer)
    with pytest.raises(ValueError, match=r"train on agent_envs.integrations.trl.dataset\(id, n\)"):
        trl.rollout_func(MINIWIKI, policy.tokenizer)([[{"role": "user", "content": "hi"}]], trainer)
    trainer.mask_truncated_completions = True
    with pytest.raises(ValueError, match="leave it off"):
        trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)(prompts, trainer)
    with pytest.raises(ValueError, match="made for TRL"):
        trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)(prompts, SimpleNamespace())
    with pytest.raises(ValueError, match="needs rollout_func or environment_factory"):
        trl.episode_return([])


def test_an_episode_in_which_a_tool_broke_has_no_return():
    metrics = [{"tool_faults": 0.0}, {"tool_faults": 1.0}]
    assert trl.episode_return(None, [[1.0, 0.5], [1.0]], env_metrics=metrics) == [1.5, None]


def described(id, **kwargs):
    """The tools of `environment_factory` as chat templates see them, by name."""
    environment = trl.environment_factory(id, **kwargs)()
    methods = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    names = [name for name, _ in methods if name[0] != "_" and name != "reset"]
    return {name: get_json_schema(getattr(environment, name))["function"] for name in names}


def test_each_tool_is_a_method_with_its_schema():
    tools = described(MINIWIKI, **SMALL)
    assert list(tools) == ["answer", "search"]
    assert tools["search"]["parameters"]["properties"]["query"]["type"] == "string"
    assert tools["search"]["description"].startswith("search Wikipedia")
    (move,) = described("AgentR1/Sokoban-v0").values()
    actions = move["parameters"]["properties"]["actions"]
    assert actions["type"] == "array" and actions["items"]["enum"] == ["Up", "Down", "Left", "Right"]
    for id in ("AgentR1/API-v0", "AgentR1/SQL-v0", "AgentR1/Calculator-v0", "AgentR1/Mixed-v0", "AgentR1/Python-v0"):
        for tool in Episode(id, native=True).tools:
            own = described(id)[tool["function"]["name"]]["parameters"]
            assert own.get("required", []) == tool["function"]["parameters"].get("required", [])
            assert set(own.get("properties", {})) == set(tool["function"]["parameters"]["properties"])


def test_calls_of_a_message_are_one_turn():
    environment = trl.environment_factory(MINIWIKI, **SMALL)()
    (row,) = trl.dataset(MINIWIKI, 1, native=True, **SMALL).to_list()
    environment.reset(**row)

    async def message(*queries):
        return await asyncio.gather(*(environment.search(query=query) for query in queries))

    first = asyncio.run(message("a town", "a painter"))
    assert len(environment._episode.rewards) == 1 and len(set(first)) == 2
    asyncio.run(message("a town"))
    assert len(environment._episode.rewards) == 2
    with pytest.raises(ValueError, match="train on agent_envs"):
        environment.reset(prompt=row["prompt"])
    (held_out,) = trl.dataset(MINIWIKI, 1, native=True, split="validation", **SMALL).to_list()
    environment.reset(**held_out)  # in its own split, or the question would not be this one
    assert environment._episode.env.question.question == held_out["prompt"][1]["content"] != row["prompt"][1]["content"]
