"""What outlives a run: the run folder, the journal with its requests, and the model versions."""
