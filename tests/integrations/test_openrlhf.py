"""`agent_envs.integrations.openrlhf` against OpenRLHF's own base class and loader, with a stub of vLLM. Its trainer, which
needs GPUs, is not run."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from adapters import Engine, OpenRLHF
from plug_setup import MINIWIKI, SMALL, make_policy, ours

pytestmark = pytest.mark.plug
agent = pytest.importorskip("openrlhf.utils.agent", reason="pip install openrlhf", exc_type=ImportError)

from agent_envs.integrations import openrlhf  # noqa: E402
from trainers.trajectory import to_rows  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "in_openrlhf.py"


def run(row, engine, tokenizer, **options):
    return OpenRLHF().run_one(openrlhf.executor(MINIWIKI, **SMALL)(), row, engine, tokenizer, **options)


def test_an_episode_stays_in_its_length():
    policy = make_policy("words")
    (row,) = openrlhf.dataset(MINIWIKI, 1, **SMALL)
    (episode,) = ours(policy, MINIWIKI, SMALL, [json.loads(row["label"])["seed"]], 1)
    first = episode.steps[0]
    room = len(first.prompt) + len(first.tokens)
    out = run(row, Engine(episode.steps), policy.tokenizer, max_length=room + 3)
    assert out["observation_tokens"] == first.prompt + first.tokens and out["truncated"]
    # Progress is taken back where an episode ends.
    assert out["reward"] == out["scores"] == 0.0 and out["extra_logs"]["turns"] == 1
    engine = Engine(episode.steps)
    run(row, engine, policy.tokenizer, max_length=room + 3, max_tokens=4)
    assert engine.asked[0].max_tokens == 4
    with pytest.raises(ValueError, match=r"raise --data\.max_len"):
        run(row, engine, policy.tokenizer, max_length=5)


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

    policy = make_policy("words")
    (row,) = openrlhf.dataset(MINIWIKI, 1, **SMALL)
    (episode,) = ours(policy, MINIWIKI, SMALL, [json.loads(row["label"])["seed"]], 1)
    played = run(row, Engine(episode.steps), policy.tokenizer)
    experience = SamplesGenerator._process_response_into_experience(None, played, max_len=100_000)
    (sequence,) = to_rows(episode.steps)
    assert experience.sequences[0].tolist() == sequence.ids
    assert experience.action_mask[0].bool().tolist() == sequence.mask[1:]
    assert experience.rollout_log_probs[0].tolist() == pytest.approx(sequence.logprobs[1:])
    assert experience.rewards.item() == pytest.approx(episode.episode_return)
