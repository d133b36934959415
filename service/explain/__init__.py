"""Why a ticket went where it went, and the numbers of the attention lesson."""
