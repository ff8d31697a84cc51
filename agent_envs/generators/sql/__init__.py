"""Questions about made-up databases, each with the query that answers it.

`databases` fills the tables, `templates` lists what is asked of them, `questions` fills the templates in and compares
answers, and `sqlite` runs untrusted queries within limits.
"""
