"""Episodes of function calls: rolled out, recorded, imitated, learned from, by a model of each kind of chat template."""

import json
import random
from dataclasses import replace

import pytest
import torch
from chat_templates import end_ids, make_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from agent_envs.integrations.episode import Episode
from agent_envs.integrations.token_episode import TokenEpisode
from agent_envs.utils.scripts import roll_out_many
from trainers import evaluate, export, grpo, sft
from trainers.engines.engine import Completion
from trainers.factory import make_envs
from trainers.imitation.demonstrations import episode_rows
from trainers.models.policy import Policy
from trainers.rollouts.formats import choose_format
from trainers.rollouts.rollout import rollout
from trainers.trajectory import to_rows

MINIWIKI = "AgentR1/MiniWiki-Easy-v0"
WORLD = {"entities": 60, "questions": 20, "max_turns": 4}
KINDS = ("hermes", "qwen3", "qwen3.5", "drops", "llama3.1", "mistral", "glm", "gpt-oss", "gemma4")


def make_policy(kind: str) -> Policy:
    torch.manual_seed(0)
    tokenizer = make_tokenizer(kind)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=8192, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        )
    )  # fmt: skip
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *end_ids(kind)]
    return Policy(model, tokenizer)


class Scripted:
    """An engine that samples what the oracle does, written as the policy's template writes it."""

    max_length = 8192

    def __init__(self, policy, envs):
        self.policy, self.envs, self.scripts, self.open = policy, envs.envs, {}, {}

    def reset(self):
        self.scripts, self.open = {}, {}

    def submit(self, prompts, params):
        for i in prompts:
            self.scripts.setdefault(i, self.envs[i].SCRIPTS["oracle"](self.envs[i], random.Random(0)))
            format = self.envs[i].format
            tokens = self.policy.turn_ids(format.message(format.write(next(self.scripts[i]))), format.schemas())
            self.open[i] = Completion(tokens=tokens, logprobs=[-1.0] * len(tokens), finish_reason="stop")

    def wait(self):
        done, self.open = self.open, {}
        return done


def roll_out(kind, **changes):
    policy, envs = make_policy(kind), make_envs(MINIWIKI, json.dumps(WORLD | changes), "train", 2)
    choose_format(policy, "", json.dumps(changes), envs)
    return policy, envs, rollout(envs, policy, Scripted(policy, envs), questions=[0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_of_an_episode_are_those_of_its_messages_and_the_mask_is_of_the_sampled_ones(kind):
    policy, envs, episodes = roll_out(kind)
    tools = envs.envs[0].format.schemas()
    scripted = roll_out_many(envs, [0, 1], envs.envs[0].SCRIPTS["oracle"])
    for episode, turns in zip(episodes, scripted, strict=True):
        assert episode.info["em"] == 1 and len(episode.steps) > 1
        roles = [message["role"] for message in episode.messages]
        assert roles[-3:] == ["assistant", "tool", "assistant"]
        (sequence,) = to_rows(episode.steps)
        assert [id for id, own in zip(sequence.ids, sequence.mask, strict=True) if own] == [
            id for step in episode.steps for id in step.tokens
        ]
        before = [policy.to_template(message) for message in episode.messages[:-1]]
        whole = policy.tokenizer.apply_chat_template(before, tools=tools, add_generation_prompt=True, return_dict=False)
        assert episode.steps[-1].prompt == whole
        (taught,) = episode_rows(turns, policy, ())
        assert (taught.ids, taught.mask) == (sequence.ids, sequence.mask)


def test_a_rewritten_context_has_results_as_messages():
    policy, _, episodes = roll_out("hermes", context="window:1")
    assert all(episode.info["em"] == 1 for episode in episodes)
    step = max((episode.steps for episode in episodes), key=len)[-1]
    text = policy.tokenizer.decode(step.prompt)
    assert text.count("</tool_response>") == 1 and text.rindex("<tool_call>") < text.index("<tool_response>")
    # The same by an adapter that trains on ids.
    row = TokenEpisode(Episode(MINIWIKI, format="native", split="train", **WORLD), policy.tokenizer)
    row.episode.env.reset()
    row.start(0)
    while not row.done:
        turn = [*policy.encode('<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'), policy.eos_id]
        row.take(turn)
    assert sum(row.mask) == len(turn) * 4 and "<tool_response>" in policy.tokenizer.decode(row.ids)


@pytest.mark.parametrize(
    ("kind", "kwargs", "expected"),
    [
        ("hermes", {}, "native"), ("plain", {}, "tags"), ("hermes", {"format": "react"}, "react"), ("gemma", {}, "tags"),
        ("plain", {"format": "native"}, "cannot call functions: its chat template does not take tools"),
    ],
)  # fmt: skip
def test_the_format_of_a_policy(kind, kwargs, expected):
    policy, envs = make_policy(kind), make_envs(MINIWIKI, json.dumps(WORLD | kwargs), "train", 1)
    if " " in expected:
        with pytest.raises(ValueError, match=expected):
            choose_format(policy, "m", json.dumps(kwargs), envs)
        return
    choose_format(policy, "m", json.dumps(kwargs), envs)
    assert envs.envs[0].format.name == expected


def test_runs_of_grpo_and_sft(short_run, tmp_path, capsys):
    policy, folder = make_policy("hermes"), tmp_path / "model"
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    args = short_run(
        grpo, model=str(folder), updates=1, questions_per_update=1, eval_every=1, max_new_tokens=8, out=tmp_path / "run"
    )
    summary = grpo.main(args)
    assert "acts by function calls, as Hermes writes them" in capsys.readouterr().err
    assert {row["name"] for row in summary["rows"]} >= {"Base Tool Call (before RL)", "Naive RAG", "Scripted agent"}
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["policy/sampler_kl"] == pytest.approx(0, abs=1e-6)
    episodes = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    by_script = next(one for one in episodes if one["agent"] == "Scripted agent")
    assert by_script["messages"][2]["tool_calls"] and by_script["messages"][3]["role"] == "tool"
    (row,) = evaluate.main(
        evaluate.Args(env=args.env, env_kwargs=args.env_kwargs, checkpoint=(tmp_path / "run" / "checkpoint-1",), questions=2,
                      max_new_tokens=8, out=tmp_path / "evaluated")
    )[-1:]  # fmt: skip
    assert row["episodes"] == 2 and "acts by function calls" in capsys.readouterr().err
    taught = sft.main(sft.Args(
        env=args.env, env_kwargs=json.dumps(WORLD), model=str(folder), demonstrations=4, updates=1, held_out=0.0,
        out=tmp_path / "sft",
    ))  # fmt: skip
    assert taught["tokens_taught"] > 0


def test_what_is_trained_from_a_checkpoint_and_exported_keeps_its_format(short_run, tmp_path, capsys):
    policy, folder = make_policy("hermes"), tmp_path / "model"
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    args = short_run(grpo, updates=1, questions_per_update=1, max_new_tokens=8, out=tmp_path / "run")
    taught = sft.main(sft.Args(
        env=args.env, env_kwargs=json.dumps(WORLD | {"format": "react"}), model=str(folder), demonstrations=4, updates=1,
        held_out=0.0, out=tmp_path / "sft",
    ))  # fmt: skip
    grpo.main(replace(args, model=taught["checkpoint"]))
    exported = export.main(export.Args(checkpoint=tmp_path / "run" / "checkpoint-1", out=tmp_path / "out"))
    envs = make_envs(MINIWIKI, json.dumps(WORLD), "train", 1)
    for model in (taught["checkpoint"], tmp_path / "run" / "checkpoint-1", exported):
        envs.envs[0].use_format(None)
        choose_format(policy, str(model), "{}", envs)
        assert envs.envs[0].format.name == "react"
    assert capsys.readouterr().err.count("format react") == 5
