"""The versions of a run as its driver sees them: where durable ones go, and how nodes come to drop the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hopfleet.backends.ray.actors import Place
from hopfleet.domain.version_ref import VersionRef
from hopfleet.store.versions.cluster import ClusterVersions


def place_of(storage: str | None, checkpoints: Path) -> Place:
    """Where durable versions of a run go. Two runs of one name are told apart by where their folders are."""
    if storage is None:
        return Place(checkpoints)
    folder = checkpoints.parent
    name = f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    if "://" in storage and not storage.startswith("file://"):
        return Place(checkpoints, f"{storage.rstrip('/')}/{name}")
    return Place(Path(storage.removeprefix("file://")).expanduser().absolute() / name)


class Scattered(ClusterVersions):
    """What the driver drops, nodes drop too: ``drop`` has them do so, and says whether any of them has it."""

    def __init__(
        self,
        checkpoints: Path,
        url: str,
        *,
        drop: Callable[[VersionRef], bool],
        forget: Callable[[str], None],
        release: Callable[[], None],
    ) -> None:
        super().__init__(checkpoints, url=url)
        self._drop_on_nodes, self._forget_on_nodes, self._release_nodes = drop, forget, release
        #: Remote versions are dropped and fetched in the background.
        self._errands = ThreadPoolExecutor(1)

    def drop(self, ref: VersionRef) -> None:
        if not self._drop_on_nodes(ref):
            self._errands.submit(super().drop, ref)

    def collect(self, trial: str = "") -> None:
        self._errands.submit(super().collect, trial)  # what does not come now is fetched in the end

    def forget(self, trial: str) -> None:
        super().forget(trial)
        self._forget_on_nodes(trial)

    def release(self) -> None:
        self._errands.shutdown()
        self._errands = ThreadPoolExecutor(1)
        super().release()
        self._release_nodes()
        super().collect()
