"""The KV blocks of an engine on the calendar."""
