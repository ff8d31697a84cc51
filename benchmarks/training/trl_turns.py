"""Where a turn ends, for `generate`: at the tags at which our engine ends it."""

import torch
from transformers import StoppingCriteria

from agent_envs.chat_tokens import StopChecker
from trainers.models.policy import Policy


class _Tags(StoppingCriteria):
    """Ends each row by itself, from the token on that completes a tag."""

    def __init__(self, ends: StopChecker, width: int):
        self.ends, self.width = ends, width  # of the prompts, which hold tags of earlier turns

    def __call__(self, ids: torch.LongTensor, scores, **rest) -> torch.BoolTensor:
        done = [self.ends(row) for row in ids[:, self.width :].tolist()]
        return torch.tensor(done, device=ids.device)  # type: ignore[return-value]


def end_at_tags(policy: Policy, stop: tuple[str, ...]) -> StopChecker | None:
    """Have the model's `generate` end turns at ``stop`` and at the policy's own ends.

    Returns:
        What finds the end of a turn in which more tokens may follow it; None where each tag is a token, which the
        generation config then has among its ends.
    """
    model, vocabulary = policy.model, policy.tokenizer.get_vocab()
    tokens = [vocabulary[tag] for tag in stop if tag in vocabulary]
    if len(tokens) == len(stop):
        model.generation_config.eos_token_id = sorted({*policy.end_ids, *tokens})
        return None
    model.generation_config.eos_token_id = sorted(policy.end_ids)
    ends, generate = StopChecker(policy, stop), model.generate

    def until_tags(input_ids, **how):
        return generate(input_ids, stopping_criteria=[_Tags(ends, input_ids.shape[1])], **how)

    model.generate = until_tags  # type: ignore[method-assign]  # both ways of TRL's trainer call it
    return ends


def cut(turn: list[int], ends: StopChecker | None) -> list[int]:
    """A turn without what follows its end: `generate` fills up the rows that ended before the last one."""
    return turn if ends is None else ends.cut(turn)


def cut_turns(trainer, ends: StopChecker) -> None:
    """Have TRL's trainer cut what it samples. It knows ends that are tokens, and would count the token that fills up the
    row behind a tag as one that the policy said."""
    sample = trainer._generate_single_turn

    def sample_and_cut(*args, **how):
        turns, logprobs = sample(*args, **how)
        return [cut(turn, ends) for turn in turns], logprobs

    trainer._generate_single_turn = sample_and_cut
