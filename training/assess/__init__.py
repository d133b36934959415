"""Calibration, thresholds and scope of a bundle; its figures, baselines, robustness; label errors."""
