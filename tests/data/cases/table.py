"""All cases."""

from __future__ import annotations

from tests.data.cases import chats, files, imports, meshes, models
from tests.data.cases.case import Case

CASES: tuple[Case, ...] = (*chats.CASES, *files.CASES, *models.CASES, *imports.CASES, *meshes.CASES)
