"""Conformance suites. Derive a class from a suite, override ``make``, and let pytest collect the class."""
