"""Synthetic Larkfield tickets, for training without data.

    python -m training.synthetic --count 6000 --seed 0 --out tickets.csv

`content/` has the templates as data. `grammar` expands one template, `scene` is one customer's product and
order, `parts` writes sentences, `styles` orders them, and `tickets` draws styles, teams and situations.
`elsewhere` writes texts that belong to no team, and `dataset` adds synthetic tickets to real ones.
"""

from training.synthetic.content import TEAMS
from training.synthetic.elsewhere import filler, out_of_scope
from training.synthetic.files import write_csv
from training.synthetic.styles import STYLES
from training.synthetic.tickets import MOST, Stream, Ticket, generate

__all__ = ["MOST", "STYLES", "TEAMS", "Stream", "Ticket", "filler", "generate", "out_of_scope", "write_csv"]
