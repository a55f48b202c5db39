"""Points simulated on other machines: a Dask cluster in the place of processes."""

LOCAL = "local"
"""In the place of an address: a scheduler and workers on this machine."""
