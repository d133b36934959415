"""Commands that measure or show the service; nothing imports them."""
