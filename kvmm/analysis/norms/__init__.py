"""Norms of keys, values and queries by token, by channel, and which place of the input a token is of."""
