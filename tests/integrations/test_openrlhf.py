"""`agent_envs.integrations.openrlhf` against OpenRLHF's own base class and loader, with a stub of vLLM. Its trainer, which
needs GPUs, is not run."""

import asyncio
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from plug_setup import MINIWIKI, SMALL, make_policy, ours

pytestmark = pytest.mark.plug
agent = pytest.importorskip("openrlhf.utils.agent", reason="pip install openrlhf", exc_type=ImportError)

from agent_envs.integrations import openrlhf  # noqa: E402
from trainers.trajectory import to_sequences  # noqa: E402

LAKE = "AgentR1/FrozenLake-v0"
EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "in_openrlhf.py"


class Engine:
    """Says what was said in an episode, as vLLM does."""

    def __init__(self, steps):
        self.steps, self.asked = iter(steps), []

    async def generate(self, ids, sampling_params, multi_modal_data=None):
        step = next(self.steps)
        assert ids == step.prompt
        self.asked.append(sampling_params)
        said = [
            {token: SimpleNamespace(logprob=value)} for token, value in zip(step.tokens, step.logprobs, strict=True)
        ]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=step.tokens, text=None, logprobs=said)])


def sampling(**changes):
    return SimpleNamespace(**{"max_tokens": None, "logprobs": 1, "stop": None, **changes})


def play(made, row, engine, tokenizer, max_length=100_000, **changes):
    return asyncio.run(made.execute(row["input"], row["label"], sampling(**changes), max_length, tokenizer, engine))


@pytest.mark.parametrize("kind", ["bytes", "words"])
@pytest.mark.parametrize(("id", "kwargs"), [(MINIWIKI, SMALL), (LAKE, {})])
def test_ids_masks_logprobs_and_rewards_are_those_of_our_rollout(kind, id, kwargs):
    policy, made = make_policy(kind), openrlhf.executor(id, **kwargs)()
    assert isinstance(made, agent.AgentExecutorBase)
    rows = openrlhf.dataset(id, 2, seed=5, **kwargs)
    episodes = ours(policy, id, kwargs, [json.loads(row["label"])["seed"] for row in rows], 3)
    for i, episode in enumerate(episodes):
        engine = Engine(episode.steps)
        played = play(made, rows[i // 3], engine, policy.tokenizer)
        (sequence,) = to_sequences(episode.steps)
        assert played["observation_tokens"] == sequence.ids
        mask = [
            any(start <= place < end for start, end in played["action_ranges"]) for place in range(len(sequence.ids))
        ]
        assert mask == sequence.mask and played["rollout_log_probs"] == sequence.logprobs
        assert played["reward"] == pytest.approx(episode.episode_return)
        assert played["extra_logs"]["turns"] == len(episode.steps) == len(engine.asked)
        assert engine.asked[0].stop and engine.asked[0].include_stop_str_in_output


def test_an_episode_stays_in_its_length():
    policy, made = make_policy("words"), openrlhf.executor(MINIWIKI, **SMALL)()
    (row,) = openrlhf.dataset(MINIWIKI, 1, **SMALL)
    (episode,) = ours(policy, MINIWIKI, SMALL, [json.loads(row["label"])["seed"]], 1)
    first = episode.steps[0]
    room = len(first.prompt) + len(first.tokens)
    played = play(made, row, Engine(episode.steps), policy.tokenizer, room + 3)
    assert played["observation_tokens"] == first.prompt + first.tokens and played["truncated"]
    assert played["reward"] == pytest.approx(first.reward) and played["scores"] == 0.0
    engine = Engine(episode.steps)
    play(made, row, engine, policy.tokenizer, room + 3, max_tokens=4)
    assert engine.asked[0].max_tokens == 4
    with pytest.raises(ValueError, match=r"raise --data\.max_len"):
        play(made, row, engine, policy.tokenizer, 5)


def test_what_cannot_be_trained_is_refused():
    policy, made = make_policy("words"), openrlhf.executor(MINIWIKI, **SMALL)()
    (row,) = openrlhf.dataset(MINIWIKI, 1, split="validation", **SMALL)
    with pytest.raises(ValueError, match="leave context at 'append'"):
        openrlhf.executor(MINIWIKI, context="window:1", **SMALL)
    with pytest.raises(ValueError, match="a label without a seed"):
        play(made, {**row, "label": "Oslo"}, None, policy.tokenizer)
    with pytest.raises(ValueError, match="the same arguments"):
        play(made, {**row, "input": "Another question?"}, None, policy.tokenizer)


@pytest.fixture
def no_vllm(monkeypatch):
    """OpenRLHF's modules around vLLM, without it."""
    pytest.importorskip("ray", reason="pip install ray", exc_type=ImportError)
    for name, member in {"vllm": "SamplingParams", "vllm.inputs": "TokensPrompt", "vllm.utils": "random_uuid"}.items():
        module = ModuleType(name)
        setattr(module, member, object)
        monkeypatch.setitem(sys.modules, name, module)


def test_openrlhfs_loader_takes_the_example(no_vllm):
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    assert isinstance(_load_agent_executor(str(EXAMPLE)), agent.AgentExecutorBase)


def test_openrlhf_makes_its_experience_of_it(no_vllm):
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    policy, made = make_policy("words"), openrlhf.executor(MINIWIKI, **SMALL)()
    (row,) = openrlhf.dataset(MINIWIKI, 1, **SMALL)
    (episode,) = ours(policy, MINIWIKI, SMALL, [json.loads(row["label"])["seed"]], 1)
    played = play(made, row, Engine(episode.steps), policy.tokenizer)
    experience = SamplesGenerator._process_response_into_experience(None, played, max_len=100_000)
    (sequence,) = to_sequences(episode.steps)
    assert experience.sequences[0].tolist() == sequence.ids
    assert experience.action_mask[0].bool().tolist() == sequence.mask[1:]
    assert experience.rollout_log_probs[0].tolist() == pytest.approx(sequence.logprobs[1:])
    assert experience.rewards.item() == pytest.approx(episode.episode_return)
