"""From labelled tickets to a bundle: data, recipes, the loop, calibration, export, evaluation."""
