"""How the contract's tests run episodes in each library. A library that is not installed skips its tests."""

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest

from agent_envs.integrations import Episode, trl
from agent_envs.integrations.episode import draw_questions
from agent_envs.integrations.token_episode import TokenEpisode, check_one_sequence

VERL_EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "in_verl.yaml"


def need(module: str):
    return pytest.importorskip(module, reason=f"needs {module}", exc_type=ImportError)


def in_episode(id, kwargs):
    episode = Episode(id, **kwargs)

    def step(turn):
        reply = episode.step(turn)
        return reply.text, reply.reward, reply.done

    return lambda seed, _: "\n\n".join(message["content"] for message in episode.start(seed)), step


def in_gem(id, kwargs):
    gem = need("gem")
    from agent_envs.integrations import gem as plug

    plug.register()
    env = gem.make(id, **kwargs)

    def step(turn):
        text, reward, terminated, truncated, info = env.step(turn)
        assert all(isinstance(value, float) for value in info.values())
        return text, reward, terminated or truncated

    return lambda seed, _: env.reset(seed=seed)[0], step


def in_skyrl(id, kwargs):
    skyrl_gym = need("skyrl_gym")
    from agent_envs.integrations import skyrl

    skyrl.register(id, **kwargs)
    envs = []

    def start(seed, messages):
        skyrl.AgentR1Env._attempts.clear()
        envs.append(skyrl_gym.make(id, env_config={}, extras={"seed": seed, "split": kwargs.get("split", "")}))
        return "\n\n".join(message["content"] for message in envs[-1].init(messages)[0])

    def step(turn):
        output = envs[-1].step(turn)
        return "".join(message["content"] for message in output["observations"]), output["reward"], output["done"]

    return start, step


def in_openenv(id, kwargs):
    need("openenv.core.env_server")
    from agent_envs.integrations.openenv import AgentR1Environment, Turn

    env = AgentR1Environment(id, **kwargs)

    def step(turn):
        seen = env.step(Turn(text=turn))
        return seen.text, seen.reward, seen.done

    return lambda seed, _: env.reset(seed=seed).text, step


TEXT = {"Episode": in_episode, "gem": in_gem, "skyrl": in_skyrl, "openenv": in_openenv}


class Tokens:
    """`TokenEpisode`, which the others stand on. ``rows`` are those of the library's dataset, one for each of ``episodes``,
    whose turns are sampled again."""

    def dataset(self, id, n, seed=0, **kwargs):
        return [{"seed": seed} for seed, *_ in draw_questions(id, n, seed, **kwargs)]

    def seed_of(self, row):
        return row["seed"]

    def run(self, policy, id, kwargs, rows, episodes):
        check_one_sequence(Episode(id, **kwargs), "It")
        for row, episode in zip(rows, episodes, strict=True):
            tokens = TokenEpisode(Episode(id, **kwargs), policy.tokenizer)
            tokens.start(row["seed"], episode.instance["sample"])
            prompt = tokens.prompt
            for step in episode.steps:
                assert tokens.prompt + tokens.ids == step.prompt
                assert tokens.take(step.tokens, step.logprobs).reward == step.reward
            mask, logprobs = [0] * len(prompt) + tokens.mask, [0.0] * len(prompt) + tokens.logprobs
            yield prompt + tokens.ids, mask, logprobs, sum(tokens.episode.rewards)


class TRL(Tokens):
    """`rollout_func`, with a stand-in for TRL's trainer."""

    def dataset(self, id, n, seed=0, **kwargs):
        return list(trl.dataset(id, n, seed=seed, **kwargs))

    def strip_seed(self, row):
        return {"prompt": [{"role": message["role"], "content": message["content"]} for message in row["prompt"]]}

    def run(self, policy, id, kwargs, rows, episodes):
        trainer = make_trl_trainer(policy, sampler(episodes))
        out = trl.rollout_func(id, policy.tokenizer, **kwargs)([row["prompt"] for row in rows], trainer)
        returns = trl.episode_return(None, out["turn_rewards"], env_metrics=out["env_metrics"])
        for i, paid in enumerate(returns):
            prompt = out["prompt_ids"][i]
            mask, logprobs = [0] * len(prompt) + out["env_mask"][i], [0.0] * len(prompt) + out["logprobs"][i]
            yield prompt + out["completion_ids"][i], mask, logprobs, paid


def sampler(episodes):
    """TRL's sampler, which says what was said in ``episodes``."""
    turns: dict = {}
    for step in (step for episode in episodes for step in episode.steps):
        turns.setdefault(tuple(step.prompt), []).append(step)

    def sample(prompts, *_):
        steps = [turns[tuple(prompt)].pop(0) for prompt in prompts]
        return [step.tokens for step in steps], [step.logprobs for step in steps]

    return sample


def make_trl_trainer(policy, sample, **chat_template_kwargs):
    return SimpleNamespace(
        _generate_single_turn=sample, mask_truncated_completions=False,
        accelerator=SimpleNamespace(process_index=0, num_processes=1),
        eos_token_ids=[policy.eos_id], generation_config=SimpleNamespace(), use_vllm=False, model=policy.model,
        args=SimpleNamespace(vllm_mode="colocate", vllm_tensor_parallel_size=1, vllm_max_model_length=None),
        chat_template_kwargs=chat_template_kwargs,
    )  # fmt: skip


class OpenRLHF(Tokens):
    """The executor, with a stand-in for vLLM."""

    def __init__(self):
        need("openrlhf.utils.agent")

    def dataset(self, id, n, seed=0, **kwargs):
        from agent_envs.integrations import openrlhf

        return list(openrlhf.dataset(id, n, seed=seed, **kwargs))

    def seed_of(self, row):
        return json.loads(row["label"])["seed"]

    def strip_seed(self, row):
        return {**row, "label": "Oslo"}

    def run(self, policy, id, kwargs, rows, episodes):
        from agent_envs.integrations import openrlhf

        made = openrlhf.executor(id, **kwargs)()
        for row, episode in zip(rows, episodes, strict=True):
            engine = Engine(episode.steps)
            out = self.run_one(made, row, engine, policy.tokenizer)
            assert engine.asked[0].stop and engine.asked[0].include_stop_str_in_output
            ids = out["observation_tokens"]
            mask = [any(start <= place < end for start, end in out["action_ranges"]) for place in range(len(ids))]
            yield ids, mask, out["rollout_log_probs"], out["reward"]

    def run_one(self, made, row, engine, tokenizer, max_length=100_000, max_tokens=None):
        params = SimpleNamespace(max_tokens=max_tokens, logprobs=1, stop=None)
        return asyncio.run(made.execute(row["input"], row["label"], params, max_length, tokenizer, engine))


class Engine:
    """Says what was said in an episode, as vLLM does."""

    def __init__(self, steps):
        self.steps, self.asked = iter(steps), []

    async def generate(self, ids, sampling_params, multi_modal_data=None):
        step = next(self.steps)
        assert ids == step.prompt
        self.asked.append(sampling_params)
        pairs = zip(step.tokens, step.logprobs, strict=True)
        logprobs = [{token: SimpleNamespace(logprob=value)} for token, value in pairs]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=step.tokens, text=None, logprobs=logprobs)])


class Verl(Tokens):
    """verl's own `AgentLoopWorker` with the configuration that its trainer begins with, and a stand-in for its servers."""

    def __init__(self):
        self.loops = need("verl.experimental.agent_loop.agent_loop")

    def dataset(self, id, n, seed=0, **kwargs):
        from agent_envs.integrations import verl

        return list(verl.dataset(id, n, seed=seed, **kwargs))

    def seed_of(self, row):
        return row["extra_info"]["seed"]

    def strip_seed(self, row):
        return {**row, "extra_info": {"index": 0}}

    def run(self, policy, id, kwargs, rows, episodes):
        from agent_envs.integrations import verl

        verl._FIRST_ATTEMPT = 0
        verl.AgentR1Loop._attempts.clear()
        with TemporaryDirectory() as folder:
            worker = self.make_worker(policy, Path(folder), id, kwargs, episodes)
            out = self.generate(worker, rows)
        for i in range(len(rows)):
            own = out.batch["attention_mask"][i].bool()
            ids = out.batch["input_ids"][i][own].tolist()
            count = int(out.batch["attention_mask"][i][-out.batch["response_mask"].shape[1] :].sum())
            head, scores = len(ids) - count, out.batch["rm_scores"][i]
            assert not out.batch["response_mask"][i, count:].any() and not scores[: count - 1].any()
            mask = [0] * head + out.batch["response_mask"][i, :count].tolist()
            logprobs = [0.0] * head + out.batch["rollout_log_probs"][i, :count].tolist()
            yield ids, mask, logprobs, scores.sum().item()

    def make_worker(self, policy, folder, id, kwargs, episodes, prompt_length=2000, response_length=3000):
        import verl.trainer.config as verl_config
        from omegaconf import OmegaConf

        policy.model.save_pretrained(folder / "model")
        policy.tokenizer.save_pretrained(folder / "model")
        loops = OmegaConf.load(VERL_EXAMPLE)
        loops[0].id, loops[0].env_kwargs = id, kwargs
        OmegaConf.save(loops, folder / "loops.yaml")
        config = OmegaConf.load(Path(verl_config.__file__).parent / "_generated_ppo_trainer.yaml")
        config.actor_rollout_ref.model.path = str(folder / "model")
        rollout = config.actor_rollout_ref.rollout
        rollout.name, rollout.agent.agent_loop_config_path = "vllm", str(folder / "loops.yaml")
        rollout.prompt_length, rollout.response_length = prompt_length, response_length
        rollout.calculate_log_probs = True
        return self.loops.AgentLoopWorker(config, Servers(episodes))

    def generate(self, worker, rows):
        from verl.protocol import DataProto

        columns = {name: np.empty(len(rows), dtype=object) for name in ("raw_prompt", "agent_name", "extra_info")}
        for i, row in enumerate(rows):
            columns["raw_prompt"][i], columns["agent_name"][i] = row["prompt"], row["agent_name"]
            columns["extra_info"][i] = row["extra_info"]
        batch = DataProto.from_dict(non_tensors=columns, meta_info={"validate": False, "global_steps": 0})
        return asyncio.run(worker.generate_sequences(batch))


class Servers:
    """Says what was said in episodes, in place of verl's `LLMServerClient`."""

    def __init__(self, episodes):
        self.sample, self.asked = sampler(episodes), []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **rest):
        from verl.workers.rollout.replica import TokenOutput

        self.asked.append(sampling_params)
        (tokens,), (logprobs,) = self.sample([prompt_ids])
        return TokenOutput(token_ids=tokens, log_probs=logprobs, extra_fields={"global_steps": 3})


TOKENS = {"TokenEpisode": Tokens, "trl": TRL, "openrlhf": OpenRLHF, "verl": Verl}
