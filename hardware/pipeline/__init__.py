"""Layers on several GPUs in turn: who holds which, what a step takes on each, and between them."""
