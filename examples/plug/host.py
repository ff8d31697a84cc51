"""Train on environments of other libraries: GEM's GuessTheNumber, a task of reasoning-gym, a game of TextArena.

pip install gem-llm       # or reasoning-gym, or textarena
PYTHONPATH=examples/plug python -m trainers.grpo --env host:Mine/Guess-v0 --model PATH_OR_ID --lr 1e-6
"""

import gymnasium

import agent_envs


def guess(**options):
    from gem.envs.game_env.guess_the_number import GuessTheNumberEnv  # its first observation is the instructions

    return agent_envs.host(GuessTheNumberEnv, **options)


class Reasoning:
    """A task of reasoning-gym: the seed of an episode selects its question. Each split has its own dataset."""

    def __init__(self, split: str, task: str = "leg_counting", size: int = 10_000):
        import reasoning_gym

        self.data = reasoning_gym.create_dataset(task, seed=int(split != "train"), size=size)

    def reset(self, seed):
        self.entry = self.data[seed % len(self.data)]
        return self.entry["question"], {}

    def step(self, action):
        score = self.data.score_answer(action.strip(), self.entry)
        return "", score, True, False, {"success": score == 1}


class Arena:
    """A game of TextArena for one player."""

    def __init__(self, id: str = "GuessTheNumber-v0"):
        import textarena

        self.env = textarena.make(id)

    def reset(self, seed):
        self.env.reset(num_players=1, seed=seed % (2**31 - 1))  # seeds of the held-out split are 2**31 higher
        return self.env.get_observation()[1], {}

    def step(self, action):
        if self.env.step(action)[0]:
            return "", self.env.close()[0][0], True, False, {}  # rewards by player
        return self.env.get_observation()[1], 0.0, False, False, {}


def reason(split="train", **options):
    return agent_envs.host(lambda: Reasoning(split), "Answer in a word.", split=split, **options)


gymnasium.register("Mine/Guess-v0", entry_point=guess)
gymnasium.register("Mine/Reasoning-v0", entry_point=reason)
gymnasium.register("Mine/Arena-v0", entry_point=lambda **o: agent_envs.host(Arena, **o))
