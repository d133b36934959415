"""Connects helpdesks to the router: takes their webhooks, routes, writes back, reports solved tickets.

The way of an event: `webhook` or `sweep` → `events` (on disk) → `worker` → the helpdesk's API (one file of
`adapters` each) and the router's. `python -m service.connect --help` lists the commands.
"""
