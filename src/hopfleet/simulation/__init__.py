"""Experiments in virtual time: workers, saved versions and whole clusters that exist in memory only.

Previews, plans, scenarios, suites, chaos and benchmarks share this package. The controller is that of real experiments.
"""
