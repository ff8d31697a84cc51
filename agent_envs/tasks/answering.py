"""What the tasks that end with an answer, right or wrong, have in common."""

from agent_envs.rewards import AtEnd, Format, Invalid, Metric, Repeat, Reward, Shaping

ANSWER_REWARD = Reward(
    answer=(1.0, AtEnd(Metric("success"))),
    format=(0.05, Format()),
    progress=(0.3, Shaping("progress")),
    invalid=(-0.1, Invalid()),
    repeat=(-0.05, Repeat()),
)
