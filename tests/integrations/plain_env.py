"""A plain Gymnasium environment that speaks text: it knows nothing of this suite."""

import gymnasium

WORDS = ("red", "green", "blue", "white", "black", "brown")


class Plain(gymnasium.Env):
    """Asks for a word; pays 1 and ends when it is said, and is out of patience after three turns."""

    action_space = gymnasium.spaces.Text(1000)
    observation_space = gymnasium.spaces.Text(1000)

    def __init__(self, words=WORDS):
        self.words = words

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word, self.turns = self.words[int(self.np_random.integers(len(self.words)))], 0
        return f"Say {self.word}.", {"length": len(self.word), "secret": object()}

    def step(self, action):
        self.turns += 1
        if action == "crash":
            raise RuntimeError("out of order")
        if action == "scold":
            raise ValueError("mind your words")
        said = self.word in action
        share = sum(letter in action for letter in self.word) / len(self.word)
        told = "Thank you." if said else f"No, say {self.word}."
        return told, float(said) + share / 10, said, not said and self.turns == 3, {"share": share}


gymnasium.register("Mine/Plain-v0", entry_point=Plain)
gymnasium.register("Mine/Limited-v0", entry_point=Plain, max_episode_steps=2)
