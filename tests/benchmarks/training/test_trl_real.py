"""The benchmark against TRL with a model that is given: here a tiny one with ChatML, whose tags are no tokens."""

import importlib.util
import json
from dataclasses import replace

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.training import decode_side, trl_cpu, trl_side
from benchmarks.training.trl_args import Args
from benchmarks.training.trl_environment import CHATML, Environment, teach_calls
from benchmarks.training.trl_start import start_policy
from benchmarks.training.trl_turns import cut, end_at_tags
from trainers.models import loading
from trainers.models.loading import load_policy
from trainers.models.policy import Policy

pytest.importorskip("peft")

QUESTION, FOUND = "Who taught Alma Reed?", "<information>[1] Alma Reed: <|im_end|> a painter.</information>"
STOP = ("</search>", "</answer>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose every byte is a token."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate(specials + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(path)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    fast.chat_template = template
    fast.save_pretrained(path)
    return path


@pytest.fixture
def args(folder):
    return Args(
        model=str(folder), dtype="bfloat16", lora_rank=2, env_kwargs='{"max_turns": 2}', episodes=4, group_size=2, steps=1,
        warm_up=0, max_new_tokens=6, lr=1e-2, threads=1,
    )  # fmt: skip


@pytest.fixture
def start(args, tmp_path):
    """What the sides load: the model and its new adapter."""
    policy = start_policy(args)
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lora_rank": 4}, "tiny policy has no lora_rank"),
        ({"dtype": "bfloat16"}, "tiny policy has no dtype"),
        ({"env": "AgentR1/HotpotQA-v0"}, "tiny policy has no env,"),
        ({"model": "some", "lora_rank": -1}, "lora_rank must be at least 0"),
        ({"model": "some", "episodes": 8, "at_once": 3}, "at_once must divide episodes"),
    ],
)
def test_contradictory_arguments_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Args(**wrong)


def test_passes_hold_some_episodes_of_a_real_model_and_all_of_the_tiny_one():
    assert (Args().pass_size, Args(model="some").pass_size, Args(model="some", at_once=16).pass_size) == (64, 4, 16)
    assert Args(model="some", episodes=6, group_size=3).pass_size == 2


def test_what_cannot_be_played_through_trl_is_refused(args):
    calculator = replace(args, env="AgentR1/Calculator-v0")
    with pytest.raises(ValueError, match="<search> and <answer> and no other"):
        trl_cpu.check_env(calculator, ["environment_factory"])
    trl_cpu.check_env(calculator, ["rollout_func"])
    mixture = replace(args, env="AgentR1/Mixture-v0", env_kwargs='{"tasks": {"AgentR1/MiniWiki-Easy-v0": 1}}')
    trl_cpu.check_env(mixture, ["environment_factory"])
    forgetful = replace(args, env_kwargs='{"context": "window:1"}')
    with pytest.raises(ValueError, match="leave out context"):
        trl_cpu.check_env(forgetful, ["rollout_func"])
    with pytest.raises(ValueError, match="not valid JSON"):
        trl_cpu.check_env(replace(args, env_kwargs="{"), [])


def test_what_cannot_run_the_model_is_refused(args, folder):
    policy = start_policy(args)
    trl_cpu.check_policy(policy, ["environment_factory", "generate"])
    with pytest.raises(ValueError, match="vLLM is measured on whole models"):
        trl_cpu.check_policy(policy, ["vllm"])
    tokenizer = load_policy(folder, "cpu").tokenizer
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>\n", "<|im_end|>")
    with pytest.raises(ValueError, match="written for ChatML"):
        trl_cpu.check_policy(Policy(policy.model, tokenizer, torch.bfloat16), ["environment_factory"])


def test_trl_shows_the_same_tokens(folder):
    policy = load_policy(folder, "cpu")
    prompt, between = policy.prompt_ids("Be brief.", QUESTION), policy.observation_ids(FOUND, policy.encode("x"))
    teach_calls(policy)
    call = {"type": "function", "function": {"name": "search", "arguments": {}}}
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    begun = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
    told = [*begun, {"role": "tool", "name": "search", "content": policy.inert(FOUND)}]

    def ids(messages, **how):
        return policy.tokenizer.apply_chat_template(messages, return_dict=False, **how)

    assert policy.tokenizer.chat_template == CHATML
    assert ids(asked, add_generation_prompt=True) == prompt
    before, after = ids(begun), ids(told, add_generation_prompt=True)
    assert policy.tokenizer.eos_token_id not in before  # or TRL would cut there
    assert before[-1] == policy.encode("</search>")[-1] and after[: len(before)] == before
    assert after[len(before) :] == between


def test_trl_reads_calls_and_answers(folder):
    policy = load_policy(folder, "cpu")
    if not hasattr(policy.tokenizer, "response_template"):
        pytest.skip("this version of transformers has no response templates")
    teach_calls(policy)

    def read(text):
        return policy.tokenizer.parse_response(policy.encode(text), prefix=policy.prompt_ids("Be brief.", QUESTION))

    called = read("<think>her teacher</think><search>Alma Reed</search>")["tool_calls"]
    assert [call["function"] for call in called] == [{"name": "search", "arguments": {"query": "Alma Reed"}}]
    answered = read("<think>so</think><answer>Alma Reed</answer>")
    assert "tool_calls" not in answered and "<answer>Alma Reed</answer>" in answered["content"]
    assert "tool_calls" not in read("<search>Alma")


def test_generate_ends_each_turn_at_its_tag(folder):
    policy = load_policy(folder, "cpu")
    ends = end_at_tags(policy, STOP)
    prompts = [policy.encode("say <search>x</search>")] * 3  # a tag before the turn ends nothing
    said = ["<search>a</search>", "<answer>bcd</answer>", "no<|im_end|>"]
    script = [policy.encode(text) + [40] * 30 for text in said]
    width = len(prompts[0])
    made = policy.model.generate(
        torch.tensor(prompts), generation_config=GenerationConfig(max_new_tokens=30, pad_token_id=2, eos_token_id=[2]),
        prefix_allowed_tokens_fn=lambda row, ids: [script[row][len(ids) - width]],
    )[:, width:].tolist()  # fmt: skip
    assert [policy.tokenizer.decode(cut(turn, ends)) for turn in made] == said
    assert len(made[0]) == len(policy.encode(said[1]))  # and all stop with the last
    assert made[0][len(policy.encode(said[0]))] == 2


def test_all_sides_begin_with_one_adapter(args, start, monkeypatch):
    monkeypatch.setattr(loading, "has_bfloat16_products", lambda device: True)
    ours, theirs = load_policy(start, "cpu", "bfloat16"), trl_side.load(args, start)
    parameters = dict(theirs.model.named_parameters())
    for name, parameter in ours.model.named_parameters():
        other = parameters[name]
        assert other.requires_grad == parameter.requires_grad == ("lora_" in name)
        assert other.dtype == (torch.float32 if "lora_" in name else torch.bfloat16)
        assert not parameter.requires_grad or torch.equal(other, parameter)


def test_an_adapter_is_merged_before_sampling(args):
    policy, ids = start_policy(replace(args, dtype="float32")), torch.tensor([[5, 6, 7]])
    for parameter in (p for p in policy.model.parameters() if p.requires_grad):
        torch.nn.init.normal_(parameter, std=0.1)
    before = policy.model(ids).logits
    decode_side.merge_lora(policy)
    assert all(module.merged for module in policy.model.modules() if hasattr(module, "lora_A"))
    torch.testing.assert_close(policy.model(ids).logits, before, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["engine", "generate"])
def test_sampling_alone_with_an_adapter(args, start, name):
    args = replace(args, decode_tokens=5)
    said = getattr(decode_side, name)(args, start, [[5, 6], [5, 6, 7, 8]] * 2, lambda: None)
    assert said == {"policy_tokens": 4 * 5}


def test_an_environment_has_its_arguments():
    env = Environment("AgentR1/MiniWiki-Easy-v0", json.dumps({"k": 1, "max_turns": 2}), lambda text: text.upper())
    assert env.reset(seed=5).isupper()
    found = env.search(env._env.question.supporting_titles[0])
    assert found.isupper() and "[1]" in found and "[2]" not in found
    assert env._env.max_turns == 2


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("trl"), reason="needs TRL")
@pytest.mark.parametrize("side", ["environment_factory", "rollout_func"])
def test_trl_trains_the_adapter_in_bfloat16(args, start, side, monkeypatch):
    monkeypatch.setattr(loading, "has_bfloat16_products", lambda device: True)
    loaded, load, steps = [], trl_side.load, []
    monkeypatch.setattr(trl_side, "load", lambda *rest: loaded.append(load(*rest)) or loaded[0])
    said = getattr(trl_side, side)(replace(args, at_once=2), start, lambda: steps.append(1))
    before = load(args, start).model.state_dict()
    after = loaded[0].model.state_dict()
    adapter = [name for name in before if "lora_" in name]
    assert said["trained"] == sum(before[name].numel() for name in adapter) and said["layers"] == "bfloat16"
    assert said["episodes"] == 4 and len(steps) == 2
    assert all(torch.equal(before[name], after[name]) for name in before if name not in adapter)
