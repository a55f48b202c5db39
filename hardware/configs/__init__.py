"""Readers of `config.json`: keys of each family to kinds of layers."""
