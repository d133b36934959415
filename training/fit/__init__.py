"""The training loop, its checkpoints, data-parallel training, and the examples it trains on."""
