"""vLLM as the engine of rollouts, behind HTTP: a `vllm serve` on other devices, or of several.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --dtype bfloat16

MODEL is what training starts from. The development mode is what lets weights be exchanged; such a server belongs on no
open network. New weights go through a folder for temporary files (``TMPDIR``), which the server must see as well.
"""

import tempfile
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import torch
from safetensors.torch import save_file

from trainers.engines.engine import Completion
from trainers.engines.mismatch import check
from trainers.engines.stopping import Stops
from trainers.engines.vllm_engine import Synchroniser
from trainers.models.policy import Policy

AT_ONCE = 512  # requests under way
TIMEOUT = 1800.0  # seconds for an answer; a turn may be long, and a server busy


class VLLMServer:
    """An `Engine`. A seed goes with every turn, by its conversation and number, so that runs repeat as far as the server's
    arithmetic does.

    Raises:
        ValueError: no such server answers at ``url``, or it does not give the policy's probabilities.
    """

    def __init__(self, policy: Policy, stop: tuple[str, ...], url: str):
        self._stop, self._stops, self._ends = stop, Stops(policy, stop), sorted(policy.end_ids)
        self._dtype = policy.dtype
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT, limits=httpx.Limits(max_connections=AT_ONCE))
        try:
            (served, *_) = self._answer(self._http.get("/v1/models"))["data"]
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError, ValueError) as error:
            raise ValueError(f"no vLLM server answers at {url!r}: {error}") from error
        self._model, self._longest = served["id"], served["max_model_len"]
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._open: dict[Future[Completion], int] = {}
        self._synchronise = Synchroniser(policy.model, self._load)
        self.reset()
        check(self, policy)

    def submit(self, prompts: dict[int, list[int]], max_new_tokens: int, temperature: float) -> None:
        if repeated := sorted(set(self._open.values()) & prompts.keys()):
            raise ValueError(f"conversations {repeated} have an open turn already")
        if long := [key for key, prompt in prompts.items() if len(prompt) >= self._longest]:
            raise ValueError(f"conversations {long} have outgrown the {self._longest} tokens of the server")
        for key, prompt in prompts.items():
            limit = min(max_new_tokens, self._longest - len(prompt))
            # By conversation and turn: which of them are complete first is a matter of time.
            self._turns[key] = self._turns.get(key, -1) + 1
            seed = hash((self._seed, key, self._turns[key])) % 2**31
            self._open[self._pool.submit(self._turn, prompt, limit, temperature, seed)] = key

    def finished(self) -> dict[int, Completion]:
        over, _ = wait(self._open, return_when=FIRST_COMPLETED)
        return {self._open.pop(turn): turn.result() for turn in over}

    def reset(self) -> None:
        wait(self._open)
        self._open.clear()
        self._turns: dict[int, int] = {}
        self._seed = int(torch.randint(2**31, ()))
        self._synchronise()
        if not self._post("/reset_prefix_cache")["success"]:
            raise RuntimeError("vLLM did not give up its prefix cache: keys and values would be those of old weights")

    def _turn(self, prompt: list[int], limit: int, temperature: float, seed: int) -> Completion:
        turn = Completion()
        while turn.finish_reason != "stop" and len(turn.tokens) < limit:
            # The server's own look for the stop strings saves it work; what ends a turn is decided here, by its tokens.
            body = {
                "model": self._model, "prompt": prompt + turn.tokens, "max_tokens": limit - len(turn.tokens),
                "temperature": temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
                "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": seed + len(turn.tokens),
                "stop": list(self._stop), "stop_token_ids": self._ends, "ignore_eos": True,
                "include_stop_str_in_output": True, "skip_special_tokens": False, "logprobs": 0,
                "return_token_ids": True,
            }  # fmt: skip
            (said,) = self._post("/v1/completions", body)["choices"]
            if not said["token_ids"]:
                raise RuntimeError(f"the vLLM server gave no token, because of {said['finish_reason']!r}")
            for token, logprob in zip(said["token_ids"], said["logprobs"]["token_logprobs"], strict=True):
                turn.tokens.append(token)
                turn.logprobs.append(logprob)
                if self._stops(turn.tokens):
                    turn.finish_reason = "stop"
                    break
        return turn

    def _load(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        with tempfile.TemporaryDirectory(prefix="weights-") as folder:
            tensors = {name: weight.to("cpu", self._dtype, copy=True).contiguous() for name, weight in weights}
            save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
            self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    def _post(self, path: str, body: dict | None = None) -> dict:
        return self._answer(self._http.post(path, json=body))

    def _answer(self, response: httpx.Response) -> dict:
        if response.is_error:
            hint = " (start it with VLLM_SERVER_DEV_MODE=1)" if response.status_code == 404 else ""
            raise RuntimeError(f"{response.request.url} answers {response.status_code}{hint}: {response.text[:500]}")
        return response.json()
