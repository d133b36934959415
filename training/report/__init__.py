"""The report beside the bundle: figures, page, pictures, card."""
