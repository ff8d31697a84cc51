"""What each of two processes does, for `test_distributed`: `two_processes.py FOLDER` forks both, as torchrun would start them."""

import os
import random
import socket
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agent_envs.tools import SearchTool
from tests.trainers.conftest import shrink_cold_start
from trainers import grpo, ppo, reinforce, sft
from trainers.checkpoints import checkpoint
from trainers.episodes.report import figures
from trainers.models.fsdp import ShardedPolicy, gather_state
from trainers.models.hidden_states import recompute_activations
from trainers.models.kl_reference import KLPenalty
from trainers.models.lora import add_lora, trainable_parameters
from trainers.models.policy import Policy
from trainers.runtime import distributed
from trainers.tiny.model import make_model, make_tokenizer
from trainers.trajectory import Step, Trajectory, to_rows

# Several parts in each step, and a gradient that is not clipped.
SMALL = {"max_tokens_per_micro_batch": 60, "max_grad_norm": 1e6, "lr": 1e-3}
CASES = {
    "grpo-steps": grpo.Args(
        **SMALL, epochs=2, minibatches=5, normalize="sequences", scale_by_std=True, turn_credit=True
    ),
    "grpo-kl": grpo.Args(**SMALL, kl_coef=0.1, kl_target=0.01, importance="tis", entropy_coef=0.01, minibatches=2),
    "grpo-filter": grpo.Args(**SMALL, filter="uncertain", loss="gspo"),
    "grpo-lora": grpo.Args(**SMALL, kl_coef=0.1),
    "ppo": ppo.Args(**SMALL, critic_lr=1e-3, kl_coef=0.1, kl="k1", minibatches=2),
    "ppo-unmasked": ppo.Args(**SMALL, critic_lr=1e-3, loss_mask=False, advantage_mask=False),
    "reinforce": reinforce.Args(**SMALL | {"max_grad_norm": 1e-2}, baseline="group"),  # clipped
    "sft": sft.Args(**SMALL),
}


def make_episodes(count: int = 18, size: int = 50) -> list[Trajectory]:
    """Made up: groups of three; turns and lengths differ; one context is rewritten, one episode failed."""
    draw, made = random.Random(0), []

    def some(least, most):
        return [draw.randrange(5, size) for _ in range(draw.randint(least, most))]

    for i in range(count):
        prompt = made[-1].steps[0].prompt if i % 3 else some(2, 6)
        trajectory, context = Trajectory(group=i // 3, failed=i == 7), prompt
        for turn in range(draw.randint(1, 3)):
            tokens = some(1, 8)
            logprobs = [-draw.random() - 3 for _ in tokens]
            reward = float(draw.randint(0, 2))
            trajectory.steps.append(Step(prompt=context, tokens=tokens, logprobs=logprobs, reward=reward))
            trajectory.anchors.append(None)
            context = some(2, 4) if (i, turn) == (4, 0) else context + tokens + some(0, 5)
        made.append(trajectory)
    return made


def make_learner(name: str):
    torch.manual_seed(0)
    tokenizer = make_tokenizer(["the river town of the comet"])
    model = make_model(len(tokenizer), hidden_size=32, layers=2, heads=2)
    if name == "grpo-lora":
        add_lora(model, 4, 8)
    if name == "grpo-steps":
        recompute_activations(model)
    policy, args = Policy(model, tokenizer), CASES.get(name, grpo.Args(**SMALL))
    return policy, Learner(args, policy)


class Learner:
    """What `Run` and an algorithm's loop make of a policy, on one process or several, for episodes that are given."""

    def __init__(self, args, policy: Policy):
        self.args, self.unsharded = args, policy
        self.policy = trained = ShardedPolicy(policy) if distributed.world_size() > 1 else policy
        self.kl = KLPenalty(trained, args) if getattr(args, "kl_coef", 0) else None
        self.critic = ppo.Critic(trained, args.share_layers) if isinstance(args, ppo.Args) else None
        models = [(trained.model, args.lr)] + ([(self.critic, args.critic_lr)] if self.critic else [])
        groups = [{"params": trainable_parameters(m), "lr": lr} for m, lr in models]
        self.optimizer = grpo.make_optimizer(trained, groups)
        self.modules = {"critic": self.critic} if self.critic else {}
        self.modules |= {"kl": self.kl} if self.kl and args.kl_target else {}
        if isinstance(trained, ShardedPolicy):
            trained.shard([self.optimizer], self.modules.values())

    def update(self, episodes: list[Trajectory], rng) -> dict[str, float]:
        if isinstance(self.policy, ShardedPolicy):
            self.policy.read_weights(self.unsharded)
        common = self.args, self.policy
        if isinstance(self.args, sft.Args):
            taught = [sequence for episode in episodes for sequence in to_rows(episode.steps)]
            before = sft.HeldOutLoss(self.args, self.policy, taught).evaluate(0)["eval/loss"]
            metrics = sft.update(self.args, self.policy, self.optimizer, taught) | {"before": before}
        elif self.critic:
            metrics = ppo.update(*common, self.critic, self.optimizer, self.kl, episodes, rng)
        else:
            algorithm = reinforce if isinstance(self.args, reinforce.Args) else grpo
            metrics = grpo.update(*common, self.optimizer, self.kl, algorithm.compute_advantages, episodes, rng)
        if isinstance(self.policy, ShardedPolicy):
            self.policy.write_weights(self.unsharded)
        return metrics


def learn(name: str, folder: Path, count: int = 18) -> dict:
    """An update; with PPO another one, after a checkpoint was saved and loaded. What came of it."""
    policy, learner = make_learner(name)
    optimizer = learner.optimizer
    for group in optimizer.param_groups:
        group["eps"] = 0.1  # or AdamW's first step is the gradient's sign, also of one that is only rounding
    gradients: list[torch.Tensor] = []

    def keep(*_) -> None:
        found = [p.grad for group in optimizer.param_groups for p in group["params"]]
        gradients[:] = [torch.zeros(1) if g is None else g.clone() for g in found]

    hook = optimizer.register_step_pre_hook(keep)
    metrics = [learner.update(make_episodes(count), np.random.default_rng(0))]
    hook.remove()
    gradients = gather_state(gradients)
    if name.startswith("ppo"):
        save(folder, policy, learner)
        distributed.broadcast(None)  # the first one has written it
        checkpoint.load_state(folder, [learner.optimizer], learner.modules)
        metrics.append(learner.update(make_episodes(count), np.random.default_rng(1)))
    weights = [p.detach().clone() for p in policy.model.parameters()]
    return {"metrics": metrics, "gradients": gradients, "weights": weights}


def save(folder: Path, policy: Policy, learner) -> None:
    checkpoint.save(
        folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[learner.optimizer], step=1, extra={},
        modules=learner.modules,
    )  # fmt: skip


RUN = ppo.Args(
    env_kwargs='{"entities": 200, "questions": 40, "max_turns": 2}', cold_start_steps=5, updates=2, save_every=1,
    questions_per_update=2, group_size=2, eval_questions=5, final_questions=5, max_new_tokens=8, kl_coef=0.1, kl_target=0.1,
)  # fmt: skip

FINE_TUNING = sft.Args(
    env_kwargs=RUN.env_kwargs, cold_start_steps=5, demonstrations=9, sample=2, keep=0, only_solved=False, script=("oracle",),
    max_new_tokens=8, updates=4, eval_every=2, save_every=2, tokens_per_update=400, held_out=0.2,
)  # fmt: skip


def break_once() -> None:
    """The next search breaks: it is one of the cold start, which each process goes through alone."""
    search = SearchTool.execute_batch

    def fail(self, arguments):
        SearchTool.execute_batch = search
        raise ConnectionError("the server is away")

    SearchTool.execute_batch = fail


def main(folder: Path) -> None:
    with distributed.join_processes():
        torch.set_num_threads(1)
        patch = pytest.MonkeyPatch()
        shrink_cold_start(patch, folder / "cache")
        patch.setattr(figures, "save", lambda figure, out: Path(out).touch())
        patch.setattr(os, "fsync", lambda handle: None)
        found = {name: learn(name, folder / name) for name in CASES}
        found["few"] = learn("grpo", folder / "few", count=3)
        found["one"] = learn("ppo-unmasked", folder / "one", count=1)
        torch.save(found, folder / f"{distributed.rank()}.pt")
        break_once()
        ppo.main(replace(RUN, out=folder / "run"))
        sft.main(replace(FINE_TUNING, out=folder / "sft-run"))


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "two",
    }
    if second := os.fork():
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
        main(Path(sys.argv[1]))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))
    os.environ |= {"RANK": "1", "LOCAL_RANK": "1"}
    main(Path(sys.argv[1]))
