"""The items of a verification."""

from __future__ import annotations

from planc.verify.outcome import Item

ITEMS = tuple(item for item in Item if item not in (Item.OWN_CODE, Item.BALANCE))
"""Those of a plan without code of its own, and without a balance of experts."""
