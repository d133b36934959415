"""Ticket files, their faults, columns, and batches of token ids."""
