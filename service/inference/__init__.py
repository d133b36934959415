"""A ticket's way to a decision: the service object, the queue and its batches, the loaded bundle."""
