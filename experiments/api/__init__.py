"""What `import specfleet` offers in Python."""

from specfleet.experiments.api import register

__all__ = ["register"]
