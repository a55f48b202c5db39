"""Kinds of layers: what one holds, caches and computes, whichever family it comes from."""
