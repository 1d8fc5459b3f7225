"""What trains from outside an experiment: refits, replays, and the search of scikit-learn users.

Results are below this layer, so ``results.refit`` finds ``refit`` by name.
"""
