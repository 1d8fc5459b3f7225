"""Alternatives to hopping for training many configurations on several hosts: the same task, data and epochs.

Each paradigm is one module with ``load`` and ``train``; it knows the addresses of hosts and nothing about measuring.
``python -m benchmarks.paradigms`` runs them on separate hosts, behind links of a given rate, and counts bytes.
"""
