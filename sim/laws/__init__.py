"""Laws of a run, checked at its end, always: what no configuration, no price and no luck can change."""
