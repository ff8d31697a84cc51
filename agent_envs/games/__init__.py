"""The games of the tasks: levels from a seed, rules, solvers. Plain functions on plain data; no agent, no reward."""
