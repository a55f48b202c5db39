"""What is asked of a cluster: requests, their lengths, when they arrive, presets and traces.

Knows no engine and no hardware. Everything here ends in a `RequestTable`.
"""
