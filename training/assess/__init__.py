"""How good a bundle is: calibration, thresholds, baselines, robustness, label errors."""
