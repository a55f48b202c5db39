"""`specfleet plan`: the cheapest deployment that meets the SLO, and how to switch it on."""
