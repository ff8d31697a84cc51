"""The benchmark against TRL, in what runs without TRL: both sides must get the same work."""

import importlib.util
from types import SimpleNamespace

import gymnasium
import pytest
import torch

from benchmarks.training import decode_side, trl_cpu
from benchmarks.training.trl_args import Args
from benchmarks.training.trl_environment import CALLS, TEMPLATE, Environment
from benchmarks.training.trl_side import Tally
from trainers.models.policy import Policy
from trainers.rollouts import collector
from trainers.tiny import model as tiny

ENV = "AgentR1/MiniWiki-Easy-v0"
FOUND = "<information>[1] Alma Reed: Alma Reed is a painter.</information>"


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    tokenizer = tiny.make_tokenizer([FOUND, "Who taught Alma Reed? the teacher of"])
    return Policy(tiny.make_model(len(tokenizer), hidden_size=32, layers=2, intermediate_size=32), tokenizer)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"episodes": 12}, "multiple of group_size"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"group_size": 1}, "group_size must be at least 2"),
        ({"against": ()}, "something to measure against"),
    ],
)
def test_bad_arguments_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Args(**wrong)


def test_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'trl==1\.16"):
        trl_cpu.chosen(Args())
    assert trl_cpu.chosen(Args(against=("generate", "vllm"))) == ["generate"]


def test_the_questions_are_those_of_our_updates(monkeypatch):
    args, drawn = Args(episodes=16, group_size=4, steps=2, warm_up=1, seed=3), []

    class Stop(Exception):
        pass

    def rollout(*rest, seeds, **more):
        drawn.extend(seeds)
        raise Stop

    monkeypatch.setattr(collector, "rollout", rollout)
    for number in range(args.rounds):
        with pytest.raises(Stop):
            collector.play_batch(args.trainer_args(), None, None, SimpleNamespace(processed={}), number)
    assert drawn == args.question_seeds() and len(set(drawn)) == 12


def test_trl_puts_the_same_tokens_between_turns(policy):
    call = {"type": "function", "function": {"name": "search", "arguments": {}}}
    asked = [{"role": "user", "content": "Who taught Alma Reed?"}]
    begun = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
    told = [*begun, {"role": "tool", "name": "search", "content": FOUND}]

    def ids(messages, **how):
        return policy.tokenizer.apply_chat_template(messages, chat_template=TEMPLATE, return_dict=False, **how)

    assert ids(asked, add_generation_prompt=True) == policy.prompt_ids("", asked[0]["content"])
    before, after = ids(begun), ids(told, add_generation_prompt=True)
    assert before[-1] == policy.encode("</search>")[-1] and after[: len(before)] == before
    assert after[len(before) :] == policy.observation_ids(FOUND, policy.encode("<search>Alma Reed</search>"))


def test_trl_reads_calls_and_answers(policy, monkeypatch):
    if not hasattr(policy.tokenizer, "response_template"):
        pytest.skip("this version of transformers has no response templates")
    monkeypatch.setattr(policy.tokenizer, "response_template", CALLS)

    def read(text):
        ids, prefix = policy.encode(text), policy.prompt_ids("", "Who taught Alma Reed?")
        return policy.tokenizer.parse_response(ids, prefix=prefix)

    called = read("<think>the teacher of Alma Reed</think><search>Alma Reed</search>")["tool_calls"]
    assert [call["function"] for call in called] == [{"name": "search", "arguments": {"query": "Alma Reed"}}]
    answered = read("<think>the teacher</think><answer>Alma Reed</answer>")
    assert "tool_calls" not in answered and "</think><answer> Alma Reed</answer>" in answered["content"]


def test_an_episode_with_trl_earns_what_it_earns_with_us():
    env = gymnasium.make(ENV).unwrapped
    first, _ = env.reset(seed=5)
    title, answer = env.question.supporting_titles[0], env.question.answer
    found, *paid = env.step(f"<search>{title}</search>")[:2]
    paid.append(env.step(f"<answer>{answer}</answer>")[1])
    theirs = Environment(ENV)
    assert theirs.reset(seed=5, prompt=[]) == first
    assert theirs.search(title) == found
    theirs._finish({"role": "assistant", "content": f"<answer>{answer}</answer>"})
    assert theirs.earned == pytest.approx(sum(paid)) and sum(paid) > 1


def test_a_call_in_the_last_turn_of_all_still_counts():
    theirs = Environment(ENV)
    theirs.reset(seed=5)
    title = theirs._env.question.supporting_titles[0]
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": title}}}
    theirs._finish({"role": "assistant", "content": "", "tool_calls": [call]})
    assert theirs.earned > 0  # for the article that was found


def test_zero_std_groups_are_those_without_a_difference():
    tally = Tally(group_size=2)
    tally.add([1.0, 1.0 + 1e-9, 0.0, 1.0], turns=9)
    assert (tally.episodes, tally.turns, tally.zero_std_groups) == (4, 9, 1)


@pytest.mark.parametrize("name", ["engine", "generate"])
def test_each_prompt_gets_as_many_new_tokens(policy, tmp_path, name):
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    args, calls = Args(episodes=4, group_size=2, steps=1, warm_up=1, decode_tokens=40, threads=1), []
    prompts = [policy.encode("Who taught Alma Reed?")] * 2 + [policy.encode("Who taught the painter Alma Reed?")] * 2
    said = getattr(decode_side, name)(args, tmp_path, prompts, lambda: calls.append(1))
    assert said == {"policy_tokens": 2 * 4 * 40} and len(calls) == 3
