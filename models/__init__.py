"""The network, the text it reads and the bundle it travels in. Only `network` needs torch."""
