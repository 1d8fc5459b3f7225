"""Mutation testing: small bugs are put into functions in memory, and the tests of their folder must notice."""
