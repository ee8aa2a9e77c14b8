"""The releases that an inventory depends on, in addition to config.json. No torch here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from planc import __version__


def probe_versions() -> str | None:
    """`planc-0.1.0-torch-2.13.0-transformers-5.23.0`; None where a library is missing that a probe needs."""
    parts = [__version__]
    for name in ("torch", "transformers"):
        version = _installed(name)
        if version is None:
            return None
        parts.append(f"{name}-{version}")
    return f"planc-{'-'.join(parts)}"


def _installed(name: str) -> str | None:
    """The release of a package, which is not imported for it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    suffix = ".dist-info"
    found = [path.name for path in Path(spec.origin).parents[1].glob(f"{name}-*{suffix}")]
    if len(found) == 1:
        return found[0].removeprefix(f"{name}-").removesuffix(suffix)
    # What asks everywhere takes a tenth of a second to import, and a checkout is the only other place.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
