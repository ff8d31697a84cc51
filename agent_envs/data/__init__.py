"""The questions and passages of the benchmarks: `load_benchmark` finds them, and every report names its `source`."""

from agent_envs.data.question import Question
from agent_envs.data.sources import Benchmark, DataUnavailable, load_benchmark, stand_in_warning

__all__ = ["Benchmark", "DataUnavailable", "Question", "load_benchmark", "stand_in_warning"]
