"""Mixtures of experts: routing, measured times, the price of a layer."""
