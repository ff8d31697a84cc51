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


@dataclass(frozen=True)
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
    Fault("groups-mixed-in-rollout", ROLL,
        "Trajectory(group=i // group_size, ", "Trajectory(group=i % len(requested), ", "group"),
    Fault("questions-mixed-in-rollout", ROLL,
        "[value for value in requested for _ in range(group_size)]", "requested * group_size", "group"),
    Fault("groups-mixed-in-batch", COLLECTOR,
        "trajectory.group = i // args.group_size", "trajectory.group = i % args.questions_per_update", "batch_of"),
    Fault("rollout-at-temperature-1", COLLECTOR, "temperature=args.temperature", "temperature=1.0", "batch_of"),
    Fault("turns-of-any-length", COLLECTOR,
        "max_new_tokens=args.max_new_tokens", "max_new_tokens=2 * args.max_new_tokens", "batch_of"),
    Fault("one-question-in-all-updates", COLLECTOR,
        "default_rng([args.seed, number])", "default_rng([args.seed, 0])", "batch_of"),
    Fault("end-token-doubled", "agent_envs/chat_tokens.py",
        "            return ids[1:]\n", "            return ids\n", "ends_once"),
    Fault("end-token-lost", "agent_envs/chat_tokens.py",
        "if after and after[-1] in self.end_ids and ids[:1] == after[-1:]:", "if after:", "ends_once"),
    Fault("failed-forgotten", ROLL, "trajectory.failed |= ", "trajectory.failed = ", "stays_failed"),
    Fault("anchor-after-the-step", ROLL,
        "            ended = bool(terminated[i])", "            episodes[i].trajectory.anchors[-1] = envs.envs[i].anchor()\n"
        "            ended = bool(terminated[i])", "anchors"),
    Fault("anchor-constant", ROLL,
        "act(completion, envs.envs[i].anchor())", "act(completion, ())", "anchors"),
    Fault("rewritten-context-ignored", ROLL,
        'if "context" in infos and infos["_context"][i]:', "if False:", "rewrote"),
    Fault("one-noise-seed-for-a-group", ROLL,
        "[i % group_size for i in range(envs.num_envs)]", "[0 for i in range(envs.num_envs)]", "chances"),
    # -- how it is learned from
    Fault("loss-at-temperature-1", GRPO,
        "policy.logprobs(batch, args.temperature, args.entropy_coef", "policy.logprobs(batch, 1.0, args.entropy_coef"),
    Fault("importance-at-temperature-1", PREPARATION,
        "compute_logprobs(policy, batch, args.temperature,", "compute_logprobs(policy, batch, 1.0,", "tis"),
    Fault("reference-at-temperature-1", KL,
        "compute_logprobs(self._reference, batch, args.temperature,",
        "compute_logprobs(self._reference, batch, 1.0,", "k3"),
    Fault("no-shuffling", PREPARATION, "rng.permutation(len(together))", "np.arange(len(together))"),
    Fault("epochs-ignored", PREPARATION, "range(args.epochs)", "range(1)"),
    Fault("minibatches-ignored", PREPARATION, "min(args.minibatches, len(together))", "1"),
    Fault("beta2-of-.999", GRPO, "betas=(0.9, 0.95)", "betas=(0.9, 0.999)"),
    Fault("weight-decay-of-.1", GRPO, "weight_decay=0.0", "weight_decay=0.1"),
    Fault("gradients-not-clipped", GRPO, "args.max_grad_norm)", "1e9)"),
    Fault("gradients-not-zeroed", GRPO, "optimizer.zero_grad()", "pass"),
    Fault("normalizer-without-rows-of-no-gradient", GRPO,
        "count_normalizer(batch, rows, ", "count_normalizer(batch, rows[has_gradient[rows]], "),
    Fault("normalizer-with-failed-rows", PREPARATION, "    rows = rows[valid[batch.trajectory[rows]]]\n", ""),
    Fault("normalizer-of-the-whole-batch", PREPARATION, "int(batch.mask[rows].sum())", "int(batch.mask.sum())"),
    Fault("mean-over-sequences-ignored", LOSSES, 'if mean_over == "tokens":', "if True:", "paper"),
    Fault("episodes-torn-apart", PREPARATION,
        'batch.trajectory.tolist() if args.mean_over == "sequences"',
        "range(len(batch.ids)) if False", "gspo or paper"),
    Fault("sequences-are-rows", PREPARATION,
        "sum_of_sequence(batch.mask.sum(1), batch.trajectory)", "batch.mask.sum(1)", "gspo or paper"),
    Fault("ratios-are-of-rows", PREPARATION, "sum_of_sequence(own, part.trajectory) - own", "0.0", "gspo"),
    Fault("ppo-ratios-are-of-rows", PPO,
        "        batch = add_sequence_ratios(batch, rows, policy, args)", "        batch = batch", "ppo and gspo"),
    Fault("sequence-weights-are-of-rows", PREPARATION,
        "batch.mask, batch.trajectory)\n    else", "batch.mask)\n    else", "masked"),
    Fault("failed-episodes-count", PREPARATION,
        "valid=torch.tensor([not t.failed for t in trajectories]", "valid=torch.tensor([True for t in trajectories]"),
    Fault("failed-episodes-have-entropy", GRPO,
        "has_gradient = episodes.valid[batch.trajectory]", "has_gradient = batch.mask.any(1)", "entropy"),
    Fault("clip-high-ignored", GRPO,
        "return clipped_policy_loss(logprobs, old_logprobs, advantages, *args.clip_range, args.dual_clip)",
        "return clipped_policy_loss(logprobs, old_logprobs, advantages, *args.clip_range[:1] * 2, args.dual_clip)",
        "higher or plain_loop"),
    Fault("entropy-punished", GRPO,
        "loss - args.entropy_coef * entropy", "loss + args.entropy_coef * entropy", "entropy"),
    Fault("importance-weights-ignored", GRPO, "loss = loss * batch.importance_weights", "pass", "tis"),
    Fault("kl-to-the-current-policy", KL,
        "self._args, self._kl = make_reference(policy), args", "self._args, self._kl = policy, args", "k3"),
    Fault("kl-made-anew-in-each-update", GRPO,
        "            trajectories = run.collect(step)",
        "            kl_penalty = kl_penalty and KLPenalty(policy, args)\n            trajectories = run.collect(step)", "k3"),
    Fault("ppo-gradients-not-clipped", PPO, "args.max_grad_norm)", "1e9)", "ppo"),
    Fault("ppo-gradients-not-zeroed", PPO, "optimizer.zero_grad()", "pass", "ppo"),
    Fault("ppo-normalizer-with-failed-rows", PPO,
        "count_normalizer(batch, rows, episodes.valid, ",
        "count_normalizer(batch, rows, episodes.valid | True, ", "ppo"),
    Fault("ppo-kl-not-passed-on", PPO,
        "policy_loss(args, policy, kl_penalty, batch, normalizer, states)",
        "policy_loss(args, policy, None, batch, normalizer, states)", "ppo and k3"),
    Fault("unfiltered", GRPO,
        "    trajectories, metrics = select_episodes(trajectories, args)", "    metrics = {}", "mixed"),
    Fault("kl-not-steered", GRPO, "        kl_penalty.adapt()\n", "        pass\n", "target"),
    Fault("k1-not-in-the-return", PREPARATION, "rewards.sum(1) if returns_from_rewards else returns", "returns", "k1"),
    Fault("k2-for-k3", KL, '{"k2": kl_k2, "k3": kl_k3}', '{"k2": kl_k2, "k3": kl_k2}', "k3"),
    Fault("reward-on-the-first-token", "trainers/trajectory.py",
        "[0.0] * (n + m - 1) + [step.reward]",
        "[0.0] * n + [step.reward] + [0.0] * (m - 1)", "plain_loop and reinforce"),
    Fault("rewritten-context-goes-on", "trainers/trajectory.py",
        "if last is None or step.prompt[: len(last.ids)] != last.ids:", "if last is None:"),
    # -- of single algorithms
    Fault("turn-gamma-ignored", GRPO,
        "e.groups, args.turn_gamma, args.scale_by_std", "e.groups, 1.0, args.scale_by_std", "turn"),
    Fault("process-weight-ignored", GRPO, "whole + args.process_weight * own", "whole + own", "process"),
    Fault("scale-by-std-ignored", GRPO,
        "group_advantage(e.returns, e.groups, args.scale_by_std, e.valid)",
        "group_advantage(e.returns, e.groups, False, e.valid)", "paper"),
    Fault("grpo-counts-failed", GRPO,
        "group_advantage(e.returns, e.groups, args.scale_by_std, e.valid)",
        "group_advantage(e.returns, e.groups, args.scale_by_std)"),
    Fault("rloo-counts-failed", "trainers/rloo.py",
        "leave_one_out(e.returns, e.groups, e.valid)", "leave_one_out(e.returns, e.groups)", "rloo"),
    Fault("rloo-by-turns-counts-itself", "trainers/rloo.py",
        "valid=e.valid, leave_out=True", "valid=e.valid, scale_by_std=False", "rloo"),
    Fault("step-gamma-ignored", "trainers/gigpo.py",
        "args.step_gamma, args.step_weight", "0.95, args.step_weight", "gigpo"),
    Fault("step-weight-ignored", "trainers/gigpo.py",
        "args.step_gamma, args.step_weight", "args.step_gamma, 1.0", "gigpo"),
    Fault("reinforce-by-turns-whitens-failed", "trainers/reinforce.py",
        "whiten(compared, e.mask & e.valid[:, None])", "whiten(compared, e.mask)", "reinforce"),
    Fault("reinforce-counts-failed", "trainers/reinforce.py",
        "reinforce_plus_plus(e.rewards, e.mask, valid=e.valid)", "reinforce_plus_plus(e.rewards, e.mask)", "reinforce"),
    Fault("ppo-whitens-failed", PPO, "whiten(advantages, mask & valid[:, None])", "whiten(advantages, mask)", "ppo"),
    Fault("ppo-learns-from-failed", PPO,
        "has_gradient = episodes.valid[batch.trajectory]", "has_gradient = batch.mask.any(1)", "ppo"),
    Fault("value-clip-around-the-current-value", PPO,
        "value_loss(values, batch.values, batch", "value_loss(values, values.detach(), batch", "ppo and clip"),
    Fault("value-clip-ignored", PPO,
        "batch.value_targets, args.value_clip)", "batch.value_targets, 1e9)", "ppo and clip"),
    Fault("value-coef-ignored", PPO, "loss + args.value_coef * of_values", "loss + 0.5 * of_values", "ppo and shared"),
    Fault("critic-lr-not-used", PPO, '"lr": args.critic_lr', '"lr": args.lr', "ppo"),
    Fault("shared-layers-learn-no-values", PPO,
        "values = critic(batch, states)",
        "values = critic(batch, states and (states[0].detach(), states[1]))", "ppo and shared"),
    Fault("layers-shared-always", PPO, "Critic(policy, args.share_layers)", "Critic(policy, True)", "ppo"),
    Fault("lambda-ignored", PPO,
        "gae(rewards, packed, mask, args.gamma, args.lam, valid)",
        "gae(rewards, packed, mask, args.gamma, 1.0, valid)", "ppo and discounted"),
    Fault("turn-lambda-ignored", PPO,
        "args.lam, args.turn_gamma, args.turn_lam, valid", "args.lam, args.turn_gamma, 1.0, valid", "ppo and level"),
    Fault("turn-level-ignored", PPO,
        "    elif args.turn_level:\n        advantages", "    elif False:\n        advantages", "ppo and level"),
    Fault("bi-level-ignored", PPO,
        "    if args.bi_level:\n        advantages", "    if False:\n        advantages", "ppo and level"),
]  # fmt: skip


def put_in(fault: Fault, tree: Path, dry: bool = False) -> None:
    """Change the file, or only look. Raises a ValueError where the text of the fault is not found exactly once."""
    path = tree / fault.file
    text = path.read_text()
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.name}: its text stands in {fault.file} {count} times: {fault.old!r}")
    if not dry:
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
    for fault in chosen:
        put_in(fault, ROOT, dry=True)  # before minutes are spent
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
