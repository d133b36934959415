"""From labelled tickets to a bundle: data, recipes, training loop, calibration, export, evaluation."""
