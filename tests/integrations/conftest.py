import pytest
import torch

import agent_envs  # noqa: F401  (registers the ids)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
