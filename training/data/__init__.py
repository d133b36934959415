"""From ticket files to checked, split tickets, and batches of token ids."""
