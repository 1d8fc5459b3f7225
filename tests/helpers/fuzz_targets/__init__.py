"""Targets of fuzzing, one module for each kind of file."""
