r"""The environments of this suite as a taskset of verifiers. Tested with verifiers 0.4.

    vf-eval agent-r1-envs --env.taskset.env MiniWiki -n 20 -r 4 --no-push -m MODEL \
        --client.base-url http://localhost:8000/v1

A task is a question, named by its seed, and runs in this process. Turns are text, or function calls with
``--env.taskset.native``. The reward is the episode's return; the metrics are the rewards of turns and the task's metrics.
"""

import asyncio
import itertools
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import verifiers.v1 as vf
from openai import APIError, AsyncOpenAI
from pydantic import Field, model_validator

from agent_envs.integrations.episode import Episode, take_message
from agent_envs.integrations.hosting import find_spec
from agent_envs.registration import full_id


class AgentR1Config(vf.TasksetConfig):
    """Settings of the environment, under ``--env.taskset.*``."""

    env: str = "AgentR1/MiniWiki-v0"
    """Registered id, or its middle part (MiniWiki); module:Mine/Name-v0 imports a module of your own first."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment as JSON, for example '{"split": "validation", "max_turns": 3}'."""
    native: bool = False
    """The model acts and answers by function calls. By default it writes text, as the system prompt describes."""

    @model_validator(mode="after")
    def _check_id(self) -> "AgentR1Config":
        find_spec(self.env)
        return self


class AgentR1Data(vf.TaskData):
    """A question of an environment."""

    env: str
    kwargs: dict[str, Any]
    native: bool
    seed: int

    def make_episode(self) -> Episode:
        return Episode(self.env, native=self.native, **self.kwargs)


class AgentR1Task(vf.Task[AgentR1Data]):
    """Reward and metrics that the harness recorded."""

    @vf.reward
    async def episode_return(self, trace: vf.Trace) -> float:
        return sum(_recorded(trace)["turn_rewards"])

    @vf.metric
    async def measures(self, trace: vf.Trace) -> dict[str, float]:
        recorded = _recorded(trace)
        return {f"turn_reward/{i}": paid for i, paid in enumerate(recorded["turn_rewards"])} | recorded["metrics"]


class AgentR1Taskset(vf.Taskset[AgentR1Task, AgentR1Config]):
    """An endless set of an environment's questions: number i has seed i."""

    INFINITE = True

    def load(self) -> Iterator[AgentR1Task]:
        config = self.config
        chosen = {"env": full_id(config.env), "kwargs": config.kwargs, "native": config.native}
        episode = Episode(chosen["env"], native=config.native, **config.kwargs)
        if config.native and episode.env.context is not None:
            raise ValueError("function calls stay in the conversation: leave context at 'append'")
        for seed in itertools.count():
            system, user = (message["content"] for message in episode.start(seed))
            name = f"{chosen['env']}#{seed}"
            data = AgentR1Data(name=name, system_prompt=system or None, prompt=user, seed=seed, **chosen)
            yield AgentR1Task(data, config.task)


class AgentR1EnvConfig(vf.SingleAgentEnvConfig):
    """Settings of the harness, which runs in this process and needs no sandbox."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class AgentR1Env(vf.Env[AgentR1EnvConfig]):
    """One episode of one agent."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)


class AgentR1Harness(vf.Harness[vf.HarnessConfig]):
    """Harness in which the model and the environment take turns."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: vf.ModelContext, trace: vf.Trace, runtime: vf.Runtime, endpoint: str, secret: str,
        mcp_urls: dict[str, str], data: vf.TaskData,
    ) -> vf.ProgramResult:  # fmt: skip
        if not isinstance(data, AgentR1Data):
            raise ValueError("this harness runs only the tasks of agent-r1-envs")
        recorded = trace.info
        recorded["turn_rewards"], recorded["metrics"] = [], {"score": 0.0}
        with closing(await asyncio.to_thread(data.make_episode)) as episode:
            # The randomness after the start differs between the rollouts of a question.
            await asyncio.to_thread(episode.start, data.seed, attempt=zlib.crc32(trace.id.encode()))
            pairs = ("system", data.system_prompt), ("user", data.prompt)
            messages = [{"role": role, "content": content} for role, content in pairs if content]
            opening = messages[:-1]
            options = {"tools": episode.tools} if data.native else {}

            def record() -> None:
                recorded["turn_rewards"] = list(episode.rewards)
                recorded["metrics"] = {**recorded["metrics"], **episode.metrics}

            def settle() -> None:
                if not episode.done:
                    episode.env.fits = lambda observation, context: False
                    episode.step("<think>", cut=True)  # costs nothing, and settles its shaping
                record()

            async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client:
                while not episode.done:
                    try:
                        answer = await client.chat.completions.create(model=ctx.model, messages=messages, **options)
                    except APIError as error:  # a limit of the run, or of the model; the trace knows which
                        settle()
                        return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
                    except asyncio.CancelledError:  # the time limit
                        settle()
                        raise
                    message = answer.choices[0].message.model_dump(exclude_none=True)
                    cut = answer.choices[0].finish_reason == "length"
                    if not data.native:
                        message["content"], cut = episode.end_turn(message.get("content", ""), cut=cut)
                    taking = asyncio.ensure_future(asyncio.to_thread(take_message, episode, message, cut=cut))
                    try:
                        reply, back = await asyncio.shield(taking)
                    except asyncio.CancelledError:
                        await taking  # its thread has the episode
                        settle()
                        raise
                    if reply.metrics["tool_faults"]:
                        raise vf.ToolsetError("a tool failed, so the episode shows nothing about the model")
                    record()
                    messages += [message, *back]
                    if reply.context is not None:
                        messages = opening + reply.context
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def _recorded(trace: vf.Trace) -> dict[str, Any]:
    if "turn_rewards" not in trace.info:
        raise ValueError("the rewards are those of the harness agent-r1-envs: leave out --env.agent.harness.id")
    return trace.info
