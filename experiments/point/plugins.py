"""Code of the user's own, loaded before a file that names it is checked, and again in each worker process."""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from specfleet.experiments.schema.blocks.own import Plugin
from specfleet.experiments.schema.faults import UserError
from specfleet.experiments.schema.registry import OWN, forget, loading

_loaded: dict[str, str] = {}
"""Plugin -> hash of the content that was loaded."""


def load_plugins(plugins: Iterable[Plugin]) -> None:
    """Loads what is not loaded yet.

    Raises:
        UserError: saying which cannot be had, or has changed, and where it failed.
    """
    for plugin in plugins:
        text, digest = content(plugin)
        if plugin.sha256 not in (None, digest):
            raise UserError(
                f"{plugin.named} has changed since its sha256 was noted; remove sha256 to take it as it is"
            )
        if _loaded.get(plugin.named) == digest:
            continue
        with loading(plugin.named):
            try:
                if plugin.file:
                    _run(plugin.file, text)
                else:
                    _import(plugin.named)
            except Exception as error:
                raise UserError(f"{plugin.named}{_line(error, plugin)}: {_said(error)}") from None
        _loaded[plugin.named] = digest


def forget_plugins() -> None:
    """Forgets all that was registered, by plugins and from Python: the next to work in this process may mean
    something else by the same names."""
    for kind, name in list(OWN):
        forget(kind, name)
    _loaded.update(dict.fromkeys(_loaded, ""))


def content(plugin: Plugin) -> tuple[bytes, str]:
    """Returns what a plugin holds, and its hash; of a package, its `__init__.py`.

    Raises:
        UserError: there is no such file or module.
    """
    path = plugin.file
    if path is None:
        try:
            spec = find_spec(plugin.named)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise UserError(f"there is no module {plugin.named}; install it, or name a file that ends in .py")
        path = spec.origin
    try:
        text = Path(str(path)).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check the path") from None
    return text, hashlib.sha256(text).hexdigest()


def _run(file: str, text: bytes) -> None:
    """Runs a file as a module of its own; what was read is what runs."""
    name = f"specfleet_plugin_{Path(file).stem}_{hashlib.sha256(file.encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = file
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise


def _import(name: str) -> None:
    """Imports a module; one that has changed since is imported anew."""
    if name in _loaded:
        importlib.reload(sys.modules[name])
    else:
        importlib.import_module(name)


def _line(error: Exception, plugin: Plugin) -> str:
    """Where in the plugin it failed."""
    if isinstance(error, SyntaxError) and error.filename == plugin.file:
        return f":{error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == plugin.file
    ]
    return f":{lines[-1]}" if lines else ""


def _said(error: Exception) -> str:
    """A user's mistake as it is, any other error with its kind."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
