"""A program as agent, with a model of an API instead of the policy.

The program calls the local endpoint, which forwards its calls to the API. Tasks, records, the counting of calls and the
reasons to refuse a call are therefore the same as in training.
"""

import secrets
import time
from collections.abc import Mapping
from functools import partial
from threading import Condition, Thread
from typing import Any

from agent_envs.utils.scripts import EpisodeRecorder, begin
from agent_envs.vector import ToolVectorEnv, info_of
from trainers.agents.calls import ENDED, Call, CallLog, CallRefused, Message, Turn, cut_at
from trainers.agents.endpoint import Endpoint
from trainers.agents.programs import load_program, run_program
from trainers.agents.tasks import Episode, Task
from trainers.episodes.records import make_record
from trainers.evaluation.api_agent import ApiAgent, EndpointStopped, EpisodeFailed
from trainers.evaluation.api_messages import Form
from trainers.trajectory import Step, Trajectory

_OURS = {"model", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs"}  # not forwarded
_BROKEN_OFF = "the evaluation was broken off"


class ApiProgram:
    """Runs a program with the model of an `ApiAgent`.

    Args:
        agent: "module:function", or a command.
        timeout: the longest time between two calls of the program, in seconds.
        max_calls: the most calls of an episode.
    """

    def __init__(self, agent: str, api: ApiAgent, timeout: float = 300.0, max_calls: int = 50):
        self._program, self._api, self._timeout, self._max_calls = load_program(agent), api, timeout, max_calls
        self._episodes: dict[str, Episode] = {}
        self._closed = False
        self._endpoint = Endpoint(self._episodes.get)

    def close(self) -> None:
        """End all episodes, and the endpoint."""
        self._closed = True
        for episode in list(self._episodes.values()):
            episode.fail(_BROKEN_OFF)
        self._endpoint.close()

    def run_episode(self, envs: ToolVectorEnv, number: int, sample: int) -> dict:
        """Let the program act in the first environment; return the record of its episode."""
        begun, key = time.monotonic(), secrets.token_hex(16)
        _, infos = begin(envs, [number], [sample])
        recorder = EpisodeRecorder(envs.envs[0], info_of(infos, 0))
        trajectory = Trajectory(instance={"instance": number, "sample": sample, **recorder.instance})
        episode = Episode(0, envs.envs[0], recorder, CallLog(trajectory, max_calls=self._max_calls))
        task, caller = Task(episode, self._endpoint.url, key), _Caller(episode, self._api)
        episode.submit, episode.cancel = caller.submit, partial(self._cancel, task, caller)
        self._episodes[key] = episode
        try:
            if not self._closed:
                caller.run(partial(run_program, self._program, task, episode), self._timeout)
        finally:
            episode.fail(_BROKEN_OFF)
            del self._episodes[key]
        failed = trajectory.failed or bool(caller.problem)
        if failed:
            told = trajectory.messages[-1]["content"].strip().partition("\n")[0] if trajectory.messages else ""
            self._api.count_problem(caller.problem or told or "a tool failed")
        return make_record(
            self._api.origin, trajectory.instance, trajectory.messages, trajectory.turns, trajectory.info,
            truncated=trajectory.truncated, failed=failed, tool_faults=trajectory.tool_faults, **caller.tokens,
            seconds=round(time.monotonic() - begun, 3),
        )  # fmt: skip

    def _cancel(self, task: Task, caller: "_Caller") -> None:
        caller.refuse_waiting()
        self._program.cancel(task)


class _Caller:
    """Forwards the calls of an episode to the API.

    Attributes:
        problem: why the API did not answer a call; "" if it answered all calls.
        tokens: the token counts that the API reported.
    """

    def __init__(self, episode: Episode, api: ApiAgent):
        self._episode, self._api = episode, api
        self.problem, self.tokens = "", {"prompt_tokens": 0, "completion_tokens": 0}
        self._changed = Condition()  # guards the episode and its log
        self._stopped: EndpointStopped | None = None
        self._waiting: set[Call] = set()

    def run(self, program: Any, timeout: float) -> None:
        """Run the program in a thread, and end its episode if it takes too long between calls."""
        episode = self._episode
        episode.running, episode.since = True, time.monotonic()

        def run() -> None:
            program()
            with self._changed:
                self._changed.notify_all()

        Thread(target=run, daemon=True).start()
        with self._changed:
            while not episode.ended and not self._stopped:
                left = timeout if self._waiting else episode.since + timeout - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                else:
                    episode.fail(f"TimeoutError: the program took more than {timeout:g} s without a call")
        if self._stopped:
            raise self._stopped

    def submit(self, call: Call) -> None:
        """Forward a call in a new thread. Raises CallRefused."""
        with self._changed:
            if self._episode.ended:
                raise ENDED
            self._episode.session.admit(call)
            self._episode.session.attach(call)
            self._waiting.add(call)
        Thread(target=self._answer, args=(call,), daemon=True).start()

    def _answer(self, call: Call) -> None:
        result: Turn | Exception
        try:
            messages = [{"tool_calls": [], **m} if m["role"] == "assistant" else m for m in call.messages]
            fields = {name: value for name, value in call.body.items() if name not in _OURS and value not in (None, [])}
            result = self._finish(call, *self._api.request_turn(messages, Form(fields=fields)))
        except EpisodeFailed as error:
            self.problem = str(error)
            result = CallRefused(502, f"the API gave no answer: {error}", "api_failed")
        except EndpointStopped as error:
            self._stopped, result = error, CallRefused(502, str(error), "api_failed")
        except Exception as error:
            result = error
        self._settle(call, result)

    def refuse_waiting(self) -> None:
        """Refuse the unanswered calls, as the episode has ended."""
        with self._changed:
            waiting = list(self._waiting)
        for call in waiting:
            self._settle(call, ENDED)

    def _settle(self, call: Call, result: Turn | Exception) -> None:
        with self._changed:
            if call not in self._waiting:
                return
            self._waiting.remove(call)
            self._episode.since = time.monotonic()
            self._changed.notify_all()
        call.settle(result)

    def _finish(self, call: Call, response: Message, usage: Mapping[str, Any], was_cut: bool) -> Turn:
        message = {"role": "assistant", **{name: value for name, value in response.items() if value}}
        message["content"] = cut_at(response["content"], call.stop).strip()
        used = {name: count if isinstance(count := usage.get(name), int) else 0 for name in self.tokens}
        with self._changed:
            if self._episode.ended:
                raise ENDED
            step = Step(prompt=[], tokens=[], logprobs=[])  # the API does not give its token ids
            self._episode.session.add(call, message, step, "", was_cut)
            self.tokens = {name: count + used[name] for name, count in self.tokens.items()}
        reason = "length" if was_cut else "tool_calls" if message.get("tool_calls") else "stop"
        prompt, sampled = used.values()
        return Turn(message=message, finish_reason=reason, prompt_tokens=prompt, completion_tokens=sampled)
