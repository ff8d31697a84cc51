import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from trainers import evaluate, grpo
from trainers.algorithms.advantages import group_advantage
from trainers.checkpoints import checkpoint
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.kl_reference import KLPenalty
from trainers.rollouts.rollout import rollout
from trainers.runtime.progress import read_metrics
from trainers.trajectory import collate

SMALL = '{"entities": 60, "questions": 20, "max_turns": 2}'
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def played(make_policy, recite):
    """Six episodes in three groups; the middle group has nothing to choose between."""
    policy = make_policy("subwords")
    envs = recite([["a", "b"], ["a"], ["c", "d"], ["c"], ["e"], ["e", "f", "g"]],
                  [[1.0, 0.0], [0.0], [0.5, 0.5], [1.0], [0.0], [0.0, 1.0, 1.0]])  # fmt: skip
    engine = TransformersEngine(policy, ("</search>",))
    return policy, rollout(envs, policy, engine, seeds=[0, 1, 2], group_size=2, max_new_tokens=6)


def updated(policy, episodes, reference=None, **arguments):
    """The policy after one update with plain gradient descent, and the metrics."""
    policy = copy.deepcopy(policy)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.1)
    args = grpo.Args(max_grad_norm=1e9, **arguments)
    kl = reference and KLPenalty(reference, args)
    rng = np.random.default_rng(0)
    metrics = grpo.update(args, policy, optimizer, kl, grpo.compute_advantages, episodes, rng)
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()]), metrics


def test_an_update_is_the_policy_gradient(played):
    """Against the textbook: sum over episodes and sampled tokens of A grad log p, over the number of sampled tokens.
    The episodes without an advantage, which the trainer leaves out, are counted here."""
    policy, episodes = played
    after, metrics = updated(policy, episodes)
    batch = collate(episodes, policy.pad_id)
    advantages = torch.tensor([0.5, -0.5, 0.0, 0.0, -1.0, 1.0])
    logprobs, _ = policy.logprobs(batch)
    objective = (advantages[:, None] * logprobs).sum() / batch.mask.sum()
    gradients = torch.autograd.grad(objective, list(policy.model.parameters()))
    before = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    expected = torch.cat([g.flatten() for g in gradients])
    torch.testing.assert_close(after - before, 0.1 * expected, rtol=1e-3, atol=1e-6)
    assert metrics["policy/clip_fraction"] == 0
    assert metrics["policy/grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-4)


def test_zero_std_groups_leave_the_policy_alone(played):
    policy, episodes = played
    for episode in episodes:
        for step in episode.steps:
            step.reward = 0.0
    before = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    after, metrics = updated(policy, episodes)
    assert torch.equal(before, after)
    assert metrics["policy/grad_norm"] == 0


def test_the_kl_penalty_pulls_back_to_the_reference_also_in_zero_std_groups(played, make_policy):
    policy, episodes = played
    for episode in episodes:
        for step in episode.steps:
            step.reward = 0.0
    before = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    same, _ = updated(policy, episodes, reference=policy, kl_coef=0.5)
    torch.testing.assert_close(same, before, rtol=0, atol=1e-6)  # at the reference itself the pull is zero
    other = make_policy("subwords", 1)
    moved, metrics = updated(policy, episodes, reference=other, kl_coef=0.5)
    assert metrics["policy/grad_norm"] > 0
    batch = collate(episodes, policy.pad_id)

    def distance(parameters):
        torch.nn.utils.vector_to_parameters(parameters, policy.model.parameters())
        with torch.no_grad():
            gap = policy.logprobs(batch)[0] - other.logprobs(batch)[0]
        return (torch.exp(-gap) + gap - 1)[batch.mask].mean()

    assert distance(moved) < distance(before)


def test_advantages_are_of_whole_episodes(played):
    _, episodes = played
    returns = torch.tensor([e.episode_return for e in episodes])
    assert returns.tolist() == [1.0, 0.0, 1.0, 1.0, 0.0, 2.0]
    groups = torch.tensor([e.group for e in episodes])
    assert group_advantage(returns, groups).tolist() == [0.5, -0.5, 0.0, 0.0, -1.0, 1.0]


@pytest.fixture
def model_folder(make_policy, tmp_path):
    """A model as it comes from the hub: ChatML template, byte-level BPE, eos and pad of their own."""
    policy = make_policy("subwords", 3)
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def arguments(letters, model_folder, out, **changes):
    base = {
        "env": letters, "env_kwargs": SMALL, "model": model_folder, "updates": 4, "questions_per_update": 2,
        "group_size": 3, "lr": 0.01, "max_new_tokens": 6, "eval_every": 2, "eval_questions": 4, "final_questions": 6,
        "save_every": 2, "out": out,
    }  # fmt: skip
    return grpo.Args(**{**base, **changes})


def test_a_whole_run(letters, model_folder, tmp_path, capsys):
    out = tmp_path / "run"
    summary = grpo.main(arguments(letters, model_folder, out, report_to=("tensorboard",)))
    written = json.loads((out / "summary.json").read_text())
    assert written["env"] == letters
    assert written["source"].startswith("miniwiki:validation")
    assert {
        "env", "source", "seed", "em_cold_start", "em_trained", "em_naive_rag", "seconds_cold_start",
        "seconds_training", "episodes",
    } <= set(written)  # fmt: skip
    assert written["episodes"] == 4 * 6
    assert [row["episodes"] for row in summary["rows"]] == [6] * 5
    lines = read_metrics(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["step"] for line in lines if "eval/em" in line] == [0, 2, 4]
    assert lines[-1]["episodes"] == 24
    for line in lines[1:]:
        terms = sum(value for name, value in line.items() if name.startswith("reward/"))
        assert terms == pytest.approx(line["train/return"], abs=1e-6)
        assert line["policy/sampler_kl"] == pytest.approx(0, abs=1e-6)
    assert (out / "learning_curve.png").stat().st_size > 10_000
    assert written["source"] in (out / "evaluation.md").read_text()
    page = (out / "report.html").read_text()
    assert "Trained with GRPO</th>" in page and "Unfinished" not in page
    with pytest.raises(ValueError, match="earlier run"):
        grpo.main(arguments(letters, model_folder, out))
    assert list(out.glob("**/events.out.tfevents.*"))
    shown, told = capsys.readouterr()
    assert "baselines 0/" in told, "what comes before the first update takes minutes with a large model"
    assert "Trained with GRPO" in shown
    assert str(out.name) in shown
    rows = evaluate.main(
        evaluate.Args(
            env=letters, env_kwargs=SMALL, checkpoint=(checkpoint.latest(out),), questions=6, max_new_tokens=6, out=out
        )
    )
    trained = {**summary["rows"][-1], "name": ""}
    assert {**rows[-1], "name": ""} == trained


def test_metrics_are_means_over_what_was_trained_on(played):
    """Entropy must not seem to fall because groups are flat."""
    policy, episodes = played
    _, metrics = updated(policy, episodes)
    batch = collate(episodes, policy.pad_id)
    kept = torch.isin(batch.trajectory, torch.tensor([0, 1, 4, 5]))
    with torch.no_grad():
        _, entropy = policy.logprobs(batch)
    assert metrics["policy/entropy"] == pytest.approx(entropy[kept][batch.mask[kept]].mean().item(), abs=1e-4)


def test_held_out_questions_may_not_be_trained_on(model_folder, tmp_path):
    row = {"id": "1", "question": "Who?", "answer": "x", "supporting_titles": ["X"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "passages.jsonl").write_text(json.dumps({"id": "1", "title": "X", "text": "x"}) + "\n")
    kwargs = json.dumps({"data": str(tmp_path / "q.jsonl"), "corpus": str(tmp_path / "passages.jsonl")})
    with pytest.raises(ValueError, match="training questions too"):
        grpo.main(arguments("AgentR1/HotpotQA-v0", model_folder, tmp_path / "run", env_kwargs=kwargs))


def test_more_minibatches_than_episodes(played):
    policy, episodes = played
    _, metrics = updated(policy, episodes, minibatches=50)
    assert metrics["policy/grad_norm"] > 0


def test_learning_raises_the_return(letters, model_folder, tmp_path):
    """A random policy is paid for lower-case letters, so it should soon write little else."""
    out = tmp_path / "run"
    grpo.main(
        arguments(letters, model_folder, out, updates=25, questions_per_update=4, group_size=8, lr=0.02, eval_every=100)
    )
    returns = [line["train/return"] for line in read_metrics(out / "metrics.jsonl") if "train/return" in line]
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 0.4


def test_a_run_without_a_name_gets_a_folder_of_its_own(letters, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [grpo.main(arguments(letters, model_folder, None, updates=1))["folder"] for _ in range(2)]
    assert folders == ["runs/grpo-Letters-v0-0", "runs/grpo-Letters-v0-0-2"]
