"""Search and answer as TRL's ``environment_factory`` wants them, in the tokens that our own trainer shows.

The prompt, a turn that searches, its result and the start of the next turn are the same, token for token, with the tiny
policy and with models whose chat template is ChatML. What is not the same:

- A turn that neither searches nor answers, say because it is too long, ends an episode here: TRL plays on only after a call
  that it can read. Our environments reply what was wrong with the turn, and the episode goes on.
- TRL passes on the text of a call alone. What else stands in a turn, such as a thought, is among the tokens that are learned
  from, and the environment is not told of it: a term of the reward for thoughts would not be paid.
- TRL runs the searches one by one, our batched environments those of a turn together.
"""

import json
from collections.abc import Callable

import gymnasium

from agent_envs.tool_env import ToolEnv
from trainers.models.policy import Policy

_CALLS = (
    "{% for call in m.tool_calls %}<{{ call.function.name }}>{{ call.function.arguments | tojson }}"
    "</{{ call.function.name }}>{% endfor %}"
)

# The tokenizer's own template, and tool calls and their results in it: a result is a user message, as in our trainer.
# The end of a turn that calls a tool comes with the result, since the policy stops at the closing tag.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|end|><|user|>{{ m.content }}<|end|>"
    "{% elif m.tool_calls %}<|assistant|>{{ m.content }}" + _CALLS + "{% elif m.role != 'system' %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHATML = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ '<|im_end|>\n<|im_start|>user\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.tool_calls %}{{ '<|im_start|>assistant\n' + m.content }}" + _CALLS + "{% else %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def calls_after(start: str, **opened: str) -> dict:
    """How TRL reads a turn that begins behind ``start``: calls of the search, which begin as ``opened``, and the rest as
    content."""
    arguments = {"query": "{content}"}
    call = {"type": "function", "function": {"name": "search", "arguments": arguments}}
    searches = {**opened, "close": "</search>", "repeats": True, "content": "text", "transform": call}
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": start,
        "fields": {"tool_calls": searches, "content": {"content": "text"}},
    }


CALLS = calls_after("<|assistant|>", open="<search>")
# A call that the longest turn cuts off is none in our environments; read by its opening tag alone it would be one here.
CHATML_CALLS = calls_after("<|im_start|>assistant\n", open_pattern="<search>(?=.*?</search>)")


def teach_calls(policy: Policy) -> None:
    """Have the policy's tokenizer write and read calls as `GRPOTrainer` asks it to.

    Raises:
        ValueError: its own chat template is neither the tiny policy's nor ChatML.
    """
    tokenizer = policy.tokenizer
    if "</search>" in tokenizer.get_vocab():
        tokenizer.chat_template, tokenizer.response_template = TEMPLATE, CALLS
        tokenizer.eos_token = "</search>"  # behind the last of these in a turn TRL puts the result of its call
        return
    check_template(policy)
    tokenizer.chat_template, tokenizer.response_template = CHATML, CHATML_CALLS
    # TRL takes what stands in front of the last end of sequence for the turn. The token that ends messages would be found
    # in front of the call, so it is one that no message has; a turn that says it would end, which none is likely to.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(_unused(policy)[-1])


def _unused(policy: Policy) -> list[int]:
    used = {*policy.end_ids, *policy.prompt_ids("Be brief.", "Who?")}
    return [i for i, token in policy.tokenizer.added_tokens_decoder.items() if token.special and i not in used]


def check_template(policy: Policy) -> None:
    """Raise a ValueError where calls cannot be written in the model's own chat template: `teach_calls`."""
    if "</search>" in policy.tokenizer.get_vocab():
        return
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    written = policy.tokenizer.apply_chat_template(
        messages, chat_template=CHATML, add_generation_prompt=True, return_dict=False
    )
    if written != policy.prompt_ids("Be brief.", "Who?") or not _unused(policy):
        raise ValueError("environment_factory is written for ChatML, which is not this model's: --against rollout_func")


def check_search(env: ToolEnv) -> None:
    """Raise a ValueError where there is more to do than to search and to answer in tags."""
    tasks = getattr(env, "tasks", {"": env}).values()
    if any([*task.tools] != ["search"] or task.stop != ("</search>", "</answer>") for task in tasks):
        raise ValueError("environment_factory has <search> and <answer> and no other turns: --against rollout_func")


class Environment:
    """An episode as ``environment_factory`` wants it: what is public, but for `reset`, is a tool."""

    def __init__(self, id: str, kwargs: str = "{}", inert: Callable[[str], str] = str):
        self._env, self._inert = gymnasium.make(id, split="train", **json.loads(kwargs)).unwrapped, inert

    def reset(self, seed: int, **row) -> str:
        self.earned = 0.0
        return self._inert(self._env.reset(seed=seed)[0])

    def search(self, query: str) -> str:
        """Search Wikipedia.

        Args:
            query: what to search for.

        Returns:
            The passages that match best.
        """
        return self._say(f"<search>{query}</search>")

    def _say(self, turn: str) -> str:
        observation, reward, *_ = self._env.step(turn)
        self.earned += reward
        return self._inert(observation)

    def _finish(self, message: dict) -> None:
        """Take the last turn: TRL does not show it, as it calls no tool, or one call too many."""
        if calls := message.get("tool_calls"):
            self.search(**calls[0]["function"]["arguments"])
        else:
            self._say(message["content"])
