"""`agent_envs.integrations.trl` with TRL's own `GRPOTrainer`."""

import asyncio
import json
import os
import runpy
import sys
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from plug_setup import MINIWIKI, SMALL, make_byte_tokenizer, make_model, make_policy

from agent_envs.integrations import Episode, trl
from agent_envs.rewards import Metric, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.types import TurnOutcome
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.rollouts.rollout import rollout
from trainers.tiny.cold_start import SHIPPED
from trainers.trajectory import to_rows

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
GRPO = pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]'")
pytestmark = pytest.mark.plug
TRAINER, EXAMPLE = GRPO.GRPOTrainer, Path(__file__).parents[2] / "examples" / "plug" / "trl_trainer.py"


def make_trainer(
    model, tokenizer, folder, rewards=(), generation=None, tokens=4096, group_size=4, questions=2, steps=2, **how
):
    config = GRPO.GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, num_generations=group_size,
        per_device_train_batch_size=questions * group_size, max_steps=steps, max_completion_length=tokens, beta=0.0,
        learning_rate=1e-2, lr_scheduler_type="constant", generation_kwargs=generation, gradient_checkpointing=False,
        disable_dropout=True, shuffle_dataset=False, dataloader_pin_memory=False, logging_steps=1, save_strategy="no",
        report_to="none", disable_tqdm=True, top_k=0, scale_rewards="none",
    )  # fmt: skip
    rewards = [trl.episode_return, *rewards]
    return GRPO.GRPOTrainer(model, args=config, processing_class=tokenizer, reward_funcs=rewards, **how)


def variety(completion_ids, **columns):
    """A reward of one's own beside the environment's: random episodes differ in it."""
    return [len(set(ids)) / 10 for ids in completion_ids]


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_its_rollouts_are_ours_and_it_learns_from_them(kind, tmp_path):
    policy, played = make_policy(kind), []
    data = trl.dataset(MINIWIKI, 4, **SMALL)
    envs = make_envs(MINIWIKI, json.dumps(SMALL), "train", 8)
    engine = TransformersEngine(policy, envs.envs[0].stop)
    seeds = list(data["seed"])[:2]
    ours = rollout(envs, policy, engine, seeds=seeds, group_size=4, max_new_tokens=12, temperature=0)
    play = trl.rollout_func(MINIWIKI, policy.tokenizer, **SMALL)

    def noted(prompts, trainer):
        played.append(play(prompts, trainer))
        return {**played[-1]}

    trainer = make_trainer(
        policy.model, policy.tokenizer, tmp_path, [variety], {"do_sample": False}, 12, rollout_func=noted,
        train_dataset=data,
    )  # fmt: skip
    trainer.train()
    for i, episode in enumerate(ours):  # of the first step: the weights are those of the start
        (sequence,) = to_rows(episode.steps)
        assert played[0]["prompt_ids"][i] + played[0]["completion_ids"][i] == sequence.ids
        assert [bool(own) for own in played[0]["env_mask"][i]] == sequence.mask[len(episode.steps[0].prompt) :]
    logs = [line for line in trainer.state.log_history if "reward" in line]
    returns = [sum(map(sum, batch["turn_rewards"])) / 8 for batch in played]
    assert [line["rewards/episode_return/mean"] for line in logs] == pytest.approx(returns)
    sampled = [sum(map(sum, batch["env_mask"])) / 8 for batch in played]
    assert [line["completions/mean_length"] for line in logs] == pytest.approx(sampled)
    assert all({"env/em", "env/turns", "env/reward/answer"} <= set(line) for line in logs)


def said(*calls, text=""):
    """A message as Qwen3 writes it."""
    made = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return text + "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in made) + "<|im_end|>"


def qwen3_tokenizer():
    folder = os.path.join(os.path.dirname(GRPO.__file__), "chat_templates")
    with open(os.path.join(folder, "qwen3.jinja"), encoding="utf-8") as file:
        return make_byte_tokenizer(file.read())


OPTIONS = {**SMALL, "rewards": {"invalid": -0.25}}


def scripts(title, answer):
    """(what the model says, the turns that it comes to) of episodes."""
    look, wrong, right = ("search", {"query": title}), ("answer", {"text": "no idea"}), ("answer", {"text": answer})
    unknown, broken = ("find", {"query": title}), '<tool_call>\n{"name": "search", "argu\n</tool_call><|im_end|>'
    far = [("search", {"query": f"{title} {i}"}) for i in range(4)]
    return [
        ([said(look), said(right), "Done.<|im_end|>"], [[look], [right]]),
        ([said(unknown), said(look), said(right), "Done.<|im_end|>"], [[unknown], [look], [right]]),  # TRL's own error
        ([said(look), broken], [[look], []]),
        ([said(look, far[0]), "I give up.<|im_end|>"], [[look, far[0]], []]),  # two calls are one turn
        ([*map(said, far), said(right), "Done.<|im_end|>"], [[call] for call in far[:3]]),  # past max_turns
        ([said(look, unknown), said(right), "So.<|im_end|>"], [[look, unknown], [right]]),
        ([said(("search", {"text": title})), said(wrong), "Hm.<|im_end|>"], [[("search", {"text": title})], [wrong]]),
        ([said(wrong, look), said(right), "Done.<|im_end|>"], [[wrong, look], [right]]),
    ]


class Speaker:
    """Stands in for the model: says the lines of each episode, which it knows by what was said before."""

    def __init__(self, tokenizer, lines):
        self.tokenizer, self.lines, self.heard = tokenizer, [list(own) for own in lines], {}

    def __call__(self, prompt_ids, images, fields, num_generations, **rest):
        said, free = [], list(self.heard or range(len(self.lines)))
        for ids in prompt_ids:
            i = next(i for i in free if not self.heard or ids[: len(self.heard[i])] == self.heard[i]) if free else 0
            free.remove(i)
            said.append((i, ids, self.tokenizer.encode(self.lines[i].pop(0))))
        self.heard = {**self.heard, **{i: ids + turn for i, ids, turn in said}}
        return [turn for _, _, turn in said], None


def test_episodes_of_the_factory_earn_what_their_turns_earn(tmp_path, monkeypatch):
    tokenizer, earned, told = qwen3_tokenizer(), [], []
    data = trl.dataset(MINIWIKI, 1, native=True, **OPTIONS)
    (seed,) = data["seed"]
    episode, expected = Episode(MINIWIKI, native=True, **OPTIONS), []
    scores = []
    episode.start(seed)
    cases = scripts(episode.env.question.supporting_titles[0], episode.env.question.answer)
    for _, turns in cases:
        episode.start(seed)
        *before, last = turns
        for turn in before:
            episode.call(turn)
        if not last:  # TRL ends the episode where no function is called
            episode.env.fits = lambda observation, context: False
        score, episode.env.fits = episode.call(last).metrics.get("score", 0.0), None
        expected.append(sum(episode.rewards))
        scores.append(score)
    assert len({round(paid, 6) for paid in expected}) >= 5
    returned = trl.episode_return

    def noted(completions, **columns):
        earned.extend(returned(completions, **columns))
        told.extend(completions)
        return earned

    monkeypatch.setattr(trl, "episode_return", noted)
    trainer = make_trainer(
        make_model(tokenizer), tokenizer, tmp_path, group_size=8, questions=1, steps=1, train_dataset=data,
        environment_factory=trl.environment_factory(MINIWIKI, **OPTIONS),
    )  # fmt: skip
    monkeypatch.setattr(trainer, "_generate_single_turn", Speaker(tokenizer, [lines for lines, _ in cases]))
    trainer.train()
    assert earned == pytest.approx(expected)
    results = [[m["content"] for m in messages if m["role"] == "tool"] for messages in told]
    title = cases[0][1][0][0][1]["query"]
    assert title in results[0][0] and "<" not in results[0][0] and results[0][1] == trl.ENDED
    assert len(results[3]) == 2 and results[4][3:] == [trl.ENDED, trl.ENDED]
    assert trainer.state.log_history[0]["env/score"] == pytest.approx(sum(scores) / 8) and 0 < sum(scores) < 6


class Booking(ToolEnv):
    REWARD = Reward(paid=(1.0, Metric("paid")))
    booked: ClassVar[list[str]] = []

    def __init__(self, **kwargs):
        super().__init__((self.book,), instructions="Book.", **kwargs)

    def book(self, what: str) -> str:
        """books."""
        self.booked.append(what)
        if what == "nothing" and len(self.booked) == 1:
            raise OSError("the server is down")
        return f"booking {len(self.booked)}"

    def begin(self, options):
        return "A room, please.", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"paid": float(any(result.text == "booking 1" for result in results))})


@pytest.mark.parametrize(("what", "stopped", "runs", "earned"), [
    ("a room", False, 1, 1.0), ("a room", True, 2, 0.0), ("nothing", False, 1, None), ("nothing", True, 2, None),
])  # fmt: skip
def test_a_conversation_that_ends_first_is_run_again_only_if_its_last_turn_was_taken(
    monkeypatch, what, stopped, runs, earned
):
    monkeypatch.setitem(gymnasium.registry, "Test/Booking-v0", EnvSpec("Test/Booking-v0", entry_point=Booking))
    Booking.booked.clear()
    environment = trl.environment_factory("Test/Booking-v0")()
    environment.reset(**trl.dataset("Test/Booking-v0", 1, native=True)[0])
    said = asyncio.run(environment.book(what=what))
    call = {"type": "function", "function": {"name": "book", "arguments": {"what": what}}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "name": "book", "content": said}]
    messages += [] if stopped else [{"role": "assistant", "content": "Done."}]
    assert trl.episode_return([messages], environments=[environment]) == [earned]
    assert Booking.booked == [what] * runs


@pytest.mark.parametrize("native", [False, True])
def test_the_example_trains_on_a_cpu(native, tmp_path, monkeypatch):
    model = tmp_path / "model" if native else SHIPPED
    if native:
        tokenizer = qwen3_tokenizer()
        for part in (make_model(tokenizer), tokenizer):
            part.save_pretrained(model)
    options = f"--model {model} --steps 1 --questions 2 --new-tokens 64 --out {tmp_path / 'out'}".split()
    monkeypatch.setattr(sys, "argv", ["trl_trainer.py", *options, *["--native"] * native])
    made = []
    monkeypatch.setattr(GRPO, "GRPOTrainer", lambda *given, **how: made.append(TRAINER(*given, **how)) or made[0])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert made[0].state.global_step == 1
    assert (made[0].state.log_history[0]["env/valid"] > 0.9) is not native  # random weights call nothing
