"""`agent_envs.integrations.verl` in verl's own `AgentLoopWorker`, with a stub of its engines' servers. Its trainer,
which needs GPUs, is not run."""

import runpy
import sys

import pytest
from adapters import VERL_EXAMPLE as EXAMPLE
from adapters import Verl
from datasets import Dataset
from plug_setup import MINIWIKI, SMALL, make_policy, ours

pytestmark = pytest.mark.plug
pytest.importorskip("verl.experimental.agent_loop.agent_loop", reason="pip install verl", exc_type=ImportError)

from omegaconf import OmegaConf  # noqa: E402

from agent_envs.integrations import verl  # noqa: E402


@pytest.fixture
def policy():
    return make_policy("bytes")  # untrained: its first turn is worth the same where it is the last


def test_an_episode_stays_in_its_length(policy, tmp_path):
    (row,) = verl.dataset(MINIWIKI, 1, **SMALL)
    (episode,) = ours(policy, MINIWIKI, SMALL, [row["extra_info"]["seed"]], 1)
    first = episode.steps[0]
    adapter = Verl()
    worker = adapter.make_worker(policy, tmp_path, MINIWIKI, SMALL, [episode], response_length=len(first.tokens) + 3)
    verl.AgentR1Loop._attempts.clear()
    played = adapter.generate(worker, [row])
    assert verl.AgentR1Loop._attempts == {(MINIWIKI, "", row["extra_info"]["seed"]): 1}
    assert played.non_tensor_batch["turn_scores"][0] == [0.0] and played.non_tensor_batch["env_turns"][0] == 1
    asked = worker.llm_client.asked[0]
    assert asked["stop"] and asked["include_stop_str_in_output"] and asked["logprobs"]
    assert played.batch["response_mask"].sum() == len(first.tokens)
    assert played.batch["rm_scores"].sum().item() == 0.0  # progress is taken back where an episode ends
    with pytest.raises(ValueError, match=r"raise data\.max_prompt_length"):
        adapter.generate(adapter.make_worker(policy, tmp_path, MINIWIKI, SMALL, [episode], prompt_length=5), [row])


def test_the_example_writes_what_verl_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["in_verl.py", "--questions", "3", "--out", str(tmp_path / "new")])
    runpy.run_path(str(EXAMPLE.with_suffix(".py")), run_name="__main__")
    rows = Dataset.from_parquet(str(tmp_path / "new" / "train.parquet"), cache_dir=str(tmp_path))
    assert len(rows) == 3 and rows[0]["agent_name"] == OmegaConf.load(EXAMPLE)[0].name
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
