"""FLEET: which networks train together, each on how many GPUs, and on which ones."""
