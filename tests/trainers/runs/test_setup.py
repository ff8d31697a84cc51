import pytest

from trainers.models.loading import load_policy
from trainers.runs.setup import make_envs


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
