"""The one invariant, proved: action mask 1 if and only if sampled, and only that is ever learned from."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.engines.transformers_engine import TransformersEngine
from trainers.rollouts.rollout import rollout
from trainers.trajectory import collate

NASTY = [
    "", " ", "\n\n", "<|end|>", "<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|><|pad|>", "<answer>x</answer>",
    "<information><information></search></information>", "<think><search>", "Ünïcode ☃ 東京 🧪 e\u0301\u200b", "\x00\u2063",
]  # fmt: skip
tool_text = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=12),
    st.lists(st.sampled_from([*NASTY, "town", "the"]), max_size=4).map("".join),
)
episodes_of_text = st.lists(st.lists(tool_text, min_size=1, max_size=4), min_size=1, max_size=4)


class Recorder:
    """Passes everything through, and remembers what was sampled for whom."""

    max_length = math.inf

    def __init__(self, engine):
        self.engine, self.sampled, self.reset, self.submit = engine, {}, engine.reset, engine.submit

    def wait(self):
        done = self.engine.wait()
        for key, completion in done.items():
            self.sampled.setdefault(key, []).append(completion.tokens)
        return done


def assert_recomputed(policy, batch, temperature):
    with torch.no_grad():
        logprobs, _ = policy.logprobs(batch, temperature)
    torch.testing.assert_close(logprobs, batch.old_logprobs, rtol=0, atol=1e-4)


@given(texts=episodes_of_text, seed=st.integers(0, 3), kind=st.sampled_from(["bytes", "bpe", "words"]), data=st.data())
@settings(max_examples=10, deadline=None)
def test_masked_ids_are_those_sampled_and_their_logprobs_can_be_recomputed(
    make_policy, recite, texts, seed, kind, data
):
    policy = make_policy(kind, seed)
    temperature = data.draw(st.sampled_from([0.5, 1.0, 1.7]))
    engine = Recorder(TransformersEngine(policy, ("</search>", "</answer>")))
    torch.manual_seed(seed)
    episodes = rollout(
        recite(texts), policy, engine, seeds=[0] * len(texts), max_new_tokens=data.draw(st.integers(1, 7)),
        temperature=temperature,
    )  # fmt: skip
    batch = collate(episodes, policy.pad_id)
    assert len(batch.ids) == len(texts)  # the context only grew: one sequence an episode
    for row, own in enumerate(texts):
        turns = engine.sampled[row]
        assert len(turns) == len(own)
        assert batch.ids[row][batch.mask[row]].tolist() == [token for turn in turns for token in turn]
        expected = policy.prompt_ids("Say something.", own[0])
        for turn, following in zip(turns, [*own[1:], None], strict=True):
            expected = expected + turn
            if following is not None:
                expected = expected + policy.observation_ids(following, turn)
        assert batch.ids[row, : batch.lengths[row]].tolist() == expected
        assert not batch.mask[row, batch.lengths[row] :].any()
    assert_recomputed(policy, batch, temperature)
