from types import SimpleNamespace

import pytest

from trainers import factory
from trainers.factory import make_envs
from trainers.models.loading import load_policy


@pytest.mark.parametrize("wrong", ["{", "[1]", '"x"', "entities=3"])
def test_arguments_that_are_no_json_object(wrong):
    with pytest.raises(ValueError, match="env_kwargs"):
        make_envs("AgentR1/MiniWiki-Easy-v0", wrong, "train", 2)


def test_arguments_that_the_environment_does_not_take():
    with pytest.raises(TypeError, match="entitles"):
        make_envs("AgentR1/MiniWiki-Easy-v0", '{"entitles": 3}', "train", 2)


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"cannot load a model from .*no-such-folder"):
        load_policy(str(tmp_path / "no-such-folder"))


def test_questions_of_ones_own_kind_need_no_ids():
    def envs(*questions):
        return SimpleNamespace(envs=[SimpleNamespace(questions=questions)])

    factory.check_splits(envs("a", "b"), envs("b"))  # whether they are the same is not known
    ours, theirs = SimpleNamespace(id="1"), SimpleNamespace(id="2")
    factory.check_splits(envs(ours, "a"), envs(theirs, "a"))
    with pytest.raises(ValueError, match="1 held-out questions are training questions too"):
        factory.check_splits(envs(ours, theirs), envs("a", ours))
