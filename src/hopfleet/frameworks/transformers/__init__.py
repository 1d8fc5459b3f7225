"""The adapter of Hugging Face Transformers, on top of that of PyTorch. It is imported when its task is asked for."""
