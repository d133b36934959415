"""Feedback from the helpdesk, the database that holds it, drift, and the shadow bundle."""
