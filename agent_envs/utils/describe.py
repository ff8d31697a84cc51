"""A page about a task: an episode as the model reads and writes it, rewards and arguments."""

import inspect
import json
import re
import textwrap
from typing import Any

import gymnasium

from agent_envs.integrations.hosting import make as make_tool_env
from agent_envs.tool_env import ToolEnv
from agent_envs.utils.scripts import find_script, roll_out

_LONG = 1500  # characters of an observation that a transcript shows


def page(id: str, kwargs: dict[str, Any] | None = None, script: str = "", seed: int = 0, about: str = "") -> str:
    """Describe a registered environment in Markdown.

    Args:
        script: name of the script whose episode is shown. Default: the oracle, else the last script.
        about: description to show instead of the docstring's.

    Raises:
        ValueError: if the task has no script of that name.
    """
    env = make_tool_env(id, **(kwargs or {}))
    script = script or ("oracle" if "oracle" in env.SCRIPTS else next(reversed(list(env.SCRIPTS)), ""))
    episode = transcript(env, script, seed)
    shares = {} if env in env.members.values() else getattr(env, "weights", {})  # of a mixture
    weights = ", ".join(f"`{id}` ({weight:g})" for id, weight in shares.items())
    mixture = f"Tasks, by weight: {weights}. The episode below is of the one that seed {seed} draws." if weights else ""
    agent = f"The {script} agent, seed {seed}" if script else f"The first observation, seed {seed}"
    budget = f"{agent}; at most {env.max_turns} turns, {env.max_calls} calls a turn."
    return assemble(id, type(env), kwargs, about, [mixture], f"{budget}\n\n{fence(episode)}", str(env.reward))


def assemble(
    id: str,
    task: type[ToolEnv],
    kwargs: dict[str, Any] | None,
    about: str,
    notes: list[str],
    episode: str,
    reward: str,
) -> str:
    """Assemble the sections of a page; the arguments, and the description unless ``about``, are from the class's docstring."""
    described, _, arguments = (inspect.getdoc(task) or "").replace("``", "`").partition("\n\nArgs:\n")
    arguments, _, rest = re.sub(r"\n\nRaises:.*", "", arguments, flags=re.DOTALL).partition("\n\n")
    arguments = re.sub(r"\n    (max_turns: turns before truncation|common: .*)\.", "", arguments)  # same in all tasks
    listed = _with_defaults(id, task, textwrap.dedent(arguments)).replace("\n    ", " ").replace("\n", "\n- ")
    presets = [f'\nrewards="{name}"\n{preset}' for name, preset in task.PRESETS.items()]
    given = "".join(f", {name}={value!r}" for name, value in (kwargs or {}).items())
    parts = [
        f"# {id}",
        about or described,
        f'```python\nenv = gymnasium.make("{id}"{given})\n```' if given else "",
        *notes,
        f"## An episode\n\n{episode}" if episode else "",
        f"## Rewards\n\nScore: `{task.PRIMARY_METRIC}` of the last turn.",
        fence("\n".join([reward, *presets])),
        f"## Arguments\n\n- {listed}" if arguments else "",
        rest.strip(),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _with_defaults(id: str, task: type[ToolEnv], arguments: str) -> str:
    """Add its default to the name of each described argument, ``size=6: …``, if it is short."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(task).parameters.items()}
    defaults |= gymnasium.registry[id].kwargs if id in gymnasium.registry else {}

    def add(match: re.Match[str]) -> str:
        default = defaults.get(name := match.group())
        written = repr(default).replace("'", '"') if default else ""
        return f"{name}={written}" if 0 < len(written) < 12 else name

    return re.sub(r"^\w+(?=:)", add, arguments, flags=re.MULTILINE)


def transcript(env: ToolEnv, script: str, seed: int) -> str:
    """An episode of a script as text: what the model reads and writes, and the reward of each turn.

    JSON schemas of arguments are left out, and long observations are cut.
    """
    observation, info = env.reset(seed=seed)
    prompt = re.sub(r" Arguments, as JSON schema: .*", "", info["instructions"])
    tools = [_describe_tool(tool) for tool in env.active_env.tools.values() if tool.description not in prompt]
    blocks = [("system", "\n".join([prompt, *tools])), ("observation", observation)]
    for turn in roll_out(env, find_script(env, script), seed) if script else []:
        terms = ", ".join(f"{name} {value:+.3g}" for name, value in turn["reward_terms"].items() if value)
        reward = f"reward {turn['reward']:.3g}{f' ({terms})' if terms else ''}"
        after = "terminated" if turn["terminated"] else "truncated" if turn["truncated"] else "observation"
        back = turn["next_observation"]
        back = back if len(back) < _LONG else back[:_LONG] + " …"
        blocks += [("agent", turn["action"]), (f"{after}, {reward}", back)]
    return "\n".join(f"--- {head}\n{text}".rstrip() for head, text in blocks)


def fence(text: str) -> str:
    """A code block with this text."""
    ticks = "```" if "```" not in text else "~~~~"
    return f"{ticks}text\n{text}\n{ticks}"


def _describe_tool(tool: Any) -> str:
    """A line about a tool that the system prompt does not describe, because the model gets it as a JSON schema."""
    of = tool.parameters.get("properties", {})
    types = json.dumps({k: v.get("enum") or v.get("type", "any") for k, v in of.items()}, ensure_ascii=False)
    return f"[tool] {tool.name} {types}: {tool.description}"
