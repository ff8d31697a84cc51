"""The taskset ``agent-r1-envs`` of verifiers, which looks its plugins up as top-level modules."""

from agent_envs.integrations.verifiers import AgentR1Env, AgentR1Harness, AgentR1Taskset

__all__ = ["AgentR1Env", "AgentR1Harness", "AgentR1Taskset"]
