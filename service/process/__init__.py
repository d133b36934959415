"""The supervisor, its workers, and the messages between them."""
