"""vLLM as the engine of rollouts, over HTTP: a `vllm serve` on one or several other devices.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --dtype bfloat16

MODEL is the model that training starts from. The development mode lets weights be exchanged: keep such a server off open
networks. New weights go through a folder for temporary files (``TMPDIR``), which the server must see as well.
"""

import collections
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import torch
from safetensors.torch import save_file

from agent_envs.stopping import StopChecker
from trainers.engines.engine import Completion, SamplingParams, turn_lengths
from trainers.engines.mismatch import check_engine
from trainers.engines.turns import OpenTurn
from trainers.engines.vllm_engine import WeightSync
from trainers.models.policy import Policy
from trainers.runtime import distributed
from trainers.runtime.errors import UserError
from trainers.runtime.retry import ToolsFailed

MAX_CONNECTIONS = 512  # requests that are open at the same time
TIMEOUT = 1800.0  # seconds for an answer; a turn may be long, and a server busy


class VLLMClient:
    """An `Engine` on the server at ``url``, which gets the policy's weights. Seeds depend on the conversation and the turn.

    Raises:
        ValueError: no such server answers at ``url``, or it does not give the policy's probabilities.
    """

    def __init__(self, policy: Policy, stop: tuple[str, ...], url: str):
        self.processed: collections.Counter[str] = collections.Counter()  # only the server could tell
        self._stop, self._is_complete, self._end_ids = stop, StopChecker(policy, stop), sorted(policy.end_ids)
        self._dtype = policy.dtype
        # Idle connections are given up before the server closes them, after 5 s, perhaps as a request is on its way.
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=2.0)
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT, limits=limits)
        try:
            (served, *_) = self._answer(self._http.get("/v1/models"))["data"]
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError, ValueError) as error:
            raise UserError(f"no vLLM server answers at {url!r}: {error}") from error
        self._model, self.max_length = served["id"], min(policy.max_length, float(served["max_model_len"]))
        self._pool = ThreadPoolExecutor(MAX_CONNECTIONS)
        self._open: dict[Future[Completion], int] = {}
        self._sync_weights = WeightSync(policy.model, self._load)
        self.reset()
        check_engine(self, policy)

    def submit(
        self, prompts: dict[int, list[int]], params: SamplingParams, seeds: Mapping[int, int] | None = None
    ) -> None:
        """See `Engine.submit`."""
        lengths = turn_lengths(prompts, params.max_new_tokens, self.max_length, self._open.values())
        for key, prompt in prompts.items():
            # A seed by conversation and turn, as the order in which turns are complete depends on timing.
            self._turns[key] = self._turns.get(key, -1) + 1
            seed = (seeds or {}).get(key, hash((self._seed, key, self._turns[key]))) % 2**31
            self._open[self._pool.submit(self._sample_turn, prompt, lengths[key], params, seed)] = key

    def wait(self) -> dict[int, Completion]:
        """See `Engine.wait`."""
        done, _ = wait(self._open, return_when=FIRST_COMPLETED)
        return {self._open.pop(turn): turn.result() for turn in done}

    def reset(self) -> None:
        """See `Engine.reset`. Sends the weights if they have changed."""
        wait(self._open)
        self._open.clear()
        self._turns: dict[int, int] = {}
        self._seed = int(torch.randint(2**31, ()))
        self._sync_weights()
        if not self._post("/reset_prefix_cache")["success"]:
            raise RuntimeError("vLLM did not give up its prefix cache: keys and values would be those of old weights")

    def _sample_turn(self, prompt: list[int], longest: int, params: SamplingParams, seed: int) -> Completion:
        turn = OpenTurn(longest=longest, is_complete=self._is_complete)
        while not turn.ended:
            tokens = turn.completion.tokens
            # The server looks for stop strings only to save work; what ends a turn is decided here, by its tokens.
            body = {
                "temperature": params.temperature, "top_p": params.top_p, "min_p": params.min_p,
                "model": self._model, "prompt": prompt + tokens, "max_tokens": longest - len(tokens),
                "top_k": 0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
                "seed": seed + len(tokens),
                "stop": list(self._stop), "stop_token_ids": self._end_ids, "ignore_eos": True,
                "include_stop_str_in_output": True, "skip_special_tokens": False, "logprobs": 0,
                "return_token_ids": True,
            }  # fmt: skip
            (choice,) = self._post("/v1/completions", body)["choices"]
            if not choice["token_ids"]:
                raise RuntimeError(f"the vLLM server gave no token, because of {choice['finish_reason']!r}")
            for token, logprob in zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True):
                if not turn.ended:
                    turn.append(token, logprob)
        return turn.completion

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        with tempfile.TemporaryDirectory(prefix="weights-") as folder:
            # Vectors keep their precision: models hold some in float32, such as the corrections of a router.
            kept = ((name, weight, self._dtype if weight.ndim > 1 else weight.dtype) for name, weight in weights)
            tensors = {name: weight.to("cpu", dtype, copy=True).contiguous() for name, weight, dtype in kept}
            save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
            self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    def _post(self, path: str, body: dict | None = None) -> dict:
        """Post a request; return the answer. Raises ToolsFailed, on which a single process saves what it has learned; of several,
        only this one may know of the failure."""
        try:
            return self._answer(self._http.post(path, json=body))
        except (httpx.HTTPError, RuntimeError, ValueError) as error:
            kind = ToolsFailed if distributed.world_size() == 1 else RuntimeError
            raise kind(f"the vLLM server at {self._http.base_url} failed: {error}.") from error

    def _answer(self, response: httpx.Response) -> dict:
        if response.is_error:
            hint = " (start it with VLLM_SERVER_DEV_MODE=1)" if response.status_code == 404 else ""
            raise RuntimeError(f"{response.request.url} answers {response.status_code}{hint}: {response.text[:500]}")
        return response.json()
