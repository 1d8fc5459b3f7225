"""Plans made before a run: which configuration trains on which worker, and in which order. Pure."""
