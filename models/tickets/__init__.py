"""Ticket files as people export them: one reader for training, the feedback export and the archive.

Start at `rows.read_rows`. Nothing here needs torch or pandas; only Parquet needs pyarrow.
"""
