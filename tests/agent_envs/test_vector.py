"""ToolVectorEnv: the serial environments, with one batched search a step."""

import itertools
import pickle
from unittest import mock

import gymnasium
import numpy as np
import pytest
from broken_envs import Digit, registered
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import TurnOutcome
from agent_envs.vector import ToolVectorEnv, _gather_infos, info_of, vector_entry_point
from trainers.factory import make_envs
from trainers.runtime.errors import UserError

ID = "AgentR1/MiniWiki-Easy-v0"


@pytest.fixture
def vector(small):
    return gymnasium.make_vec(ID, num_envs=6, **small)


@pytest.mark.parametrize("mode", ["DISABLED", "NEXT_STEP", "SAME_STEP"])
def test_environments_without_an_action_stay_as_they_are(small, mode):
    """Waiting changes nothing of what an environment later says and pays."""
    vector, even = (gymnasium.make_vec(ID, 3, autoreset_mode=mode, max_turns=3, **small) for _ in range(2))
    vector.action_space.seed(5)
    turns = [vector.action_space.sample() for _ in range(8)]
    before = vector.reset(seed=1)[0]
    even.reset(seed=1)
    expected = [even.step(actions) for actions in turns]
    for i, turn in itertools.product(range(3), range(8)):
        said = vector.step([turns[turn][j] if j == i else None for j in range(3)])
        assert [part[i] for part in said[:4]] == [part[i] for part in expected[turn][:4]]
        for j in {0, 1, 2} - {i}:
            assert (said[0][j], said[1][j]) == (before[j], 0.0)
            assert not any(said[4][name][j] for name in said[4] if name[0] == "_")
        before = said[0]


def test_a_step_makes_one_search_call(vector):
    vector.reset(seed=0)
    spy = mock.Mock(wraps=vector.envs[0].task.searcher)
    for env in vector.envs:
        env.tools["search"].searcher = spy
    actions = ["<search>a town</search>", "x", "<answer>b</answer>", "<search>c</search><search>d</search>"]
    vector.step([*actions, "<search>e", "<search>f</search>"])
    assert [list(call.args[0]) for call in spy.search.call_args_list] == [["a town", "c", "d", "f"]]
    vector.step(["nothing"] * 6)
    assert spy.search.call_count == 1


def test_equal_seeds_make_a_group_and_options_reach_every_environment(vector):
    observations, _ = vector.reset(seed=[4, 4, 4, 5, 5, 5])
    assert len(set(observations[:3])) == len(set(observations[3:])) == 1
    assert vector.reset(seed=np.array([4, 4, 4, 5, 5, 5]))[0] == observations
    asked = vector.reset(options={"question": [3, 3, 4, 4, 5, 5]})[0]
    assert asked == tuple(vector.envs[0].questions[i].question for i in (3, 3, 4, 4, 5, 5))
    assert vector.reset(seed=np.int64(7))[0] == vector.reset(seed=7)[0]


@pytest.mark.filterwarnings("error")
def test_misuse_is_refused(vector, small):
    with pytest.raises(gymnasium.error.ResetNeeded):
        vector.step(["x"] * 6)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match="expected 6 actions"):
        vector.step(["x"])
    with pytest.raises(ValueError, match="expected 6 seeds"):
        vector.reset(seed=[1, 2])
    for wrong in ("x", 1.5, -1):
        with pytest.raises(ValueError, match="seed must be an integer of at least 0, got "):
            vector.reset(seed=[1, 2, 3, 4, 5, wrong])
    for mask in ([True], [0, 1, 2, 3, 4, 5]):
        with pytest.raises(ValueError, match="reset_mask must be bool"):
            vector.reset(options={"reset_mask": np.array(mask)})
    for option in (3, [3]):
        with pytest.raises(ValueError, match="'question' must hold 6 values"):
            vector.reset(options={"question": option})
    with pytest.raises(ValueError, match="text of an assistant turn"):
        vector.step(["<answer>x</answer>", 3, "x", "x", "x", "x"])
    assert vector.envs[0].history.turns == []  # a refused step changes nothing
    with pytest.raises(ValueError, match="num_envs"):
        gymnasium.make_vec(ID, num_envs=0, **small)
    with pytest.raises(ValueError, match=r"one of \['NEXT_STEP', 'SAME_STEP', 'DISABLED'\], got 'never'"):
        ToolVectorEnv(Digit, 1, "never")


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_it_is_gymnasiums_own_vector_in_each_mode(small, mode):
    make = [lambda: gymnasium.make(ID, max_turns=3, **small).unwrapped] * 4
    ours, theirs = ToolVectorEnv(make[0], 4, mode), SyncVectorEnv(make, autoreset_mode=AutoresetMode[mode])
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"] is AutoresetMode[mode]
    said = ours.reset(seed=11)
    assert data_equivalence(said, theirs.reset(seed=11), exact=True)
    ours.action_space.seed(5)
    random, over = np.random.default_rng(0), np.zeros(4, dtype=bool)
    resets = 0
    for step in range(40):
        mask = over if mode == "DISABLED" else random.random(4) < 0.3 * (step % 5 == 4)
        if mask.any():  # in DISABLED of those that are over, else in the middle of anything
            resets += 1
            seeds = [int(s) for s in random.integers(1000, size=4)]
            reset = [env.reset(seed=seeds, options={"reset_mask": mask.copy()}) for env in (ours, theirs)]
            assert data_equivalence(*reset, exact=True)
        actions = ours.action_space.sample()
        said, expected = ours.step(actions), theirs.step(actions)
        assert data_equivalence(said, expected, exact=True), (step, said, expected)
        over = said[2] | said[3]
    assert resets > 3


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_an_environment_that_was_never_reset_rests(mode):
    vector, mask = ToolVectorEnv(Digit, 3, mode), np.array([False, True, False])
    vector.reset(seed=0, options={"reset_mask": mask})
    *_, terminated, truncated, infos = vector.step(["<echo>a</echo>"] * 3)
    assert infos["_turns"].tolist() == mask.tolist() == [False, True, False] and not (terminated | truncated).any()


def test_infos_with_any_keys_come_back():
    boards = ({1: "a"}, {"": 2}, {"a": 1, "_a": 2}, {"a": {(0, 1): 3}}, {"a": {"b": 4}})
    infos = [{"board": board} for board in boards]
    for some in (infos, infos[2:3], infos[3:], infos[4:]):
        gathered = _gather_infos(dict(enumerate(some)), len(some))
        assert [info_of(gathered, i) for i in range(len(some))] == some


class Account(ToolEnv):
    """Tools of one environment work on one account, in order; those of others have nothing to do with it."""

    def __init__(self, timeout=None):
        key = object()
        tools = [FunctionTool(f, batch_key=key, timeout=timeout) for f in (self.add, self.double)]
        super().__init__(tools, instructions="Save.", answers=False)

    def add(self, amount: int) -> int:
        """adds."""
        self.balance += amount
        return self.balance

    def double(self) -> int:
        """doubles."""
        self.balance *= 2
        return self.balance

    def begin(self, options):
        self.balance = int(self.np_random.integers(100))
        return f"You have {self.balance}.", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome(info={"balances": [result.data for result in results], "big": self.balance << 60})


@pytest.mark.parametrize("timeout", [None, 30.0], ids=["in turn", "waiting beside each other"])
def test_calls_of_one_environment_keep_their_order_and_their_state(timeout):
    vector, serial = ToolVectorEnv(lambda: Account(timeout), 4), [Account(timeout) for _ in range(4)]
    vector.reset(seed=3)
    for i, env in enumerate(serial):
        env.reset(seed=3 + i)
    add, double = '<add>{{"amount": {}}}</add>'.format, "<double></double>"
    turns = [add(1) + double + add(2) + double, double + add(5), "nothing", double * 3 + add(-1)]
    for shift in range(4):
        actions = turns[shift:] + turns[:shift]
        observations, *_, infos = vector.step(actions)
        for i, env in enumerate(serial):
            observation, *_, info = env.step(actions[i])
            assert observation == observations[i] and info["balances"] == infos["balances"][i]
            assert infos["big"][i] == info["big"]  # too much for 64 bits
    assert [env.balance for env in vector.envs] == [env.balance for env in serial]


def test_a_refused_reset_rests_that_environment_and_leaves_the_others_playing(vector):
    vector.reset(seed=0)
    with pytest.raises(ValueError, match="question must be an integer in"):
        vector.reset(options={"question": [1, 2, 10**9, 3, 4, 5]})
    _, rewards, terminated, _, infos = vector.step(["<answer>x</answer>"] * 6)
    assert infos["_valid"].tolist() == [True, True, False, True, True, True]
    assert not terminated[2] and rewards[2] == 0.0


def test_actions_of_environments_that_have_ended_are_warned_of(vector):
    vector.reset(seed=0)
    vector.step(["<answer>x</answer>"] * 6)
    vector.step([None] * 6)
    with pytest.warns(UserWarning, match=r"environment 2 has ended, .* autoreset_mode='NEXT_STEP'"):
        vector.step([None, None, "<answer>x</answer>", None, None, None])


def test_an_environment_with_a_vector_of_ours_can_be_pickled_and_wrapped_vectors_are_refused():
    with registered(Digit) as id:
        spec = gymnasium.spec(id)
        spec.vector_entry_point = vector_entry_point(Digit)
        assert pickle.loads(pickle.dumps(gymnasium.make(id))).spec.id == id
        spec.vector_entry_point = lambda **options: VectorWrapper(vector_entry_point(Digit)(**options))
        with pytest.raises(UserError, match="VectorWrapper"):
            make_envs(id, "{}", "train", 2)
