"""Specfleet: does speculative decoding pay on your model, your GPU, your traffic?"""

__version__ = "0.1.0"
