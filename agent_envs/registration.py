"""The ids that ``gymnasium.make`` knows once ``agent_envs`` is imported.

All arguments are plain values, so that ``spec.to_json()`` round-trips.
"""

import gymnasium

IDS = {
    "AgentR1/HotpotQA-v0": "hotpotqa",
    "AgentR1/2WikiMultihopQA-v0": "2wikimultihopqa",
    "AgentR1/MuSiQue-v0": "musique",
    "AgentR1/MiniWiki-v0": "miniwiki",
}


def register_all() -> None:
    for id, benchmark in IDS.items():
        gymnasium.register(
            id,
            entry_point="agent_envs.qa_env:QAEnv",
            vector_entry_point="agent_envs.vector:make_vector",
            kwargs={"benchmark": benchmark, **({"k": 2} if benchmark == "miniwiki" else {})},
            disable_env_checker=True,  # the checker's warnings about text spaces do not apply; tests run it in full
        )
