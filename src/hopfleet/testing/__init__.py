"""Conformance suites. Derive from one, say how to make your implementation, and let pytest collect it."""
