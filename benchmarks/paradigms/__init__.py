"""Other ways to train many configurations on several hosts, beside hopping: for the same task, data and epochs.

Each way is one module with ``load`` and ``train``; it knows hosts by their addresses and nothing of how it is measured.
``python -m benchmarks.paradigms`` runs them on hosts of their own, behind links of a given rate, and counts bytes.
"""
