"""What the helpdesk reports, the database behind it, drift, and the shadow bundle."""
