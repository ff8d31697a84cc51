"""A budget of tokens for thoughts: where it is used up the thought is closed, with tokens that nothing is learned from."""

import json

import pytest
import torch
from chat_templates import KINDS, end_ids, make_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from agent_envs.stopping import StopChecker
from trainers import grpo, ppo
from trainers.engines.engine import generate
from trainers.engines.model_runner import ModelRunner
from trainers.engines.transformers_engine import TransformersEngine
from trainers.engines.turns import OpenTurn, ThoughtBudget
from trainers.episodes.records import read_episodes
from trainers.evaluation.evaluator import load_agent
from trainers.factory import make_engine
from trainers.models.policy import Policy
from trainers.tiny.cold_start import start_policy
from trainers.trajectory import Step, Trajectory, collate

STOP = ("</answer>",)


def make_thinker(kind: str, thinking: str = "4") -> Policy:
    torch.manual_seed(0)
    tokenizer = make_tokenizer(kind)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.15, bos_token_id=None,
        eos_token_id=[tokenizer.eos_token_id, *end_ids(kind)],
    )  # fmt: skip
    return Policy(Qwen2ForCausalLM(config), tokenizer, thinking=thinking)


def write(policy: Policy, said: str, longest: int = 10**6) -> tuple[str, str, int]:
    """What becomes of a turn in which the policy would write ``said``, why it ends, and how many tokens were not sampled."""
    budget = ThoughtBudget(policy, policy.thought_tokens)
    turn = OpenTurn(longest=longest, is_complete=StopChecker(policy, STOP), budget=budget)
    drawn = iter([*policy.encode(said, "\n"), *policy.turn_end_ids])
    while not turn.ended:
        turn.append(policy.pad_id if turn._forced else next(drawn), -1.0)
    text = policy.tokenizer.decode(turn.completion.tokens)
    return text, turn.completion.finish_reason, turn.completion.logprobs.count(None)


@pytest.mark.parametrize(
    ("kind", "opening", "closing"),
    [
        ("qwen3", "<think>\n", "\n</think>\n\n"),
        ("qwen3.5", "", "\n</think>\n\n"),
        ("r1", "", "\n</think>\n\n"),
        ("glm", "\n<think>", "</think>\n"),
        ("gpt-oss", "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        ("gemma4", "<|channel>thought\n", "\n<channel|>"),  # which writes thoughts beside calls only
        ("hermes", "<think>", "\n</think>\n\n"),  # of no template: as the formats of text have it, in several tokens
        ("llama2", "<think>", "\n</think>\n\n"),
    ],
)
def test_a_thought_is_closed_as_the_template_closes_it(kind, opening, closing):
    policy = make_thinker(kind, "3")
    inside, rest = "abcdefgh", "<answer>Paris</answer>"
    said, reason, forced = write(policy, f"{opening}{inside}{rest}")
    before, found, after = said.partition(closing)
    thought = before.removeprefix(opening)
    assert (
        found
        and (thought != before or not opening)
        and f"{thought}{after}".startswith(f"{inside}{rest}")
        and reason == "stop"
    )
    assert len(thought) < len(inside) and forced == len(policy.encode(closing, "\n"))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("<think>ab</think><answer>c</answer>", None),  # within the budget
        ("<answer>Where is it, and who was born there?</answer>", None),  # no thought
        ("x y z <think>ab</think>abcdefghij<answer>c</answer>", None),  # text before and after counts for nothing
        ("<think>abcdefgh", "<think>abcd\n</think>\n\nefgh"),
        ("<think>abc</think><think>defg</answer>", "<think>abc</think><think>d\n</think>\n\nefg</answer>"),  # of a turn
    ],
)
def test_what_counts_is_sampled_within_thoughts(said, expected):
    policy = make_thinker("qwen3")
    text, reason, forced = write(policy, said)
    end = policy.tokenizer.decode(policy.turn_end_ids) * (not said.endswith("</answer>"))
    assert text == (expected or said) + end and reason == "stop"
    assert forced == (0 if expected is None else len(policy.encode("\n</think>\n\n")))


def test_a_turn_may_end_by_its_length_while_its_thought_is_closed():
    text, reason, forced = write(make_thinker("qwen3"), "<think>abcdefgh", longest=6)
    assert (text, reason, forced) == ("<think>abcd\n", "length", 1)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3.5"])
@pytest.mark.parametrize("library", [False, True], ids=["own", "library"])
def test_forced_tokens_are_context_in_both_samplers(monkeypatch, kind, library):
    """They have no gradient and no log-probability; those of all others are the trainer's, given the forced ones."""
    policy = make_thinker(kind)
    if library:
        monkeypatch.setattr(ModelRunner, "_find_difference", lambda *_: "of a test")
        with pytest.warns(UserWarning, match="of a test"):
            engine = TransformersEngine(policy, STOP)
    else:
        engine = TransformersEngine(policy, STOP)
    opening = policy.encode("<think>\n") if kind == "qwen3" else []
    with torch.no_grad():  # so that it is opened
        policy.model.get_input_embeddings().weight[opening] *= 4
    episodes, contexts = [Trajectory() for _ in range(6)], {}
    for key in range(6):
        contexts[key] = policy.prompt_ids("Answer.", f"Who is {'ab'[key // 3]}?") + (opening if key % 2 else [])
    for _ in range(2):
        for key, done in generate(engine, contexts, 12, 1.0).items():
            episodes[key].steps.append(
                Step(prompt=contexts[key], tokens=done.tokens, logprobs=done.logprobs, reward=1.0)
            )
            contexts[key] = contexts[key] + done.tokens + policy.observation_ids("More?", done.tokens)
    closing, forced = engine._budget.closing, 0
    for step in (step for episode in episodes for step in episode.steps):
        places = [place for place, logprob in enumerate(step.logprobs) if logprob is None]
        forced += len(places)
        if places:
            assert [step.tokens[place] for place in places] == closing
            assert kind == "qwen3" or places[0] == 4
    assert forced
    batch = collate(episodes, policy.pad_id)
    with torch.no_grad():
        logprobs, entropy = policy.logprobs(batch)
    torch.testing.assert_close(logprobs, batch.old_logprobs, rtol=0, atol=1e-4)
    assert int(batch.mask.sum()) == sum(len(s.tokens) for e in episodes for s in e.steps) - forced
    assert batch.rewards.sum() == 12 and not batch.rewards[~batch.mask].any()
    assert (batch.turns[~batch.mask] == -1).all() and not (logprobs + entropy)[~batch.mask].any()


def test_vllm_is_refused_a_budget():
    with pytest.raises(ValueError, match="engine 'vllm' cannot close a thought after 4 tokens: give thinking 'on'"):
        make_engine("vllm", make_thinker("qwen3"), ())


def test_a_run_learns_from_what_was_sampled_only(short_run, tmp_path, capsys):
    """With everything that reads masks; its checkpoint keeps the budget."""
    template = tmp_path / "chat.jinja"
    template.write_text(KINDS["qwen3.5"].template)
    options = {"kl_coef": 0.1, "kl": "k1", "entropy_coef": 0.1, "importance": "tis", "gae": "turns"}
    options |= {
        "thinking": 4,
        "chat_template": template,
        "env_kwargs": {"entities": 60, "questions": 20, "max_turns": 2, "format": "tags"},
    }
    ppo.main(short_run(ppo, max_new_tokens=24, updates=1, out=tmp_path / "run", **options))
    loaded, longest = load_agent(tmp_path / "run" / "checkpoint-1")
    assert (loaded.thought_tokens, longest) == (4, 24)
    closing = loaded.encode("\n</think>\n\n")
    found = [
        (sequence["mask"][place - 1], *sequence["mask"][place : place + len(closing)])
        for episode in read_episodes(tmp_path / "run" / "episode_tokens.jsonl")
        for sequence in episode["sequences"]
        for place in range(1, len(sequence["ids"]))
        if sequence["ids"][place : place + len(closing)] == closing
    ]
    assert len(found) > 10 and set(found) == {(1, *[0] * len(closing))}
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(row.get("train/closed_thoughts", 0) > 0.5 for row in rows)
    with pytest.raises(ValueError, match="no action fits in a turn of 4 tokens after thoughts of 4: raise max_new"):
        load_agent(tmp_path / "run" / "checkpoint-1", max_new_tokens=4)
    start_policy(grpo.Args(model=tmp_path / "run" / "checkpoint-1"), None)
    assert "checkpoint-1 was trained with --thinking 4, and this run has auto" in capsys.readouterr().err
