"""What survives: the run folder, the journal and the checkpoints. Knows files; knows no decider and no framework."""
