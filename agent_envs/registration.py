"""The ids that ``gymnasium.make`` knows once ``agent_envs`` is imported.

All arguments are plain values, so that ``spec.to_json()`` round-trips.
"""

import difflib
import re
from typing import Any

import gymnasium

_QA = "agent_envs.tasks.qa:QAEnv"
_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "QA": (_QA, {"benchmark": "own"}),
    "HotpotQA": (_QA, {"benchmark": "hotpotqa"}),
    "2WikiMultihopQA": (_QA, {"benchmark": "2wikimultihopqa"}),
    "MuSiQue": (_QA, {"benchmark": "musique"}),
    "Bamboogle": (_QA, {"benchmark": "bamboogle", "split": "validation"}),  # its only split
    "NQ": (_QA, {"benchmark": "nq"}),
    "TriviaQA": (_QA, {"benchmark": "triviaqa"}),
    "PopQA": (_QA, {"benchmark": "popqa", "split": "validation"}),
    "MiniWiki": (
        _QA,
        {"types": ["chain", "chain", "chain", "comparison", "yes_no"], "hops": [1, 2, 3]}
        | {"benchmark": "miniwiki", "k": 2, "difficulty": "varied"},
    ),
    "MiniWiki-Easy": (_QA, {"benchmark": "miniwiki", "k": 2}),
    "MiniWiki-Hard": (
        _QA,
        {"types": ["bridge", "compositional", "inference", "comparison", "yes_no"], "hops": [2, 3, 4]}
        | {"benchmark": "miniwiki", "k": 3, "difficulty": "hard", "entities": 5000, "max_turns": 8},
    ),
    "Calculator": ("agent_envs.tasks.calculator:CalculatorEnv", {}),
    "Python": ("agent_envs.tasks.python:PythonEnv", {}),
    "SQL": ("agent_envs.tasks.sql:SQLEnv", {}),
    "API": ("agent_envs.tasks.api:APIEnv", {}),
    "Mixed": ("agent_envs.tasks.mixed:MixedEnv", {}),
    "Bandit": ("agent_envs.tasks.bandit:BanditEnv", {}),
    "Sokoban": ("agent_envs.tasks.sokoban:SokobanEnv", {}),
    "FrozenLake": ("agent_envs.tasks.frozenlake:FrozenLakeEnv", {}),
    "Countdown": ("agent_envs.tasks.countdown:CountdownEnv", {}),
    "ALFWorld": ("agent_envs.tasks.alfworld:ALFWorldEnv", {}),
    "WebShop": ("agent_envs.tasks.webshop:WebShopEnv", {}),
    "Mixture": ("agent_envs.tasks.mixture:MixtureEnv", {}),
}
SEARCHES = {  # descriptions of the ids that share QAEnv, for `list`
    "QA": "Answer your own questions from your own passages.",
    "HotpotQA": "Answer HotpotQA's questions by search: bridges and comparisons, two hops.",
    "2WikiMultihopQA": "Answer 2WikiMultihopQA's questions by search: two to four hops, from Wikidata.",
    "MuSiQue": "Answer MuSiQue's questions by search: two to four hops, without shortcuts.",
    "Bamboogle": "Answer Bamboogle's 125 questions by search: two hops that search engines fail.",
    "NQ": "Answer Natural Questions by search: real queries, one hop.",
    "TriviaQA": "Answer TriviaQA's questions by search: trivia, one hop.",
    "PopQA": "Answer PopQA's questions by search: rare entities, one hop.",
    "MiniWiki": "Answer questions about a generated world by search: one to three hops.",
    "MiniWiki-Easy": "Answer questions about a generated world by search: two hops.",
    "MiniWiki-Hard": "Answer questions about a large generated world by search: two to four hops.",
}
IDS = tuple(f"AgentR1/{name}-v0" for name in _TASKS)


def register_all() -> None:
    """Make all tasks known to Gymnasium, each with its own vector entry point."""
    for id, (entry_point, kwargs) in zip(IDS, _TASKS.values(), strict=True):
        module = entry_point.partition(":")[0]
        gymnasium.register(
            id,
            entry_point=entry_point,
            vector_entry_point=f"{module}:make_vector",
            kwargs=kwargs,
            disable_env_checker=True,  # the checker's warnings about text spaces do not apply; tests run it in full
        )


def full_id(name: str) -> str:
    """Return "AgentR1/MiniWiki-v0" for "MiniWiki" and "MiniWiki-v0"; any other name is returned unchanged."""
    own = f"AgentR1/{name}" if re.search(r"-v\d+$", name) else f"AgentR1/{name}-v0"
    return own if own in IDS else name


def nearest_names(name: str) -> list[str]:
    """Return the registered names nearest to an unknown id, at most three; names of this suite are shortened."""
    short = {f"AgentR1/{own}-v0": own for own in _TASKS}
    known = {short.get(id, id).lower(): short.get(id, id) for id in gymnasium.registry if "/" in id}
    wanted = re.sub(r"-v\d*$", "", name.removeprefix("AgentR1/")).lower()
    begun = [name for name in known if wanted and name.startswith(wanted)]
    return [known[near] for near in dict.fromkeys(begun + difflib.get_close_matches(wanted, known, cutoff=0.6))][:3]
