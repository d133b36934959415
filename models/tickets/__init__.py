"""Reads ticket files as helpdesks export them, for training, the feedback export and the archive.

The entry point is `rows.read_rows`. Nothing here needs torch or pandas; only Parquet needs pyarrow.
"""
