"""The supervisor, its worker processes, and the messages between them."""
