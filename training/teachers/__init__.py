"""Where training signal beyond the labels comes from: a sentence encoder, word counts, text of no team."""
