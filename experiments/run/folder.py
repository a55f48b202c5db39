"""Where a command writes: `results/NAME/1`, `2`, .. with `latest`, or exactly the folder of `--out`.

A folder is ours by what its manifest.json says. The manifest comes first, with `"whole": false`, and last,
once all else is in place: whoever reads a folder knows whether it is whole. Nothing is removed but what the
manifest names.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

from specfleet import __version__
from specfleet.experiments.run.columnfiles import write_json
from specfleet.experiments.run.files import FolderFault, read_object, write_whole
from specfleet.experiments.run.inputs import changed_files
from specfleet.experiments.run.lock import NAME as LOCK_NAME
from specfleet.experiments.run.lock import Lock
from specfleet.experiments.schema.given import said
from specfleet.experiments.schema.overrides import Override
from specfleet.sim.errors import Breach

MANIFEST, LATEST = "manifest.json", "latest"
FIGURES = (".png", ".svg")
NO_CONTENT = re.compile(rf"{re.escape(LOCK_NAME)}.*|\.{re.escape(MANIFEST)}\.[0-9]+|\.DS_Store")
"""Files that do not make a folder one that holds something: what a command killed at its start leaves."""

Manifest = Mapping[str, object]
OwnFiles = Callable[[Path, Manifest], Iterable[Path]]
"""Which files and folders of a results folder are ours, by its manifest."""


def manifest_of(folder: Path) -> Manifest | None:
    """Returns the manifest of a results folder; None if the folder is not one.

    Raises:
        FolderFault: there is a manifest and it is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    found = read_object(path)
    ours = isinstance(found.get("specfleet"), str) and isinstance(found.get("name"), str)
    return found if ours else None


def numbers(base: Path) -> list[int]:
    """Returns the numbers of the folders below `results/NAME`, ascending."""
    if not base.is_dir():
        return []
    return sorted(int(p.name) for p in base.iterdir() if re.fullmatch("[1-9][0-9]*", p.name) and p.is_dir())


def located(folder: Path) -> Path:
    """Returns the folder that RUN means: itself, or the latest of the numbered ones in it."""
    if folder.name == LATEST and folder.is_file():
        folder = folder.parent
    known = numbers(folder)
    if not known or "whole" in (manifest_of(folder) or {}):
        return folder
    pointer = folder / LATEST
    named = str(pointer.readlink()) if pointer.is_symlink() else _text(pointer)
    return folder / (named if named in map(str, known) else str(known[-1]))


def _text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def figures_in(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yields where figures of these names lie."""
    for name in names:
        for suffix in FIGURES:
            yield folder / "plots" / f"{name}{suffix}"


class ResultsFolder:
    """Where a command writes.

    Args:
        kind: of command: `run`, `plan` or `breakeven`.
        name: of the folder below `results/`.
        out: exactly the folder to use; None is the next number below `results/NAME`.
        own: which files in such a folder are ours.
        mixes: whether what is kept there cannot be taken for what it is not, whatever the settings.

    Attributes:
        path: the folder; known once it is claimed, and before that if `out` names it.
    """

    def __init__(self, kind: str, name: str, out: Path | None, own: OwnFiles, mixes: bool = False) -> None:
        self._kind, self._own, self._mixes = kind, own, mixes
        self._base = Path("results") / name
        self._numbered = out is None
        self.path = out if out is not None else self._base
        self._lock: Lock | None = None

    def claim(self, resume: bool, manifest: Manifest) -> bool:
        """Takes the folder and writes the manifest of an unfinished run; returns whether its content stays.

        Args:
            resume: whether to go on with what is there.
            manifest: of what is to be done.

        Raises:
            FolderFault: the folder belongs to something else, to another process, or to other settings.
        """
        with self.held():
            known = self._taken(resume)
            kept = known is not None and resume and not known.get("being_replaced")
            if known is not None and kept and not self._mixes:
                self._check_resumable(known, manifest)
            elif known is not None and not kept:
                self._clear(known)
            self._tidy(manifest)
            self.write_manifest({**manifest, "whole": False})
            if self._numbered:
                _point_at_latest(self._base)
        return kept

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets other processes have the folder if what is done in it fails, such as on a full disk."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def _taken(self, resume: bool) -> Manifest | None:
        """Locks the folder, which may be new; returns the manifest that lies there."""
        _refuse_files(self.path)
        if self._numbered and not (resume and numbers(self._base)):
            self._base.mkdir(parents=True, exist_ok=True)
            self.path = _next_number(self._base)
        elif self._numbered:
            self.path = self._base / str(numbers(self._base)[-1])
        self._found()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.path)
        return self._found()

    def _found(self) -> Manifest | None:
        """The manifest in the folder; None if the folder is empty."""
        known = manifest_of(self.path)
        if known is None:
            names = [child.name for child in self.path.iterdir()] if self.path.is_dir() else []
            if any(not NO_CONTENT.fullmatch(name) for name in names):
                mine = f"is not empty and not a folder of `specfleet {self._kind}`; use another --out"
                raise FolderFault(self.path, mine)
        elif (kind := known.get("kind", "run")) != self._kind:
            raise FolderFault(self.path, f"is a folder of `specfleet {kind}`; use another --out")
        return known

    def _check_resumable(self, known: Manifest, wanted: Manifest) -> None:
        """What is there must come of the same settings, files and release, or it would be mixed."""
        again = "leave out --resume to start anew"
        if known.get("specfleet") != wanted["specfleet"]:
            made = known.get("specfleet")
            raise FolderFault(
                self.path, f"was made with Specfleet {made}, this is {wanted['specfleet']}; {again}"
            )
        if known.get("resolved_sha256") != wanted["resolved_sha256"]:
            raise FolderFault(self.path, f"was made with other settings; use another --out, or {again}")
        before, now = known.get("inputs"), wanted["inputs"]
        assert isinstance(now, Mapping)
        if not isinstance(before, Mapping):
            raise FolderFault(self.path, f"does not say which files it was made of; {again}")
        if before != now:
            names = [str(name) for name in {**before, **now} if before.get(name) != now.get(name)]
            raise FolderFault(names[0], f"is not what {self.path} was made of; {again}")

    def _clear(self, known: Manifest) -> None:
        """Removes what the manifest says is ours; while that goes on the folder is whole to nobody."""
        self.write_manifest({**known, "whole": False, "being_replaced": True})
        for path in self._own(self.path, known):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _tidy(self, manifest: Manifest) -> None:
        """Removes files that a command was killed over."""
        always = [self.path / name for name in (MANIFEST, "experiment.yaml", "resolved.yaml")]
        ours = {*always, *self._own(self.path, manifest)}
        for cut_short in (child for parent in {path.parent for path in ours} for child in parent.glob(".*")):
            name, _, process = cut_short.name[1:].rpartition(".")
            if cut_short.parent / name in ours and process.isdecimal() and cut_short.is_file():
                cut_short.unlink()

    def write_manifest(self, manifest: Manifest) -> None:
        """Writes the manifest, whole or not at all."""
        write_whole(self.path / MANIFEST, partial(write_json, content=manifest))

    def release(self) -> None:
        """Lets other processes have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _refuse_files(path: Path) -> None:
    """A file where a folder has to be."""
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir():
        raise FolderFault(there, "is a file where a results folder has to be; move it, or use another --out")


def _next_number(base: Path) -> Path:
    """Makes the next numbered folder; whoever else does so at the same time gets another."""
    number = max(numbers(base), default=0) + 1
    while True:
        try:
            (base / str(number)).mkdir()
        except FileExistsError:
            number += 1
        else:
            return base / str(number)


def _point_at_latest(base: Path) -> None:
    """Makes `latest` a link to the largest number, or a file with it where there are no links."""
    pointer, beside = base / LATEST, base / f".{LATEST}.{os.getpid()}"
    while True:
        last = str(numbers(base)[-1])
        beside.unlink(missing_ok=True)
        try:
            beside.symlink_to(last, target_is_directory=True)
        except (OSError, NotImplementedError):
            beside.write_text(f"{last}\n")
        beside.replace(pointer)
        if last == str(numbers(base)[-1]):
            return


def check_whole(folder: Path, manifest: Manifest, whole: bool = True) -> None:
    """Checks that a run's folder holds what its manifest says.

    Args:
        folder: of the run.
        manifest: its own.
        whole: whether a run of which only a part is done will not do.

    Raises:
        FolderFault: it does not.
    """
    if manifest.get("being_replaced"):
        raise FolderFault(
            folder, "was being replaced by another run, which ended before it began; run it again"
        )
    if whole and manifest.get("whole") is not True:
        raise FolderFault(folder, _unfinished(folder, manifest))
    for name in ("resolved.yaml", "summary.csv"):
        digest = manifest.get(f"{name.partition('.')[0]}_sha256")
        if not isinstance(digest, str):
            continue
        if not (folder / name).is_file():
            raise FolderFault(folder / name, "is gone; run it again")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise FolderFault(
                folder / name, "is not what the run wrote: it was changed or damaged; run it again"
            )


def _unfinished(folder: Path, manifest: Manifest) -> str:
    from specfleet.experiments.run.lock import holder

    if "whole" not in manifest:
        return "does not say whether it is whole; run it again with this release"
    at_work = holder(folder)
    if at_work is not None:
        return f"is not whole yet: process {at_work.process} on {at_work.host} is at work here"
    if (law := broken_law(manifest)) is not None:
        return law
    done, total = simulations(folder, manifest)
    return f"is not whole: {done} of {total} simulations are there; go on with --resume"


def broken_law(manifest: Manifest) -> str | None:
    """Returns what to say of a folder in which a simulation broke a law; None if none did."""
    failures = manifest.get("failures")
    for text in map(str, failures.values()) if isinstance(failures, Mapping) else ():
        if text.startswith(f"{Breach.__name__}: "):
            return f"is not to be used: {text.partition(': ')[2]}; report it, with the experiment file"
    return None


def start_of_manifest(
    kind: str, name: str, overrides: Iterable[Override], settings: str, inputs: Mapping[str, str]
) -> dict[str, object]:
    """Returns what every manifest says: who made what, of which resolved settings and which `input_files`."""
    return {
        "specfleet": __version__,
        "kind": kind,
        "name": name,
        "resolved_sha256": hashlib.sha256(settings.encode()).hexdigest(),
        "inputs": dict(inputs),
        "overrides": said(overrides),
    }


def task_names(manifest: Manifest) -> list[str]:
    """Returns the names of a run's folders below `points/`, as its manifest has them."""
    points, ends, seeds = (manifest.get(key) for key in ("points", "ends", "seeds"))
    if not isinstance(points, Sequence) or not isinstance(seeds, Sequence):
        return []
    every = [*points, *(ends if isinstance(ends, Sequence) else ())]
    names = [f"{point},seed={seed}" for point in every for seed in seeds]
    return [name for name in names if Path(name).name == name]


def folders_of(folder: Path, point: str) -> tuple[Path, ...]:
    """Returns the folders of a point's simulations below a run's `points/`, by name."""
    points = folder / "points"
    try:
        changed_ns = points.stat().st_mtime_ns
    except OSError:
        return ()
    return _by_point(points, changed_ns).get(point, ())


@lru_cache(maxsize=4)
def _by_point(points: Path, changed_ns: int) -> Mapping[str, tuple[Path, ...]]:
    """The folders of all points, listed once: one listing a point is a square of their number."""
    found: dict[str, list[Path]] = {}
    for path in sorted(points.iterdir()):
        if not path.name.startswith("."):
            found.setdefault(path.name.rpartition(",seed=")[0], []).append(path)
    return {point: tuple(paths) for point, paths in found.items()}


def simulations(folder: Path, manifest: Manifest) -> tuple[int, int]:
    """Returns how many simulations of a run are there, and how many were asked for."""
    names = task_names(manifest)
    return sum((folder / "points" / name / "_SUCCESS").exists() for name in names), len(names)


def stale(manifest: Manifest) -> list[str]:
    """Returns what is no longer as it was when the run was made, a sentence each."""
    found, inputs = [], manifest.get("inputs")
    if (made := manifest.get("specfleet")) != __version__:
        found.append(f"made with Specfleet {made}, read with {__version__}")
    if isinstance(inputs, Mapping):
        files = {str(name): str(digest) for name, digest in inputs.items()}
        found += [f"{name} is no longer what the run read" for name in changed_files(files)]
    return found
