"""Word problems of several steps, each with the calculation that solves it.

`tale` is the builder of a problem, `measures`, `money` and `things` hold the stories, and `word_problems` draws
among them.
"""
