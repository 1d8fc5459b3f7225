"""The speed of trials that train together, end to end through ``Experiment``."""
