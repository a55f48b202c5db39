"""What the requests of an engine on the calendar have had, and what is noted of its iterations."""
