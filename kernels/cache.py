"""Where compiled kernels are kept between runs."""

import os
import pathlib


def cache_folder() -> pathlib.Path:
    """$LARKFIELD_CACHE, or larkfield-router in the user's cache folder."""
    chosen = os.environ.get("LARKFIELD_CACHE")
    if chosen:
        return pathlib.Path(chosen)
    return (
        pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "larkfield-router"
    )
