"""Native function calls: tools go into the model's own chat template, and calls are read as the model was trained to write them.

    python examples/native_tools.py                                     # Qwen3-0.6B
    python examples/native_tools.py --quick                             # a random tiny model, on a CPU, in seconds

The example prints the first prompt, a turn with two calls as the template writes it, its results, and the table of a GRPO run.
Every model whose template takes tools calls them like this, unless env_kwargs name another format.
"""

import sys
from pathlib import Path

from agent_envs.types import ToolCall, Turn
from trainers import grpo
from trainers.factory import make_envs
from trainers.models.loading import load_policy

ENV = dict(id="AgentR1/MiniWiki-Easy-v0", kwargs='{"entities": 150, "questions": 100, "format": "native"}')
LARGE = dict(model="Qwen/Qwen3-0.6B", lr=1e-6, dtype="bfloat16", max_new_tokens=512, questions_per_update=8, updates=40)
TOY = dict(max_new_tokens=8, questions_per_update=2, group_size=2, updates=1, eval_questions=2, final_questions=2)
TEMPLATE = (  # of the Hermes kind, like Qwen's
    "{% if tools %}<|user|>{{ messages[0].content }} {{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_toy(folder: Path) -> str:
    """Save a random model with a chat template that takes tools in a folder that transformers loads; returns its path."""
    from trainers.tiny import model as tiny

    tokenizer = tiny.make_tokenizer(
        ["call the function search name arguments query: who was born in the town by the river"]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    tiny.make_model(len(tokenizer), hidden_size=32, layers=2).save_pretrained(folder)
    return str(folder)


def show_turn(model: str) -> None:
    """Print the prompt of an episode, a turn as the template writes it, and its results, all decoded from ids."""
    policy, (env,) = load_policy(model), make_envs(**ENV, split="train", num_envs=1).envs
    question, info = env.reset(seed=0)
    tools, decode = env.format.schemas(), policy.tokenizer.decode
    print("functions:", ", ".join(tool["function"]["name"] for tool in tools))
    prompt = policy.prompt_ids(info["instructions"], question, tools)
    calls = tuple(ToolCall("search", {"query": query}) for query in (env.question.supporting_titles[0], "a river"))
    sampled = policy.turn_ids(
        env.format.message(env.format.write(Turn(calls=calls))), tools
    )  # as a model would sample it
    observation, *_ = env.step(policy.decode_action(sampled, tools))
    back = policy.observation_ids(env.format.messages(observation), sampled, tools)
    print(f"prompt: {decode(prompt)}\nturn: {decode(sampled)}\nback: {decode(back)}")


def main(out: str = "runs/native-tools", quick: bool = False) -> None:
    settings = TOY | {"model": make_toy(Path(out) / "toy")} if quick else LARGE
    show_turn(str(settings["model"]))
    grpo.main(grpo.Args(out=Path(out) / "run", env=ENV["id"], env_kwargs=ENV["kwargs"], **settings))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
