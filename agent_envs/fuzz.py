"""Malformed and adversarial turns, which every environment must survive."""

import random

# Control strings of all formats, alone and in pieces; what models are known to spill; what breaks decoders.
_PIECES = (
    *"<think> </think> <search> </search> <answer> </answer> <information> </information> <move> <tool_call>".split(),
    *"</tool_call> <tool_response> </tool_response> <tools> <|im_start|> <|im_end|> <|endoftext|> <|call|>".split(),
    *"<|channel|> <|message|> <|start|> <|end|> <|return|> || { } [ ] \" ' \\ ``` <!-- --> ]]> &lt; % %s {0} $(id)".split(),
    "Thought: ", "\nAction: ", "\nAction Input: ", "\nObservation: ", "\nFinal Answer: ", "to=functions.",
    '{"name": ', '"arguments": ', '{"role": "assistant", "tool_calls": [', '"function": {', "null", "true", "NaN",
    "1e999", "9" * 5000, "-0", "\x00", "\ud800", "\udfff\ud800", "\u202e", "\u0000", "\ufeff", "\r\n", "\t", "é", "e\u0301",
    "İ", "ß", "🦊", "\u2028", "a" * 300, "the", "a town", "Up", "Right || Right", "1 + 1", "SELECT 1", "print(1)", "",
)  # fmt: skip


def make_hostile_turn(rng: random.Random, phrases: tuple[str, ...] = (), seen: str = "") -> str:
    """A random turn that is mostly wrong.

    Args:
        phrases: well-formed turns, to be damaged.
        seen: the last observation, to be handed back as if the agent had said it.
    """
    kind = rng.randrange(8)
    if kind < 3 or (kind < 6 and not phrases):
        return "".join(rng.choices(_PIECES, k=rng.randint(0, 30)))
    if kind == 3:
        return "".join(rng.sample(phrases, 1)) * rng.randint(1, 9)
    if kind < 6:
        return _damage(rng, rng.choice(phrases))
    if kind == 6:
        return rng.choice(_PIECES) * rng.choice((1, 10, 1000))
    return seen + rng.choice(("", *phrases)) + seen[: rng.randint(0, 50)]


def _damage(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        cut = rng.randint(0, 3)
        text = text[:at] + rng.choice(_PIECES) * rng.randint(0, 1) + text[at + cut :]
    return text
