"""Synthetic Larkfield tickets, for training without data.

    python -m training.synthetic --count 6000 --seed 0 --out tickets.csv

`content/` holds the templates as data. `grammar` expands one template, `scene` holds one customer's product
and order, `parts` writes sentences, `styles` orders them, and `tickets` draws styles, teams and situations.
`elsewhere` writes texts that belong to no team.
"""

from training.synthetic.content import TEAMS
from training.synthetic.elsewhere import filler, out_of_scope
from training.synthetic.styles import STYLES
from training.synthetic.tickets import Stream, Ticket, generate

__all__ = ["STYLES", "TEAMS", "Stream", "Ticket", "filler", "generate", "out_of_scope"]
