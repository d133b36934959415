"""Synthetic Larkfield tickets, for a machine that has no data yet.

    python -m training.synthetic --count 6000 --seed 0 --out tickets.csv

`content/` holds what people write about, as data; `grammar` expands a line of it, `scene` knows one
customer's product and order, `parts` writes sentences, `styles` puts them in the order of a style, and
`tickets` deals out styles, teams and situations. `elsewhere` writes texts that belong to no team.
"""

from training.synthetic.content import TEAMS
from training.synthetic.elsewhere import filler, out_of_scope
from training.synthetic.styles import STYLES
from training.synthetic.tickets import Stream, Ticket, generate

__all__ = ["STYLES", "TEAMS", "Stream", "Ticket", "filler", "generate", "out_of_scope"]
