"""AgentR1/MiniWiki-v0 as TRL's ``environment_factory`` wants it, token for token what our own trainer plays."""

import gymnasium

# The tokenizer's own template, and tool calls and their results in it: a result is a user message, as in our trainer.
# The end of a turn that calls a tool comes with the result, since the policy stops at the closing tag.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|end|><|user|>{{ m.content }}<|end|>"
    "{% elif m.tool_calls %}<|assistant|>{{ m.content }}{% for call in m.tool_calls %}<{{ call.function.name }}>"
    "{{ call.function.arguments | tojson }}</{{ call.function.name }}>{% endfor %}"
    "{% elif m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CALLS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<search>",
            "close": "</search>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "search", "arguments": {"query": "{content}"}}},
        },
        "content": {"content": "text"},
    },
}


class Environment:
    """An episode as ``environment_factory`` wants it: what is public, but for `reset`, is a tool."""

    def __init__(self, id: str):
        self._env = gymnasium.make(id).unwrapped

    def reset(self, seed: int, **row) -> str:
        self.earned = 0.0
        return self._env.reset(seed=seed)[0]

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
        return observation

    def _finish(self, message: dict) -> None:
        """Take the last turn: TRL does not show it, as it calls no tool, or one call too many."""
        if calls := message.get("tool_calls"):
            self.search(**calls[0]["function"]["arguments"])
        else:
            self._say(message["content"])
