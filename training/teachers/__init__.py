"""Training signal beyond the labels: a sentence encoder, word counts, outlier text."""
