"""The adapter of scikit-learn. ``task`` is what users see."""
