"""Text cleaning, tokenizer, network, decision and the bundle. Only `network` and `multihead` need torch."""
