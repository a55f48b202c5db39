"""Prefill and decode on replicas of their own: the KV of a prompt goes from one to the other."""
