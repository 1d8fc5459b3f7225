"""Plans made before a run: who trains what, where and in which order. Pure."""
