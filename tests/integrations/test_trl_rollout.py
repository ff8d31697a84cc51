"""`agent_envs.integrations.trl` without TRL: what is its own beside the contract."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest
from adapters import make_trl_trainer
from plug_setup import MINIWIKI, SMALL, make_policy
from transformers.utils import get_json_schema

from agent_envs.integrations import Episode, trl


def test_what_is_sampled_behind_the_end_of_a_turn_is_cut_off():
    policy, turn = make_policy("bytes"), "<search>town</search>"
    data = trl.dataset(MINIWIKI, 1, **SMALL)
    tail = policy.encode(" and more")

    def sample(prompts, *rest):
        return [policy.encode(turn) + tail for _ in prompts], None

    trainer = make_trl_trainer(policy, sample)
    played = trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)(list(data["prompt"]), trainer)
    own = [i for i, mine in zip(played["completion_ids"][0], played["env_mask"][0], strict=True) if mine]
    assert own == policy.encode(turn) * 3 and played["logprobs"] is None


def test_an_episode_ends_where_the_model_can_read_no_further():
    policy = make_policy("bytes")
    (prompt,) = trl.dataset(MINIWIKI, 1, **SMALL)["prompt"]
    turn = policy.encode("<search>town</search>")
    trainer = make_trl_trainer(policy, lambda prompts, *rest: ([turn for _ in prompts], None))
    play = trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)
    free = play([prompt], trainer)
    trainer.args.vllm_max_model_length = len(free["prompt_ids"][0] + free["completion_ids"][0]) - len(turn)
    played = play([prompt], trainer)
    assert played["env_mask"][0] == free["env_mask"][0][: len(played["env_mask"][0])]
    assert len(played["turn_rewards"][0]) == len(free["turn_rewards"][0]) - 1 and played["env_mask"][0][-1]


def test_of_the_options_of_the_template_the_switch_for_thoughts_reaches_the_prompt():
    policy = make_policy("bytes")
    closed = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    policy.tokenizer.chat_template = (
        policy.tokenizer.chat_template + "{% if add_generation_prompt %}" + closed + "{% endif %}"
    )
    prompts, answer = list(trl.dataset(MINIWIKI, 1, **SMALL)["prompt"]), policy.encode("<answer>x</answer>")
    play = trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)

    def prompt(**options):
        trainer = make_trl_trainer(policy, lambda prompts, *rest: ([answer], None), **options)
        return policy.tokenizer.decode(play(prompts, trainer)["prompt_ids"][0])

    assert (
        prompt(enable_thinking=False)
        == prompt() + "<think></think>"
        == prompt(enable_thinking=True) + "<think></think>"
    )
    with pytest.raises(ValueError, match=r"reasoning_effort.*no effect here"):
        prompt(reasoning_effort="low")


def test_held_out_questions_are_played_in_their_split_and_a_broken_tool_leaves_no_return():
    policy = make_policy("bytes")
    play = trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)
    prompts = [trl.dataset(MINIWIKI, 1, split=split, **SMALL)["prompt"][0] for split in ("train", "validation")]
    assert prompts[0][1]["content"] != prompts[1][1]["content"]
    answer = policy.encode("<answer>x</answer>")
    trainer = make_trl_trainer(policy, lambda prompts, *rest: ([answer for _ in prompts], None))
    assert len(play(prompts, trainer)["turn_rewards"]) == 2
    metrics = [{"tool_faults": 0.0}, {"tool_faults": 1.0}]
    assert trl.episode_return(None, [[1.0, 0.5], [1.0]], env_metrics=metrics) == [1.5, None]


def test_what_cannot_be_trained_is_refused():
    policy = make_policy("bytes")
    trainer, prompts = make_trl_trainer(policy, None), list(trl.dataset(MINIWIKI, 1, **SMALL)["prompt"])
    trainer.mask_truncated_completions = True
    with pytest.raises(ValueError, match="leave it off"):
        trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)(prompts, trainer)
    trainer = make_trl_trainer(policy, None)
    trainer.use_vllm, trainer.accelerator.num_processes, trainer.args.vllm_mode = True, 2, "server"
    with pytest.raises(ValueError, match="get each other's turns"):
        trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)(prompts, trainer)
    with pytest.raises(ValueError, match="is for TRL"):
        trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)(prompts, SimpleNamespace())
    with pytest.raises(ValueError, match="needs rollout_func or environment_factory"):
        trl.episode_return([])


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


class Recorder:
    async def _take(self, name, given):
        return given


KEEPS_NULL = {"type": ["integer", "null"]}, {"enum": ["a", None]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, {}
NO_NULL = {"type": "string"}, {"enum": ["a", "b"]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}


@pytest.mark.parametrize("schema", [*KEEPS_NULL, *NO_NULL])
def test_null_leaves_an_optional_argument_out_where_it_is_no_value_of_it(schema):
    properties = {"query": {"type": "string"}, "more": schema}
    parameters = {"type": "object", "properties": properties, "required": ["query"]}
    search = trl._method({"name": "search", "description": "Search.", "parameters": parameters})
    said = asyncio.run(search(Recorder(), query="x", more=None))
    assert said == ({"query": "x", "more": None} if schema in KEEPS_NULL else {"query": "x"})
    assert asyncio.run(search(Recorder(), query=None)) == {"query": None}  # a mistake of the model's, which is told so


def call(name, arguments):
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [function]}


@pytest.fixture(scope="module")
def settle():
    """``settle(last)``: what an episode earns in which all gold titles are searched, and then TRL's conversation ends so."""
    env, asked = trl.environment_factory(MINIWIKI)(), Episode(MINIWIKI, native=True)

    def settle(last, answers=None):
        env.reset(prompt=[{"seed": 3, **message} for message in asked.start(3)], seed=3)
        messages = []
        for title in dict.fromkeys(asked.env.question.supporting_titles):
            said = asyncio.run(env.search(query=title))
            messages += [call("search", {"query": title}), {"role": "tool", "content": said}]
        if answers:
            asyncio.run(env.answer(text=answers))
        messages = [*messages, last] if last else messages[:-1]
        (paid,) = trl.episode_return([messages], environments=[env])
        assert env._episode.done and env._episode.env.fits is None
        return paid

    return settle


def test_no_way_to_end_without_an_answer_earns_more_than_a_wrong_one(settle):
    """Shaping is settled where TRL ends the episode: at a message without a call, or where the last result is too long."""
    wrong = settle(call("answer", {"text": "nobody"}), answers="nobody")
    assert wrong > settle({"role": "assistant", "content": "I think it is nobody."})
    assert wrong > settle(None)


def test_arguments_that_are_no_object_are_an_invalid_turn(settle):
    wrong = settle(call("answer", {"text": "nobody"}))
    assert all(settle(call("answer", arguments)) < wrong for arguments in ("sun", ["sun"], None))


def test_attempts_in_several_processes_are_told_apart(monkeypatch):
    numbers = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        make = trl.environment_factory(MINIWIKI)
        numbers += [make()._number for _ in range(3)]
    assert len(set(numbers)) == 6 and numbers[:3] == [0, 1, 2]
