"""Attacks: faults of every kind, in simulated and in real processes. No fault may change a result.

``make chaos`` runs the long forms and prints a table; the tests here are the short forms.
"""
