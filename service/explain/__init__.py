"""Explanations of a decision, and the numbers of the attention lesson."""
