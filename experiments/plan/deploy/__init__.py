"""Deployment files of a plan: what starts the winner on Kubernetes, with Compose, and by hand."""
