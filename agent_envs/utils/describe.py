"""A page about a task: observations, tools, rewards, an example episode, arguments, and the scores of baselines."""

import inspect
import json
import textwrap
from typing import Any

from agent_envs.integrations.hosting import make as make_tool_env
from agent_envs.tool_env import ToolEnv
from agent_envs.utils import baselines
from agent_envs.utils.scripts import find_script, roll_out


def page(
    id: str, kwargs: dict[str, Any] | None = None, script: str = "", seed: int = 0, rows: list[dict] | None = None
) -> str:
    """Markdown about a registered environment; ``rows`` are those of `agent_envs.utils.baselines.run_baselines`.
    ``script``: by default the task's oracle, or else its last one. Raises ValueError: it has none of that name."""
    env = make_tool_env(id, **(kwargs or {}))
    script = script or ("oracle" if "oracle" in env.SCRIPTS else next(reversed(env.SCRIPTS), ""))
    about = (inspect.getdoc(type(env)) or "").replace("``", "`")
    task, _, arguments = about.partition("\n\nArgs:\n")
    arguments, _, rest = arguments.partition("\n\n")
    listed = textwrap.dedent(arguments).replace("\n    ", " ").replace("\n", "\n- ")
    observation, info = env.reset(seed=seed)
    episode = roll_out(env, find_script(env, script), seed) if script else []
    tasks = ", ".join(f"`{id}` ({weight:g})" for id, weight in getattr(env, "weights", {}).items())  # of a mixture
    parts = [
        f"# {id}",
        task,
        f'```python\nenv = gymnasium.make("{id}"{"".join(f", {k}={v!r}" for k, v in (kwargs or {}).items())})\n```',
        f"Here, by weight: {tasks}. What follows is about the one that the seed draws." if tasks else "",
        "## What the agent sees",
        f"Instances: {info.get('source', 'made from the seed')}. The system prompt:",
        _fence(info["instructions"]),
        "and the first observation:",
        _fence(observation),
        "## What it may do",
        _describe_tools(env),
        "## What it earns",
        'The reward of a turn is the sum of these terms, and `info["reward_terms"]` names each of them:',
        _fence(str(env.reward)),
        *[f'Preset `rewards="{name}"`:\n\n{_fence(str(preset))}' for name, preset in env.PRESETS.items()],
        f'The score that is reported is `info["{env.PRIMARY_METRIC}"]` of the last turn.',
        f"## An episode\n\nThe {script} agent, seed {seed}." if episode else "",
        *[_describe_turn(number, turn) for number, turn in enumerate(episode, 1)],
        f"## Arguments\n\n- {listed}" if arguments else "",
        rest.strip(),
    ]
    if rows:
        parts += ["## Baselines", baselines.table(rows)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _fence(text: str) -> str:
    fence = "```" if "```" not in text else "~~~~"
    return f"{fence}text\n{text}\n{fence}"


def _describe_tools(env: ToolEnv) -> str:
    env = env.active_env  # of a mixture, the task that the seed draws
    lines = []
    for tool in env.tools.values():
        of = tool.parameters.get("properties", {})
        types = json.dumps({k: v.get("enum") or v.get("type", "any") for k, v in of.items()}, ensure_ascii=False)
        lines.append(f"- `{tool.name}`: {tool.description} Arguments: `{types}`.")
    lines.append(f"- {'Give a final answer, which ends the episode.' if env.answers else 'There is no final answer.'}")
    return "\n".join(lines) + f"\n\nBudget: {env.max_turns} turns, {env.max_calls} calls a turn."


def _describe_turn(number: int, turn: dict[str, Any]) -> str:
    terms = ", ".join(f"{name} {value:+.3g}" for name, value in turn["reward_terms"].items() if value)
    back = turn["next_observation"]
    back = back if len(back) < 1500 else back[:1500] + " …"
    shown = _fence(turn["action"]) + (f"\n\n{_fence(back)}" if back else "")
    return f"**Turn {number}**, reward {turn['reward']:.3g}{f' ({terms})' if terms else ''}\n\n{shown}"
