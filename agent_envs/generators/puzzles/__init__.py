"""Questions that take a program to answer, each with a program that prints the answer.

`numbers`, `data` and `rules` hold the kinds of puzzles; `questions` draws among them and compares answers.
"""
