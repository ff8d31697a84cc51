"""The calls of an episode as rows of ids: what extends what, what is encoded, how noise is given out, who is refused."""

import itertools
import json

import pytest
from chat_templates import KINDS, end_ids, make_tokenizer

from agent_envs.chat_tokens import ChatTokens
from agent_envs.formats.dialects import to_tool_call
from trainers.agents.calls import Call, CallRefused, Session
from trainers.engines.engine import Completion
from trainers.trajectory import Trajectory, to_rows

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find passages.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where was Ada Kern born?"}
WITH_CALLS = [kind for kind in KINDS if not ChatTokens(make_tokenizer(kind), end_ids(kind)).refusal]


def start(kind="hermes", **options) -> Session:
    policy = ChatTokens(make_tokenizer(kind), end_ids(kind))
    return Session(policy, Trajectory(), itertools.count().__next__, **options)


def ask(session, messages, ids, tools=(), **options):
    """Answer a call with these ids; returns the turn and the call."""
    call = Call(messages=list(messages), tools=list(tools), **options)
    session.begin(call, 64, 10_000)
    return session.finish(call, Completion(tokens=ids, logprobs=[-1.0] * len(ids), finish_reason="stop")), call


def say(session, text: str) -> list[int]:
    return session.policy.text_ids(text)


@pytest.mark.parametrize("kind", WITH_CALLS)
def test_a_conversation_with_calls_is_one_row_of_what_was_sampled(kind):
    session = start(kind)
    policy, tools = session.policy, [TOOL]
    asked = {"role": "assistant", "content": "", "tool_calls": [to_tool_call("search", {"query": "Ada Kern"}, "x")]}
    sampled = policy.turn_ids(asked, tools)
    turn, first = ask(session, [SYSTEM, QUESTION], sampled, tools)
    assert turn.finish_reason == "tool_calls"
    (made,) = turn.message["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"query": "Ada Kern"}
    result = {"role": "tool", "tool_call_id": made["id"], "content": "Ada Kern was born in Zug."}
    sent = {"role": "assistant", "content": None, "tool_calls": [made]}  # as clients send it back
    end = policy.text_ids("She was born in Zug.")
    turn, second = ask(session, [SYSTEM, QUESTION, sent, result], end, tools)
    assert turn.message["content"] == "She was born in Zug." and turn.finish_reason == "stop"
    assert second.prompt[: len(first.prompt) + len(sampled)] == first.prompt + sampled
    named = result | {"name": "search"}
    assert second.prompt == first.prompt + sampled + policy.observation_ids([named], sampled, tools)
    (row,) = to_rows(session.trajectory.steps)
    assert [id for id, own in zip(row.ids, row.mask, strict=True) if own] == sampled + end
    assert session.edits == 0


FOLLOWS = {"role": "user", "content": "And who reigned there?"}
FOLLOWING = {  # what a client sends after the turn "In Zug.": the messages, the rows by then, the edits
    "as it was": ([SYSTEM, QUESTION, "In Zug.", FOLLOWS], 1, 0),
    "white space": ([SYSTEM, QUESTION, " In Zug.\n", FOLLOWS], 1, 0),
    "two messages": ([SYSTEM, QUESTION, "In Zug.", FOLLOWS, FOLLOWS], 1, 0),
    "edited": ([SYSTEM, QUESTION, "In Uri.", FOLLOWS], 2, 1),
    "another turn of the assistant": ([SYSTEM, QUESTION, "In Zug.", FOLLOWS, "Who?", FOLLOWS], 1, 0),  # the same ids
    "another system prompt": ([{**SYSTEM, "content": "Be long."}, QUESTION, "In Zug.", FOLLOWS], 2, 0),
    "a summary": ([SYSTEM, {"role": "user", "content": "She was born in Zug."}], 2, 0),
    "the same again": ([SYSTEM, QUESTION], 2, 0),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_what_extends_a_call_and_what_begins_a_row(name):
    messages, rows, edits = FOLLOWING[name]
    sent = [{"role": "assistant", "content": m} if isinstance(m, str) else m for m in messages]
    session = start("plain")
    sampled = say(session, "In Zug.")
    _, first = ask(session, [SYSTEM, QUESTION], sampled)
    _, second = ask(session, sent, say(session, "The duke."))
    assert (len(to_rows(session.trajectory.steps)), session.edits) == (rows, edits)
    so_far = first.prompt + sampled
    assert (second.prompt[: len(so_far)] == so_far) == (rows == 1)
    if name != "white space":  # the template writes the whole conversation in the same ids
        assert second.prompt == session.policy.conversation_ids(sent)


def test_calls_of_sub_agents_go_on_with_their_own_rows_and_branches_share_a_beginning():
    session = start("plain")
    other = [{"role": "system", "content": "You search."}, QUESTION]
    answers = [say(session, text) for text in ("one", "two", "three", "four", "five")]
    histories = [[SYSTEM, QUESTION], other]
    for place in range(4):
        history = histories[place % 2]
        turn, call = ask(session, history, answers[place])
        histories[place % 2] = [*history, turn.message, FOLLOWS]
        assert call.number == place % 2
    rows = to_rows(session.trajectory.steps)
    assert [sorted(set(row.turns) - {-1}) for row in rows] == [[0, 2], [1, 3]]
    _, branch = ask(session, [SYSTEM, QUESTION, {"role": "assistant", "content": "one"}, FOLLOWS], answers[4])
    assert branch.number == 2 and session.edits == 0
    row = to_rows(session.trajectory.steps)[2]
    assert sum(row.mask) == len(answers[4]) and branch.prompt == session.trajectory.steps[2].prompt


def test_a_thought_is_told_apart_and_need_not_be_sent_back():
    session = start("qwen3")
    sampled = [*session.policy.encode("<think>\nhm\n</think>\n\nIn Zug."), session.policy.eos_id]
    turn, first = ask(session, [QUESTION], sampled)
    assert turn.message == {"role": "assistant", "content": "In Zug.", "reasoning_content": "hm"}
    _, second = ask(session, [QUESTION, {"role": "assistant", "content": "In Zug."}, FOLLOWS], say(session, "x"))
    assert second.prompt[: len(first.prompt) + len(sampled)] == first.prompt + sampled


def test_a_turn_ends_at_the_stop_string_that_a_call_names():
    session = start("plain")
    ids = [*session.policy.encode("I search.\nObservation: none"), session.policy.eos_id]
    turn, call = ask(session, [QUESTION], ids, stop=("Observation:",))
    assert (turn.message["content"], turn.finish_reason) == ("I search.", "stop")
    step = session.trajectory.steps[0]
    assert session.policy.decode(step.tokens).endswith("Observation:") and step.tokens == ids[: len(step.tokens)]
    assert len(step.logprobs) == len(step.tokens) == turn.completion_tokens
    _, after = ask(session, [QUESTION, turn.message, FOLLOWS], ids)
    assert after.prompt[: len(call.prompt) + len(step.tokens)] == call.prompt + step.tokens


def test_a_call_that_cannot_be_read_is_text():
    session = start("hermes")
    ids = [*session.policy.encode('<tool_call>{"name": </tool_call>'), session.policy.eos_id]
    turn, _ = ask(session, [QUESTION], ids, [TOOL])
    assert "tool_calls" not in turn.message and '{"name":' in turn.message["content"]
    assert session.trajectory.turns[0]["invalid"]


def test_noise_belongs_to_the_prompt_and_not_to_the_order_of_arrival():
    def seeds(order, seed=7):
        session, found = start("plain", seed=seed), {}
        for text in order:
            call = Call(messages=[{"role": "user", "content": text}])
            session.begin(call, 64, 1000)
            found.setdefault(text, []).append(call.seed)
        return found

    ahead, back = seeds("abca"), seeds("acab")
    assert ahead == back and ahead["a"][0] != ahead["a"][1] and ahead["a"] != seeds("aa", seed=8)["a"]
    assert len({*seeds("aa", seed=None)["a"], *seeds("aa", seed=None)["a"]}) == 4  # as a server of the policy has it


def test_beyond_its_limits_a_call_is_refused():
    session = start("plain", max_calls=2)
    with pytest.raises(CallRefused, match="tokens, and the model reads 30 with its turn") as refused:
        session.begin(Call(messages=[QUESTION]), 64, 30)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert session.refused
    ask(session, [QUESTION], say(session, "x"))
    assert not session.refused  # an error from now on is the program's
    with pytest.raises(CallRefused, match="has had its 2 calls"):
        ask(session, [QUESTION], say(session, "x"))
    assert len(session.trajectory.steps) == 1
    with pytest.raises(CallRefused, match="chat template cannot write these messages: There is no role tool"):
        ask(start("gemma"), [QUESTION, {"role": "tool", "tool_call_id": "x", "content": "?"}], [0])


def test_that_a_chat_template_shows_no_tools_is_said():
    with pytest.warns(UserWarning, match=r"cannot call functions \(its chat template does not take tools\)"):
        ask(start("plain"), [QUESTION], [0], [TOOL])


def test_rewards_go_to_the_latest_turn_and_earlier_ones_to_the_first():
    session = start("plain")
    session.reward(0.5, {"tool": 0.5}, {"calls": [{"tool": "search"}], "text": "found"})
    ask(session, [QUESTION], say(session, "x"))
    session.reward(0.25, {"tool": 0.25})
    ask(session, [FOLLOWS], say(session, "y"))
    session.reward(1.0, {"answer": 1.0})
    assert [step.reward for step in session.trajectory.steps] == [0.75, 1.0]
    assert [turn["reward_terms"] for turn in session.trajectory.turns] == [{"tool": 0.75}, {"answer": 1.0}]
    assert session.trajectory.turns[0]["calls"] and session.trajectory.turns[0]["next_observation"] == "found"
    assert session.trajectory.reward_terms == {"tool": 0.75, "answer": 1.0}


def test_a_record_shows_conversations_that_take_turns_one_after_the_other():
    """Each is whole, and only its last turn is new; in training the first goes on as one row."""
    session, go_on = start(), {"role": "user", "content": "Go on."}
    ask(session, [SYSTEM, QUESTION], say(session, "one"))
    ask(session, [SYSTEM | {"content": "Another."}, QUESTION], say(session, "two"))
    again = [SYSTEM, QUESTION, {"role": "assistant", "content": "one"}, go_on]
    ask(session, again, say(session, "three"))
    shown = [message["content"] for message in session.trajectory.messages]
    assert shown[-5:] == ["Be brief.", QUESTION["content"], "one", "Go on.", "three"]
    assert [turn["message"] for turn in session.trajectory.turns] == [2, 5, 10]
    assert session.trajectory.messages[0] is session.trajectory.messages[-5]  # held and sent once, however often shown
    assert session.rows == 2


def test_later_instructions_are_no_other_context():
    session, rule = start(), {"role": "system", "content": "Ask once."}
    _, first = ask(session, [SYSTEM, rule, QUESTION], say(session, "one"))
    ask(session, [*first.messages, {"role": "assistant", "content": "one"}, rule, QUESTION], say(session, "two"))
    roles = [message["role"] for message in session.trajectory.messages]
    assert roles == ["system", "developer", "user", "assistant", "developer", "user", "assistant"] and session.rows == 1


def test_the_marks_of_calls_reach_a_program_that_reads_them_itself():
    session, said = start(), '<tool_call>\n{"name": "search"}\n</tool_call>'
    turn, _ = ask(session, [QUESTION], session.policy.tokenizer(said).input_ids)
    assert turn.message == {"role": "assistant", "content": said}
    turn, _ = ask(
        session, [SYSTEM, QUESTION], session.policy.tokenizer(f"{said} and on").input_ids, stop=("</tool_call>",)
    )
    assert turn.message["content"] == said.removesuffix("</tool_call>").strip()


def test_arguments_that_are_nested_too_deeply_are_refused():
    session = start()
    made = {"id": "a", "type": "function", "function": {"name": "search", "arguments": "[" * 100_000}}
    messages = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [made]}, QUESTION]
    with pytest.raises(CallRefused, match="template cannot write these messages"):
        ask(session, messages, say(session, "one"))
