"""Do the tests see a fault in how the trainer is wired?

    python -m benchmarks.deliberate_faults
    python -m benchmarks.deliberate_faults --only whiten-failed --tests tests/trainers

Each fault is one change of the text of one file, in a copy of the tree; then tests are run there until one fails. Prints
a table, and exits with 1 where a fault survived.
"""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "retrieval_index", "agent_envs", "trainers", "tests/trainers"
UPDATE, ROLLOUT = "tests/trainers/test_reference_update.py", "tests/trainers/rollouts/test_reference_rollout.py"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``old`` must stand in ``file`` exactly once. ``within``: a pytest ``-k`` expression for tests that are there for it,
    so that the others need not be waited for."""

    name: str
    file: str
    old: str
    new: str
    within: str = ""


@dataclass(kw_only=True)
class Args:
    """Put faults in, one at a time, and see which test fails."""

    only: tuple[str, ...] = ()
    """Names of faults; all by default."""
    tests: tuple[str, ...] = (UPDATE, ROLLOUT)
    """What is run."""
    everything: bool = False
    """Run all of these tests for each fault, and not those alone that are there for it."""


GRPO, ROLL = "trainers/grpo.py", "trainers/rollouts/rollout.py"
PPO, PREPARATION, LOSSES = "trainers/ppo.py", "trainers/rollouts/batching.py", "trainers/algorithms/losses.py"
COLLECTOR, KL = "trainers/rollouts/collector.py", "trainers/models/kl_reference.py"
FAULTS = [
    # -- what is played
    Fault(
        name="groups-mixed-in-rollout", file=ROLL, within="group",
        old="            group=i // group_size,", new="            group=i % (count // group_size),",
    ),
    Fault(
        name="questions-mixed-in-rollout", file=ROLL, within="group",
        old="[value for value in asked for _ in range(group_size)]", new="asked * group_size",
    ),
    Fault(
        name="groups-mixed-in-batch", file=COLLECTOR, within="batch_of",
        old="trajectory.group = i // args.group_size", new="trajectory.group = i % args.questions_per_update",
    ),
    Fault(
        name="rollout-at-temperature-1", file=COLLECTOR, within="batch_of",
        old="temperature=args.temperature", new="temperature=1.0",
    ),
    Fault(
        name="turns-of-any-length", file=COLLECTOR, within="batch_of",
        old="max_new_tokens=args.max_new_tokens", new="max_new_tokens=2 * args.max_new_tokens",
    ),
    Fault(
        name="one-question-in-all-updates", file=COLLECTOR, within="batch_of",
        old="default_rng([args.seed, number])", new="default_rng([args.seed, 0])",
    ),
    Fault(
        name="end-token-doubled", file="agent_envs/chat_tokens.py", within="ends_once",
        old="            return ids[1:]\n", new="            return ids\n",
    ),
    Fault(
        name="end-token-lost", file="agent_envs/chat_tokens.py", within="ends_once",
        old="if after and after[-1] in self.end_ids and ids[:1] == after[-1:]:", new="if after:",
    ),
    Fault(
        name="failed-forgotten", file=ROLL, within="stays_failed",
        old="trajectory.failed |= ", new="trajectory.failed = ",
    ),
    Fault(
        name="anchor-after-the-step", file=ROLL, within="anchors",
        old="trajectory.anchors.append(anchors[i])", new="trajectory.anchors.append(envs.envs[i].anchor())",
    ),
    Fault(
        name="anchor-constant", file=ROLL, within="anchors",
        old="{i: envs.envs[i].anchor() for i in completions}", new="{i: () for i in completions}",
    ),
    Fault(
        name="rewritten-context-ignored", file=ROLL, within="rewrote",
        old='elif "context" in infos and infos["_context"][i]:', new="elif False:",
    ),
    Fault(
        name="one-noise-seed-for-a-group", file=ROLL, within="chances",
        old="[i % group_size for i in range(envs.num_envs)]", new="[0 for i in range(envs.num_envs)]",
    ),
    # -- how it is learned from
    Fault(
        name="loss-at-temperature-1", file=GRPO,
        old="policy.logprobs(batch, args.temperature, args.entropy_coef", new="policy.logprobs(batch, 1.0, args.entropy_coef",
    ),
    Fault(
        name="importance-at-temperature-1", file=PREPARATION, within="tis",
        old="compute_logprobs(policy, batch, args.temperature,", new="compute_logprobs(policy, batch, 1.0,",
    ),
    Fault(
        name="reference-at-temperature-1", file=KL, within="k3",
        old="compute_logprobs(self._reference, batch, args.temperature,", new="compute_logprobs(self._reference, batch, 1.0,",
    ),
    Fault(
        name="no-shuffling", file=PREPARATION, old="rng.permutation(len(together))", new="np.arange(len(together))",
    ),
    Fault(name="epochs-ignored", file=PREPARATION, old="range(args.epochs)", new="range(1)"),
    Fault(name="minibatches-ignored", file=PREPARATION, old="min(args.minibatches, len(together))", new="1"),
    Fault(name="beta2-of-.999", file=GRPO, old="betas=(0.9, 0.95)", new="betas=(0.9, 0.999)"),
    Fault(name="weight-decay-of-.1", file=GRPO, old="weight_decay=0.0", new="weight_decay=0.1"),
    Fault(name="gradients-not-clipped", file=GRPO, old="args.max_grad_norm)", new="1e9)"),
    Fault(
        name="gradients-not-zeroed", file=GRPO,
        old="optimizer.zero_grad()", new="pass",
    ),
    Fault(
        name="normalizer-without-rows-of-no-gradient", file=GRPO,
        old="count_normalizer(batch, rows, ", new="count_normalizer(batch, rows[has_gradient[rows]], ",
    ),
    Fault(
        name="normalizer-with-failed-rows", file=PREPARATION,
        old="    rows = rows[valid[batch.trajectory[rows]]]\n", new="",
    ),
    Fault(
        name="normalizer-of-the-whole-batch", file=PREPARATION,
        old="int(batch.mask[rows].sum())", new="int(batch.mask.sum())",
    ),
    Fault(
        name="mean-over-sequences-ignored", file=LOSSES, within="paper",
        old='if mean_over == "tokens":', new="if True:",
    ),
    Fault(
        name="episodes-torn-apart", file=PREPARATION, within="gspo or paper",
        old='batch.trajectory.tolist() if args.mean_over == "sequences"', new="range(len(batch.ids)) if False",
    ),
    Fault(
        name="sequences-are-rows", file=PREPARATION, within="gspo or paper",
        old="sum_of_sequence(batch.mask.sum(1), batch.trajectory)", new="batch.mask.sum(1)",
    ),
    Fault(
        name="ratios-are-of-rows", file=PREPARATION, within="gspo",
        old="sum_of_sequence(own, part.trajectory) - own", new="0.0",
    ),
    Fault(
        name="ppo-ratios-are-of-rows", file=PPO, within="ppo and gspo",
        old="        batch = add_sequence_ratios(batch, rows, policy, args)", new="        batch = batch",
    ),
    Fault(
        name="sequence-weights-are-of-rows", file=PREPARATION, within="masked",
        old="batch.mask, batch.trajectory)\n    else", new="batch.mask)\n    else",
    ),
    Fault(
        name="failed-episodes-count", file=PREPARATION,
        old="valid=torch.tensor([not t.failed for t in trajectories]", new="valid=torch.tensor([True for t in trajectories]",
    ),
    Fault(
        name="failed-episodes-have-entropy", file=GRPO, within="entropy",
        old="has_gradient = episodes.valid[batch.trajectory]", new="has_gradient = batch.mask.any(1)",
    ),
    Fault(
        name="clip-high-ignored", file=GRPO, within="higher or plain_loop",
        old="return clipped_policy_loss(logprobs, old_logprobs, advantages, *args.clip_range, args.dual_clip)",
        new="return clipped_policy_loss(logprobs, old_logprobs, advantages, *args.clip_range[:1] * 2, args.dual_clip)",
    ),
    Fault(
        name="entropy-punished", file=GRPO, within="entropy",
        old="loss - args.entropy_coef * entropy", new="loss + args.entropy_coef * entropy",
    ),
    Fault(
        name="importance-weights-ignored", file=GRPO, within="tis",
        old="loss = loss * batch.importance_weights", new="pass",
    ),
    Fault(
        name="kl-to-the-current-policy", file=KL, within="k3",
        old="self._args, self._kl = make_reference(policy), args", new="self._args, self._kl = policy, args",
    ),
    Fault(
        name="kl-made-anew-in-each-update", file=GRPO, within="k3",
        old="            trajectories = run.collect(step)",
        new="            kl_penalty = kl_penalty and KLPenalty(policy, args)\n            trajectories = run.collect(step)",
    ),
    Fault(name="ppo-gradients-not-clipped", file=PPO, within="ppo", old="args.max_grad_norm)", new="1e9)"),
    Fault(
        name="ppo-gradients-not-zeroed", file=PPO, within="ppo",
        old="optimizer.zero_grad()", new="pass",
    ),
    Fault(
        name="ppo-normalizer-with-failed-rows", file=PPO, within="ppo",
        old="count_normalizer(batch, rows, episodes.valid, ", new="count_normalizer(batch, rows, episodes.valid | True, ",
    ),
    Fault(
        name="ppo-kl-not-passed-on", file=PPO, within="ppo and k3",
        old="policy_loss(args, policy, kl_penalty, batch, normalizer, states)",
        new="policy_loss(args, policy, None, batch, normalizer, states)",
    ),
    Fault(
        name="unfiltered", file=GRPO, within="mixed",
        old="    trajectories, metrics = select_episodes(trajectories, args)", new="    metrics = {}",
    ),
    Fault(
        name="kl-not-steered", file=GRPO, within="target",
        old="        kl_penalty.adapt()\n", new="        pass\n",
    ),
    Fault(
        name="k1-not-in-the-return", file=PREPARATION, within="k1",
        old="rewards.sum(1) if returns_from_rewards else returns", new="returns",
    ),
    Fault(
        name="k2-for-k3", file=KL, within="k3",
        old='{"k2": kl_k2, "k3": kl_k3}', new='{"k2": kl_k2, "k3": kl_k2}',
    ),
    Fault(
        name="reward-on-the-first-token", file="trainers/trajectory.py", within="plain_loop and reinforce",
        old="[0.0] * (n + m - 1) + [step.reward]", new="[0.0] * n + [step.reward] + [0.0] * (m - 1)",
    ),
    Fault(
        name="rewritten-context-goes-on", file="trainers/trajectory.py",
        old="if last is None or step.prompt[: len(last.ids)] != last.ids:", new="if last is None:",
    ),
    # -- of single algorithms
    Fault(
        name="turn-gamma-ignored", file=GRPO, within="turn",
        old="e.groups, args.turn_gamma, args.scale_by_std", new="e.groups, 1.0, args.scale_by_std",
    ),
    Fault(
        name="process-weight-ignored", file=GRPO, within="process",
        old="whole + args.process_weight * own", new="whole + own",
    ),
    Fault(
        name="scale-by-std-ignored", file=GRPO, within="paper",
        old="group_advantage(e.returns, e.groups, args.scale_by_std, e.valid)",
        new="group_advantage(e.returns, e.groups, False, e.valid)",
    ),
    Fault(
        name="grpo-counts-failed", file=GRPO,
        old="group_advantage(e.returns, e.groups, args.scale_by_std, e.valid)",
        new="group_advantage(e.returns, e.groups, args.scale_by_std)",
    ),
    Fault(
        name="rloo-counts-failed", file="trainers/rloo.py", within="rloo",
        old="leave_one_out(e.returns, e.groups, e.valid)", new="leave_one_out(e.returns, e.groups)",
    ),
    Fault(
        name="rloo-by-turns-counts-itself", file="trainers/rloo.py", within="rloo",
        old="valid=e.valid, leave_out=True", new="valid=e.valid, scale_by_std=False",
    ),
    Fault(
        name="step-gamma-ignored", file="trainers/gigpo.py", within="gigpo",
        old="args.step_gamma, args.step_weight", new="0.95, args.step_weight",
    ),
    Fault(
        name="step-weight-ignored", file="trainers/gigpo.py", within="gigpo",
        old="args.step_gamma, args.step_weight", new="args.step_gamma, 1.0",
    ),
    Fault(
        name="reinforce-by-turns-whitens-failed", file="trainers/reinforce.py", within="reinforce",
        old="whiten(compared, e.mask & e.valid[:, None])", new="whiten(compared, e.mask)",
    ),
    Fault(
        name="reinforce-counts-failed", file="trainers/reinforce.py", within="reinforce",
        old="reinforce_plus_plus(e.rewards, e.mask, valid=e.valid)", new="reinforce_plus_plus(e.rewards, e.mask)",
    ),
    Fault(
        name="ppo-whitens-failed", file=PPO, within="ppo",
        old="whiten(advantages, mask & valid[:, None])", new="whiten(advantages, mask)",
    ),
    Fault(
        name="ppo-learns-from-failed", file=PPO, within="ppo",
        old="has_gradient = episodes.valid[batch.trajectory]", new="has_gradient = batch.mask.any(1)",
    ),
    Fault(
        name="value-clip-around-the-current-value", file=PPO, within="ppo and clip",
        old="value_loss(values, batch.values, batch", new="value_loss(values, values.detach(), batch",
    ),
    Fault(
        name="value-clip-ignored", file=PPO, within="ppo and clip",
        old="batch.value_targets, args.value_clip)", new="batch.value_targets, 1e9)",
    ),
    Fault(
        name="value-coef-ignored", file=PPO, within="ppo and shared",
        old="loss + args.value_coef * of_values", new="loss + 0.5 * of_values",
    ),
    Fault(name="critic-lr-not-used", file=PPO, within="ppo", old='"lr": args.critic_lr', new='"lr": args.lr'),
    Fault(
        name="shared-layers-learn-no-values", file=PPO, within="ppo and shared",
        old="values = critic(batch, states)", new="values = critic(batch, states and (states[0].detach(), states[1]))",
    ),
    Fault(
        name="layers-shared-always", file=PPO, within="ppo",
        old="Critic(policy, args.share_layers)", new="Critic(policy, True)",
    ),
    Fault(
        name="lambda-ignored", file=PPO, within="ppo and discounted",
        old="gae(rewards, packed, mask, args.gamma, args.lam, valid)",
        new="gae(rewards, packed, mask, args.gamma, 1.0, valid)",
    ),
    Fault(
        name="turn-lambda-ignored", file=PPO, within="ppo and level",
        old="args.lam, args.turn_gamma, args.turn_lam, valid", new="args.lam, args.turn_gamma, 1.0, valid",
    ),
    Fault(
        name="turn-level-ignored", file=PPO, within="ppo and level",
        old="    elif args.turn_level:\n        advantages", new="    elif False:\n        advantages",
    ),
    Fault(
        name="bi-level-ignored", file=PPO, within="ppo and level",
        old="    if args.bi_level:\n        advantages", new="    if False:\n        advantages",
    ),
]  # fmt: skip


def put_in(fault: Fault, tree: Path) -> None:
    """Raises a ValueError where the text of the fault is not found exactly once."""
    path = tree / fault.file
    text = path.read_text()
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.name}: its text stands in {fault.file} {count} times: {fault.old!r}")
    path.write_text(text.replace(fault.old, fault.new))


def copy_tree(to: Path) -> None:
    for name in FOLDERS:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("*.pyc"))  # and keep what numba compiled
    shutil.copy(ROOT / "pyproject.toml", to)


@dataclass(eq=False)
class First:
    """A pytest plugin that notes which test failed first, and how many were run."""

    failed: str = ""
    run: set[str] = field(default_factory=set)

    def pytest_runtest_logreport(self, report):
        self.run.add(report.nodeid)
        if report.failed and not self.failed:
            self.failed = report.nodeid.split("::")[-1]

    def pytest_collectreport(self, report):
        if report.failed and not self.failed:
            self.failed = f"collecting {report.nodeid}"


def killed_by(fault: Fault, args: Args) -> str:
    """The first test that failed with this fault, "" if there is none. In a process of its own, which is a fork: what
    takes long to import is there already."""
    with tempfile.TemporaryDirectory() as folder:
        tree, said = Path(folder) / "tree", Path(folder) / "said"
        copy_tree(tree)
        put_in(fault, tree)
        child = os.fork()
        if not child:
            try:
                said.write_text(first_failure(fault, args, tree))
                os._exit(0)
            except BaseException as error:
                said.write_text(repr(error))
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"{fault.name}: the tests could not be run: {said.read_text()}")
        return said.read_text()


def first_failure(fault: Fault, args: Args, tree: Path) -> str:
    import pytest

    os.chdir(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    os.environ["PYTHONPATH"] = str(tree)
    with open("log", "w") as log:  # what pytest says
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    first = First()
    options = ["-x", "-q", "-p", "no:cacheprovider"]
    if fault.within and not args.everything:
        options += ["-k", fault.within]
    pytest.main([*options, *args.tests], plugins=[first])
    if not first.run and not first.failed:
        raise ValueError(f"no test was run: {Path('log').read_text()[-2000:]}")
    return first.failed


def main(args: Args) -> int:
    chosen = [fault for fault in FAULTS if not args.only or fault.name in args.only]
    if unknown := set(args.only) - {fault.name for fault in FAULTS}:
        raise ValueError(f"there are no faults {sorted(unknown)}")
    import faiss  # noqa: F401  (imported here once, and not by every child)
    import numba  # noqa: F401
    import pytest  # noqa: F401
    import transformers  # noqa: F401
    from transformers import Qwen2ForCausalLM  # noqa: F401

    survived = 0
    print("| fault | killed by | seconds |\n|---|---|---|")
    for fault in chosen:
        begin = time.monotonic()
        test = killed_by(fault, args)
        survived += not test
        print(f"| {fault.name} | {test or 'SURVIVED'} | {time.monotonic() - begin:.1f} |", flush=True)
    print(f"\n{len(chosen) - survived} of {len(chosen)} killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
