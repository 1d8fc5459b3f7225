"""The adapter of Keras 3 on its TensorFlow, JAX and PyTorch backends. ``task`` is what users see."""
