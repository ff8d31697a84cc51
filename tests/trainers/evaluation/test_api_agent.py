"""Models behind an API, against a server in this process that speaks OpenAI's format, well and badly."""

import json
import threading
from contextlib import suppress

import pytest
from chat_server import Trouble, calls, number_of_turn, serve

pytest.importorskip("openai", reason="pip install openai", exc_type=ImportError)
import openai

from trainers.episodes.records import Origin
from trainers.evaluation import api_agent
from trainers.evaluation.api_agent import ApiAgent, EndpointStopped

MINIWIKI, SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 60, "questions": 30, "max_turns": 4}
ORIGIN = {"phase": "evaluation", "agent": "m", "name": "api-m", "split": "train", "source": "s", "score": "em"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.02)
    monkeypatch.setattr(api_agent, "RETRIES", 2)


def roll_out(url, jobs, format="native", env=MINIWIKI, at_once=3, kwargs=SMALL, **options):
    """The records of the jobs, in their order, and the agent."""
    agent, records = ApiAgent(url, "m", Origin(env=env, **ORIGIN), **options), {}

    def keep(record):
        records[record["instance"], record["sample"]] = record

    agent.run(agent.run_episode, [api_agent.make_episode(env, format, **kwargs) for _ in range(at_once)], jobs, keep)
    return [records[job] for job in jobs if job in records], agent


def instances(count):
    return [(number, 0) for number in range(count)]


def test_episodes_of_function_calls():
    """`tests/integrations/test_episode.py` has what they earn."""
    searches = [("search", '{"query": "a town"}'), ("search", '{"query": "Ünknown “東京”"}')]
    script = [searches, {"content": None}, [("answer", '{"text": "no idea"}')]]
    with serve(lambda request: script[number_of_turn(request)]) as chat:
        records, _ = roll_out(chat.url, instances(6))
    assert chat.busiest <= 3
    for record in records:
        assert record["score"] == record["metrics"]["em"] == 0 and record["metrics"]["support_recall"] >= 0
        assert record["return"] == pytest.approx(sum(turn["reward"] for turn in record["turns"]))
        assert (record["prompt_tokens"], record["completion_tokens"]) == (30, 9)
        assert record["terminated"] and not record["failed"] and record["env"] == MINIWIKI
        assert not {"score", "valid", "tool_faults"} & set(record["metrics"])
        roles = [message["role"] for message in record["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
        assert [call["tool"] for call in record["turns"][0]["calls"]] == ["search", "search"]
        assert record["turns"][0]["calls"][0]["result"] == record["messages"][3]["content"]
    tools = {tool["function"]["name"] for tool in chat.heard[0]["tools"]}
    assert tools == {"search", "answer"} and "stop" not in chat.heard[0]
    answered = [message for message in chat.heard[-1]["messages"] if message["role"] == "tool"]
    assert answered and all(message["tool_call_id"] for message in answered)


def test_a_server_that_goes_on_behind_a_turn_is_cut_where_our_engines_stop():
    """One that ends turns at the strings leaves them out, as OpenAI does. A thought beside the text is in the record alone."""
    more = "<search>a town</search><information>[1] all mine</information><answer>x</answer>"
    script = [
        more,
        "<search>a place",
        {"content": "<answer>no idea</answer> and more", "reasoning": "<answer>x</answer>?"},
    ]
    with serve(lambda request: script[number_of_turn(request)]) as chat:
        (record,), _ = roll_out(chat.url, instances(1), "tags")
    thought = "<think>\n<answer>x</answer>?\n</think>\n\n"
    actions = ["<search>a town</search>", "<search>a place</search>", f"{thought}<answer>no idea</answer>"]
    assert [turn["action"] for turn in record["turns"]] == actions and record["terminated"]


@pytest.mark.parametrize(
    ("format", "turn", "invalid"),
    [
        ("tags", {"content": "<answer>Paris is what I would say but"}, False),
        ("tags", {"content": "Paris is what I would say but"}, True),
        ("native", {"content": "Paris is what I would say but"}, True),
        ("native", {"content": "", "reasoning_content": "Paris is what"}, False),
        ("native", {"content": None, "tool_calls": calls([("search", '{"query": "who')])}, False),
        ("native", {"content": None, "tool_calls": calls([("search", '{"query": "who"}')])}, False),
    ],
)
def test_a_turn_that_was_cut_by_its_length_is_no_answer_and_invalid_only_where_none_had_begun(format, turn, invalid):
    choice = {"message": {"role": "assistant", **turn}, "finish_reason": "length"}
    with serve(lambda request: json.dumps({"choices": [choice]}).encode()) as chat:
        (record,), _ = roll_out(chat.url, instances(1), format, kwargs=SMALL | {"max_turns": 1})
    (turn_of_record,) = record["turns"]
    assert "</answer>" not in turn_of_record["action"] and not turn_of_record["calls"]
    assert turn_of_record["invalid"] == invalid
    assert record["truncated"] and record["metrics"]["cut"] == 1


def test_a_turn_that_a_stop_string_ended_is_whole_whatever_the_server_says():
    choice = {"message": {"content": "<answer>a</answer> and"}, "finish_reason": "length"}
    with serve(lambda request: json.dumps({"choices": [choice]}).encode()) as chat:
        (record,), _ = roll_out(chat.url, instances(1), "tags")
    assert record["terminated"] and record["turns"][0]["action"] == "<answer>a</answer>"


def test_stop_strings_do_not_end_thoughts():
    """A server that ends a thought at one is asked again without."""
    said = "<think>maybe <answer>London</answer></think><answer>Paris</answer>"

    def say(request):
        return said.partition("</answer>")[0] if "stop" in request else said + " and more"

    with serve(say) as chat:
        (record,), _ = roll_out(chat.url, instances(1), "tags")
    assert [turn["action"] for turn in record["turns"]] == [said]
    assert ["stop" in request for request in chat.heard] == [True, False]


def test_thoughts_that_ended_leave_the_stop_strings():
    """A policy that was trained to end with them would write on without."""
    with serve(lambda request: "<think>hm</think><search>x</search>") as chat:
        (record,), _ = roll_out(chat.url, instances(1), "tags")
    assert len(record["turns"]) > 1 and all("stop" in request for request in chat.heard)


@pytest.mark.parametrize(
    "turn",
    [
        [("search", "{broken")],
        [("search", "[" * 100_000)],
        [("nope", "{}"), ("search", '{"query": "a"}')],
        {"content": None, "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "x"}}]},
        {"content": "", "tool_calls": []},
        {"content": [{"type": "text", "text": "just text"}]},
        {"content": None, "tool_calls": [*calls([("search", '{"query": "a"}')]), *calls([("search", None)])]},
    ],
)
def test_calls_that_cannot_be_read_are_invalid_turns_and_the_api_gets_json_back(turn):
    script = [turn, [("answer", '{"text": "no idea"}')]]
    with serve(lambda request: script[number_of_turn(request)]) as chat:
        (record,), _ = roll_out(chat.url, instances(1), kwargs=SMALL | {"rewards": {"invalid": -0.5}})
    assert [t["reward_terms"]["invalid"] for t in record["turns"]] == [-0.5, 0.0] and not record["failed"]
    _, _, said, *answered = chat.heard[-1]["messages"]
    made = said.get("tool_calls", [])
    assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in made)
    assert made or said["content"]
    if made:
        assert [m["tool_call_id"] for m in answered] == [c["id"] for c in made] and len({c["id"] for c in made}) == len(
            made
        )
    else:
        assert [m["role"] for m in answered] == ["user"] and "call answer" in answered[0]["content"]
    if turn == [("search", "{broken")]:
        assert "of a function must be a JSON object" in answered[0]["content"]
        assert "{broken" in made[0]["function"]["arguments"] and "{broken" in record["turns"][0]["action"]


def test_a_thought_is_kept_and_not_sent_back_unless_the_api_wants_it():
    asks, script = {"reasoning": False}, [[("search", '{"query": "a"}')], [("answer", '{"text": "no idea"}')]]

    def say(request):
        turns = [message for message in request["messages"] if message["role"] == "assistant"]
        if asks["reasoning"] and not all("reasoning_content" in turn for turn in turns):
            raise Trouble(400, {"error": {"message": "Missing reasoning_content field in the assistant message"}})
        called = {"content": None, "tool_calls": calls(script[len(turns)])}
        return called | {"reasoning_content": "I wonder"}

    with serve(say) as chat:
        (record,), _ = roll_out(chat.url, instances(1))
        assert not any("reasoning" in key for request in chat.heard for m in request["messages"] for key in m)
        asks["reasoning"] = True
        (again,), _ = roll_out(chat.url, instances(1))
    assert chat.heard[-1]["messages"][2]["reasoning_content"] == "I wonder"
    assert json.loads(record["turns"][0]["action"])["reasoning_content"] == "I wonder"
    assert [turn["reward"] for turn in again["turns"]] == [turn["reward"] for turn in record["turns"]]


def test_parameters_that_an_api_knows_by_other_names():
    def say(request):
        for name in ("max_tokens", "stop"):
            if name in request:
                told = "Unsupported parameter: '{}'" + " Use 'max_completion_tokens' instead." * (name == "max_tokens")
                raise Trouble(400, {"error": {"message": told.format(name), "param": name}})
        return "<answer>no idea</answer>"

    with serve(say) as chat:
        records, _ = roll_out(chat.url, instances(4), "tags", at_once=1, max_new_tokens=77, temperature=0.3)
    assert not any(record["failed"] for record in records)
    assert len(chat.heard) == 4 + 2  # it says so once
    assert chat.heard[-1]["max_completion_tokens"] == 77 and chat.heard[-1]["temperature"] == 0.3


@pytest.mark.parametrize(
    ("limit", "asked", "sent"), [(9, 5, 5), (9, 20, 9), (None, 20, 20), (9, None, 9), (None, None, None)]
)
def test_a_turn_is_as_long_as_the_shorter_of_two_limits(limit, asked, sent):
    agent = ApiAgent("http://127.0.0.1:9/v1", "m", Origin(env=MINIWIKI, **ORIGIN), max_new_tokens=limit)
    form = api_agent.Form(fields={} if asked is None else {"max_tokens": asked})
    assert agent._options(form, frozenset()).get("max_tokens") == sent


# -- what goes wrong on the way ----------------------------------------------------------------------------------------


def answers(request):
    return [("answer", json.dumps({"text": request["messages"][1]["content"]}))]


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble("reset"),
        Trouble(429, Retry_After="0.05"),
        Trouble(503),
        Trouble(2.5),
        b"<html>a proxy</html>",
        b'{"error": {"message": "overloaded"}}',
        b'{"choices": [{"message": null}]}',
        b"[" * 100_000,
    ],
)
def test_what_passes_is_asked_again(trouble):
    seen, lock = set(), threading.Lock()

    def say(request):
        with lock:
            asked = request["messages"][1]["content"]
            fails = asked not in seen
            seen.add(asked)
        if fails and isinstance(trouble, bytes):
            return trouble
        if fails:
            raise trouble
        return answers(request)

    with serve(say) as chat:
        records, agent = roll_out(chat.url, instances(3), timeout=1.5)
    assert len(records) == 3 and not any(record["failed"] for record in records) and not agent.problems
    assert len(chat.heard) == 6


def test_nobody_there_ends_it_at_once():
    with serve(answers) as chat:
        url = chat.url
    with pytest.raises(EndpointStopped, match=r"does not answer: Connection error") as stopped:
        roll_out(url, instances(500))
    assert "\n" not in str(stopped.value)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_server_that_dies_ends_it_and_what_was_played_is_kept(at_once):
    kept = []

    def say(request):
        if len(chat.heard) > 20:
            chat.alive = False
            raise Trouble("reset")
        return answers(request)

    with serve(say) as chat:
        agent = ApiAgent(chat.url, "m", Origin(env=MINIWIKI, **ORIGIN))
        episodes = [api_agent.make_episode(MINIWIKI, "native", **SMALL) for _ in range(at_once)]
        with pytest.raises(EndpointStopped, match="does not answer any more"):
            agent.run(agent.run_episode, episodes, ((n % 30, n) for n in range(500)), kept.append)
    assert 20 - at_once <= len(kept) <= 20 and not any(record["failed"] for record in kept)
    assert len(chat.heard) < 60


@pytest.mark.parametrize(
    ("status", "told", "advice"),
    [
        (401, "Incorrect API key provided: secret-key", "Incorrect API key provided: … (the key is $"),
        (404, "The model `m` does not exist", "does the address end in /v1?"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice', "--format hermes"),
        (429, "You exceeded your current quota", "quota"),
    ],
)
def test_a_server_that_refuses_everything_ends_it_in_its_words(monkeypatch, status, told, advice):
    monkeypatch.setenv("MY_KEY", " secret-key\n")

    def say(request):
        raise Trouble(status, {"error": {"message": told, "code": "insufficient_quota" if status == 429 else None}})

    with serve(say) as chat, pytest.raises(EndpointStopped, match="gives no turn of m:") as stopped:
        roll_out(chat.url, instances(500), key_variable="MY_KEY")
    assert len(chat.heard) <= 15 and set(chat.keys) == {"Bearer secret-key"}
    assert advice in str(stopped.value) and "secret" not in str(stopped.value) and "\n" not in str(stopped.value)


def test_an_empty_account_is_not_asked_again():
    def say(request):
        raise Trouble(429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}})

    with serve(say) as chat:
        (record,), agent = roll_out(chat.url, instances(1))
    assert record["failed"] and "quota" in next(iter(agent.problems)) and len(chat.heard) == 1


def test_a_server_that_is_there_and_never_answers_ends_it():
    def say(request):
        raise Trouble(1.0)

    with serve(say) as chat, pytest.raises(EndpointStopped, match="gives no turn of m: Request timed out"):
        roll_out(chat.url, instances(500), timeout=0.05)


def test_letters_that_no_encoding_takes():
    script = [[("search", '{"query": "\\ud800 東京"}')], [("answer", '{"text": "\\ud800"}')]]
    body = {"content": "\ud83d", "reasoning_content": "\ud83d"}
    with serve(lambda r: body | {"tool_calls": calls(script[number_of_turn(r)])}) as chat:
        (record,), _ = roll_out(chat.url, instances(1))
    assert not record["failed"] and "東京" in record["turns"][0]["action"]
    json.dumps(record, ensure_ascii=False).encode()


def test_the_format_of_a_task():
    assert api_agent.choose_format(MINIWIKI, "", SMALL) == "native"
    assert api_agent.choose_format(MINIWIKI, "hermes", SMALL) == "hermes"
    assert api_agent.choose_format(MINIWIKI, "", SMALL | {"format": "react"}) == ""
    assert api_agent.choose_format(MINIWIKI, "", SMALL | {"context": "window:2"}) == ""
    assert api_agent.choose_format("AgentR1/Mixture-v0", "", {"tasks": {"AgentR1/Bandit-v0": 1}}) == ""
    assert api_agent.make_episode(MINIWIKI, "", **SMALL, format="react").env.format.name == "react"
    assert api_agent.choose_format(MINIWIKI, "", SMALL | {"format": "native"}) == "native"
    assert api_agent.make_episode(MINIWIKI, "", **SMALL, format="native").native
    with pytest.raises(ValueError, match="choose a --format of text"):
        api_agent.make_episode(MINIWIKI, "native", context="window:2", **SMALL)


def test_a_rewritten_context_is_what_the_api_gets():
    with serve(lambda request: f"turn {len(chat.heard)}") as chat:
        (record,), _ = roll_out(chat.url, instances(1), "", kwargs=SMALL | {"context": "window:1"})
    seen = [[message["content"] for message in request["messages"]] for request in chat.heard]
    assert [len(messages) for messages in seen] == [2, 4, 4, 4] and seen[3][2] == "turn 3"
    written = [message["content"] for message in record["messages"]]
    assert written[:5] == seen[1] + ["turn 2"] and written[5:9] == seen[2]  # it begins anew with the system message


def test_what_is_odd_about_a_server_is_told_once():
    def say(request):
        if len(chat.heard) == 1:
            raise Trouble(503)
        if len(chat.heard) > 3:
            raise Trouble(
                400, {"error": {"message": f"bad request req-{len(chat.heard)}abc after {len(chat.heard)} ms"}}
            )
        return "I would search for it."

    told = []
    with serve(say) as chat:
        agent = ApiAgent(chat.url, "llama-3", Origin(env=MINIWIKI, **ORIGIN))
        agent.tell, records = told.append, []
        episodes = [api_agent.make_episode(MINIWIKI, "native", **SMALL | {"max_turns": 1})]
        with suppress(EndpointStopped):
            agent.run(agent.run_episode, episodes, instances(6), records.append)
    assert told == ["503, retry 1 of 2"]
    (problem,) = agent.problems
    assert problem.startswith("400: bad request req-4abc") and agent.problems[problem] == 2
    assert list(agent.find_oddities(records)) == [
        f"{chat.url} was asked for llama-3, and answers as m",
        "none of 2 messages of llama-3 calls a function: does the server pass tools on? Try --format tags",
    ]
