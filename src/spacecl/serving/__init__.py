"""A server that answers for every task over HTTP."""
