"""What runs in a worker: units, the models it keeps in memory, the batch stream, saving, and the process around it."""
