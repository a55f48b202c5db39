"""Speculation: how many drafts are accepted, by whom, and the closed forms."""
