"""The Responses API: what it asks for is the chat call that a chat client would make, and its turns come back as they were."""

import openai
import pytest

from trainers.agents.calls import CallRefused, Turn
from trainers.agents.endpoint import Endpoint, read_call
from trainers.agents.responses import read_request

ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
CALLS = [{"id": f"call_1_{i}", "type": "function", "function": {"name": "add", "arguments": "{}"}} for i in range(2)]
TURNS = [
    {"role": "assistant", "content": "So:", "reasoning_content": "Hm.", "tool_calls": CALLS},
    {"role": "assistant", "content": "", "tool_calls": CALLS[:1]},
    {"role": "assistant", "content": ""},
]


class Callee:
    def __init__(self):
        self.calls = []

    def submit(self, call):
        self.calls.append(call)
        told = {"finish_reason": "length", "prompt_tokens": 7, "completion_tokens": 2}
        call.answer.set_result(Turn(message=TURNS[len(self.calls) - 1], **told))


def test_a_conversation_is_that_of_chat():
    callee = Callee()
    endpoint = Endpoint({"one": callee}.get)
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Add."}]}]
    with openai.OpenAI(base_url=endpoint.url, api_key="one", max_retries=0) as client:
        for _ in TURNS:
            asked = {"input": items, "instructions": "Be brief.", "max_output_tokens": 5, "temperature": 0.5}
            asked |= {"model": "m", "tools": [{"type": "function", "strict": True, **ADD}]}
            response = client.responses.create(**asked)
            made = [item for item in response.output if item.type == "function_call"]
            items = items + [item.model_dump(exclude_none=True) for item in response.output]
            items += [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in made]
    endpoint.close()
    assert response.output_text == "" and response.status == "incomplete" and response.usage.total_tokens == 9
    last = callee.calls[-1]
    assert (last.tools, last.max_tokens, last.temperature) == ([{"type": "function", "function": ADD}], 5, 0.5)
    results = [{"role": "tool", "content": "3", "tool_call_id": call["id"]} for call in (*CALLS, CALLS[0])]
    opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add."}]
    assert last.messages == [*opening, TURNS[0], *results[:2], TURNS[1], results[2]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input": 5}, "input must be text or a list of items, got 5"),
        ({"input": [{"type": "computer_call"}]}, "an item of type 'computer_call'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "a list of parts that are text"),
        ({"previous_response_id": "x"}, "previous_response_id cannot be used: nothing is kept here"),
        ({"tools": [{"type": "web_search"}]}, "tools must be functions of your program"),
        ({"text": {"format": {"type": "json_schema"}}}, "response_format must be {'type': 'text'} here"),
        ({"stream": True}, "in one piece here: leave out stream"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_reason(changes, said):
    with pytest.raises(CallRefused, match=said):
        read_call(read_request({"input": "x"} | changes))
