"""Specfleet: does speculative decoding pay on your model, your GPU, your traffic?"""

import os

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(__path__[0], "sim")):  # noqa: PTH112, PTH118 (light)
    raise ImportError(
        f"{__path__[0]} lacks the packages it is made of: it comes from a clone without symbolic links; "
        "clone again with `git clone -c core.symlinks=true`"
    )
