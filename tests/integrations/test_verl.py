"""`agent_envs.integrations.verl` in verl's own `AgentLoopWorker`, with a stub of its engines' servers. Its trainer,
which needs GPUs, is not run."""

import asyncio
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from plug_setup import MINIWIKI, SMALL, make_policy, ours

pytestmark = pytest.mark.plug
agent_loop = pytest.importorskip(
    "verl.experimental.agent_loop.agent_loop", reason="pip install verl", exc_type=ImportError
)

import verl.trainer.config as verl_config  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.protocol import DataProto  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from agent_envs.integrations import verl  # noqa: E402
from trainers.trajectory import to_sequences  # noqa: E402

LAKE = "AgentR1/FrozenLake-v0"
EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "in_verl.yaml"


class Servers:
    """Says what was said in episodes, in place of verl's `LLMServerClient`."""

    def __init__(self, episodes):
        self.turns = {}
        for episode in episodes:
            for step in episode.steps:
                self.turns.setdefault(tuple(step.prompt), []).append(step)
        self.asked = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **rest):
        self.asked.append(sampling_params)
        step = self.turns[tuple(prompt_ids)].pop(0)
        return TokenOutput(token_ids=step.tokens, log_probs=step.logprobs, extra_fields={"global_steps": 3})


@pytest.fixture
def policy():
    return make_policy("bytes")  # verl loads tokenizers by the name of the model, which knows no words


def make_worker(policy, folder, id, kwargs, episodes, prompt_length=2000, response_length=3000):
    """verl's worker with the configuration that its trainer begins with."""
    policy.model.save_pretrained(folder / "model")
    policy.tokenizer.save_pretrained(folder / "model")
    loops = OmegaConf.load(EXAMPLE)
    loops[0].id, loops[0].env_kwargs = id, kwargs
    OmegaConf.save(loops, folder / "loops.yaml")
    config = OmegaConf.load(Path(verl_config.__file__).parent / "_generated_ppo_trainer.yaml")
    config.actor_rollout_ref.model.path = str(folder / "model")
    rollout = config.actor_rollout_ref.rollout
    rollout.name, rollout.agent.agent_loop_config_path = "vllm", str(folder / "loops.yaml")
    rollout.prompt_length, rollout.response_length, rollout.calculate_log_probs = prompt_length, response_length, True
    return agent_loop.AgentLoopWorker(config, Servers(episodes))


def play(worker, rows):
    columns = {name: np.empty(len(rows), dtype=object) for name in ("raw_prompt", "agent_name", "extra_info")}
    for i, row in enumerate(rows):
        columns["raw_prompt"][i], columns["agent_name"][i] = row["prompt"], row["agent_name"]
        columns["extra_info"][i] = row["extra_info"]
    batch = DataProto.from_dict(non_tensors=columns, meta_info={"validate": False, "global_steps": 0})
    return asyncio.run(worker.generate_sequences(batch))


@pytest.mark.parametrize(("id", "kwargs"), [(MINIWIKI, SMALL), (LAKE, {})])
def test_ids_masks_logprobs_and_rewards_are_those_of_our_rollout(policy, id, kwargs, tmp_path, monkeypatch):
    monkeypatch.setattr(verl, "_FIRST_ATTEMPT", 0)
    monkeypatch.setattr(verl.AgentR1Loop, "_attempts", verl.Counter())
    data = verl.dataset(id, 2, seed=5, **kwargs)
    episodes = ours(policy, id, kwargs, [row["extra_info"]["seed"] for row in data], 3)
    worker = make_worker(policy, tmp_path, id, kwargs, episodes)
    played = play(worker, [row for row in data for _ in range(3)])
    for i, episode in enumerate(episodes):
        (sequence,) = to_sequences(episode.steps)
        start = len(episode.steps[0].prompt)
        own, count = played.batch["attention_mask"][i].bool(), len(sequence.ids) - start
        assert played.batch["input_ids"][i][own].tolist() == sequence.ids
        assert played.batch["response_mask"][i, :count].bool().tolist() == sequence.mask[start:]
        assert played.batch["rollout_log_probs"][i, :count].tolist() == pytest.approx(sequence.logprobs[start:])
        assert not played.batch["response_mask"][i, count:].any()
        scores = played.batch["rm_scores"][i]
        assert scores.sum().item() == pytest.approx(episode.episode_return) and not scores[: count - 1].any()
        assert played.non_tensor_batch["turn_scores"][i] == [step.reward for step in episode.steps]
        assert played.non_tensor_batch["env_turns"][i] == len(episode.steps)
    asked = worker.llm_client.asked[0]
    assert asked["stop"] and asked["include_stop_str_in_output"] and asked["logprobs"]


def test_an_episode_stays_in_its_length(policy, tmp_path):
    (row,) = verl.dataset(MINIWIKI, 1, **SMALL)
    (episode,) = ours(policy, MINIWIKI, SMALL, [row["extra_info"]["seed"]], 1)
    first = episode.steps[0]
    worker = make_worker(policy, tmp_path, MINIWIKI, SMALL, [episode], response_length=len(first.tokens) + 3)
    played = play(worker, [row])
    assert played.batch["response_mask"].sum() == len(first.tokens)
    assert played.batch["rm_scores"].sum().item() == pytest.approx(first.reward)
    with pytest.raises(ValueError, match=r"raise data\.max_prompt_length"):
        play(make_worker(policy, tmp_path, MINIWIKI, SMALL, [episode], prompt_length=5), [row])


def test_what_cannot_be_trained_is_refused(policy, tmp_path):
    (row,) = verl.dataset(MINIWIKI, 1, **SMALL)
    with pytest.raises(ValueError, match="leave context at 'append'"):
        play(make_worker(policy, tmp_path, MINIWIKI, {**SMALL, "context": "window:1"}, []), [row])
    worker = make_worker(policy, tmp_path, MINIWIKI, SMALL, [])
    with pytest.raises(ValueError, match="a row without a seed"):
        play(worker, [{**row, "extra_info": {"index": 0}}])
    with pytest.raises(ValueError, match="the same arguments"):
        play(worker, [{**row, "extra_info": {**row["extra_info"], "split": "validation"}}])


def test_the_example_writes_what_verl_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["in_verl.py", "--questions", "3", "--out", str(tmp_path / "new")])
    runpy.run_path(str(EXAMPLE.with_suffix(".py")), run_name="__main__")
    rows = Dataset.from_parquet(str(tmp_path / "new" / "train.parquet"), cache_dir=str(tmp_path))
    assert len(rows) == 3 and rows[0]["agent_name"] == OmegaConf.load(EXAMPLE)[0].name
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
