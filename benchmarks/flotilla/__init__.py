"""How much faster trials are that train together, end to end through ``Experiment``."""
