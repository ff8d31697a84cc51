"""Requests to the service desk of a synthetic shop, each with the calls that serve it.

`data` makes the shop's state, `service` holds the functions and the policy, `wishes` the kinds of things that customers
ask for, and `requests` puts them together into messages.
"""
