"""The adapter of Lightning, on top of that of PyTorch. It is imported when its task is asked for."""
