"""The methods by which `environment_factory` shows the tools to TRL, without TRL itself."""

import asyncio

import pytest

from agent_envs.integrations.episode import Episode
from agent_envs.integrations.trl import _method, environment_factory, episode_return

MINIWIKI = "AgentR1/MiniWiki-v0"


class Recorder:
    async def _take(self, name, given):
        return given


@pytest.mark.parametrize(
    ("schema", "keeps_null"),
    [
        ({"type": "string"}, False),
        ({"type": ["integer", "null"]}, True),
        ({"enum": ["a", "b"]}, False),
        ({"enum": ["a", None]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({}, True),  # anything
    ],
)
def test_null_leaves_an_optional_argument_out_where_it_is_no_value_of_it(schema, keeps_null):
    properties = {"query": {"type": "string"}, "more": schema}
    parameters = {"type": "object", "properties": properties, "required": ["query"]}
    search = _method({"name": "search", "description": "Search.", "parameters": parameters})
    said = asyncio.run(search(Recorder(), query="x", more=None))
    assert said == ({"query": "x", "more": None} if keeps_null else {"query": "x"})
    assert asyncio.run(search(Recorder(), query=None)) == {"query": None}  # a mistake of the model's, which is told so


def call(name, arguments):
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


@pytest.fixture(scope="module")
def settle():
    """``settle(last)``: what an episode earns in which all gold titles are searched, and then TRL's conversation ends so."""
    env, asked = environment_factory(MINIWIKI)(), Episode(MINIWIKI, native=True)

    def settle(last, answers=None):
        env.reset(prompt=[{"seed": 3, **message} for message in asked.start(3)], seed=3)
        messages = []
        for title in dict.fromkeys(asked.env.question.supporting_titles):
            said = asyncio.run(env.search(query=title))
            messages += [call("search", {"query": title}), {"role": "tool", "content": said}]
        if answers:
            asyncio.run(env.answer(text=answers))
        messages = [*messages, last] if last else messages[:-1]
        (paid,) = episode_return([messages], environments=[env])
        assert env._episode.done and env._episode.env.fits is None
        return paid

    return settle


def test_no_way_to_end_without_an_answer_earns_more_than_a_wrong_one(settle):
    """Shaping is settled where TRL ends the episode: at a message without a call, or where the last result is too long."""
    wrong = settle(call("answer", {"text": "nobody"}), answers="nobody")
    assert wrong > settle({"role": "assistant", "content": "I think it is nobody."})
    assert wrong > settle(None)


@pytest.mark.parametrize("arguments", ["sun", ["sun"], None])
def test_arguments_that_are_no_object_are_an_invalid_turn(settle, arguments):
    assert settle(call("answer", arguments)) < settle(call("answer", {"text": "nobody"}))


def test_a_context_that_is_rewritten_is_refused():
    with pytest.raises(ValueError, match="leave context at 'append'"):
        environment_factory(MINIWIKI, context="window:1")


def test_attempts_in_several_processes_are_told_apart(monkeypatch):
    numbers = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        make = environment_factory(MINIWIKI)
        numbers += [make()._number for _ in range(3)]
    assert len(set(numbers)) == 6 and numbers[:3] == [0, 1, 2]
