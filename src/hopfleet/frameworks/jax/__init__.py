"""The adapter of JAX. JAX is imported when the task class is asked for."""
