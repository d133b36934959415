"""The training loop, its checkpoints and processes, and what is put together for it."""
