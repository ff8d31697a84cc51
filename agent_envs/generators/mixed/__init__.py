"""Questions that take a search, a query, a calculation, or a chain of these.

`world` makes articles with a database beside them, `asker` draws facts and keeps the calls that look them up, and
`questions` holds the kinds of questions.
"""
