"""An OpenEnv server with an environment of this suite. Tested with openenv 0.10.

    python -m agent_envs serve MiniWiki --port 8000

A client resets with ``seed``, ``split`` and ``attempt`` and steps with ``{"text": …}``, the agent's turn. Observations have
one field, ``text``, since clients show all fields to the policy; metrics are in the ``metadata`` beside the observation.
"""

import functools
import json
from importlib import metadata
from typing import Any

from pydantic import Field, model_validator

from agent_envs.integrations.episode import Episode, Reply, make_in_split

if next(iter(metadata.distributions(name="openenv-core")), None) and not [*metadata.distributions(name="openenv")]:
    raise ImportError(
        "openenv-core is another package than openenv, with the same module: pip uninstall openenv-core, then "
        "pip install -e '.[openenv]' in the clone, in a virtual environment of its own"
    )

try:
    from openenv.core.env_server import Action, Environment, Observation, State, create_app
    from openenv.core.env_server.types import EnvironmentMetadata
except ImportError as error:
    found = [one for name in ("openenv", "mcp") for one in [*metadata.distributions(name=name)][:1]]
    here = ", ".join(f"{one.name} {one.version}" for one in found) or "neither"
    raise ImportError(
        f"OpenEnv needs openenv 0.10 and mcp<2 (here: {here}): pip install -e '.[openenv]' in the clone, "
        "in a virtual environment of its own, without the extra 'mcp', which needs mcp>=2"
    ) from error


class Turn(Action):
    """The agent's text."""

    text: str = Field(description="your whole turn, written as the instructions say")

    @model_validator(mode="before")
    @classmethod
    def _keep_json_as_text(cls, data: Any) -> Any:
        """Keep a turn that is itself JSON as text: some clients parse the model's text before they send it."""
        if isinstance(data, dict) and "text" in data and not data.keys() - {"text", "metadata"}:
            text = data["text"]
            return data if isinstance(text, str) else {**data, "text": json.dumps(text, ensure_ascii=False)}
        return {"text": json.dumps(data, ensure_ascii=False)}


class Seen(Observation):
    """The agent's next observation."""

    text: str
    metadata: dict[str, Any] = Field(default_factory=dict, exclude=True)  # sent beside the observation, not in it


class AgentR1Environment(Environment):
    """A session of OpenEnv's server; the arguments are those of `Episode`."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, id: str, **env_kwargs: Any):
        super().__init__()
        self._id, self._kwargs = id, env_kwargs
        self._episodes: dict[str | None, Episode] = {}  # by split
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, *, split: str | None = None,
        attempt: int | None = None, **unknown: Any,
    ) -> Seen:  # fmt: skip
        """Begin an episode; its text is the instructions and the question. For ``attempt`` see `Episode.start`."""
        if unknown:
            raise ValueError(f"reset takes seed, split, attempt and episode_id, not {', '.join(sorted(unknown))}")
        if split not in self._episodes:
            self._episodes[split] = make_in_split(self._id, split or "", **self._kwargs)
        self._episode = self._episodes[split]
        texts = [message["content"] for message in self._episode.start(seed, attempt=attempt)]
        self._state = State(episode_id=episode_id)
        return Seen(text="\n\n".join(filter(None, texts)))

    def step(self, action: Turn, timeout_s: float | None = None, **rest: Any) -> Seen:
        """Take a turn."""
        if not self._episodes:
            raise ValueError("no episode is running: reset first, in the same session (a WebSocket)")
        reply: Reply = self._episode.step(self._episode.end_turn(action.text)[0])
        self._state.step_count += 1
        notes = {**reply.metrics, "truncated": float(reply.truncated)}
        return Seen(text=reply.text, reward=float(reply.reward), done=reply.done, metadata=notes)

    @property
    def state(self) -> State:
        """The id that the client gave the episode, and its number of turns."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Return the name, the description and the version of the server."""
        return EnvironmentMetadata(name=self._id, description=f"{self._id} of agent-r1-envs: text in, text out")

    def close(self) -> None:
        """Close the environments."""
        for episode in self._episodes.values():
            episode.close()


def make_app(id: str, sessions: int = 128, **env_kwargs: Any) -> Any:
    """Make the FastAPI application of OpenEnv's server.

    ``split`` is for clients that name none. Raises a ValueError if the context is rewritten, since clients keep the history.
    """
    episode = Episode(id, **env_kwargs)  # fails here, and not at a client's first reset
    if episode.env.context is not None:
        raise ValueError("OpenEnv's clients keep the history themselves: leave context at 'append'")
    episode.close()
    make = functools.partial(AgentR1Environment, id, **env_kwargs)
    return create_app(make, Turn, Seen, env_name=id, max_concurrent_envs=sessions)
