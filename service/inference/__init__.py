"""Inference: the service object, admission, the queue and its batches, the loaded bundle, reloading."""
