"""Codes of the resolve phase."""

from planc.diagnostics import Code

UNKNOWN_BLOCK = Code("P201", "unknown-block", "unknown block")
UNKNOWN_KEY = Code("P202", "unknown-key", "unknown key")
DUPLICATE = Code("P204", "duplicate", "given twice")
WRONG_TYPE = Code("P205", "wrong-type", "wrong type of value")
OUT_OF_RANGE = Code("P206", "out-of-range", "value out of range")
UNKNOWN_NAME = Code("P207", "unknown-name", "unknown name")
WRONG_UNIT = Code("P208", "wrong-unit", "wrong unit")
MISSING = Code("P209", "missing", "a required part is missing")
MISPLACED = Code("P210", "misplaced-statement", "this statement does not belong here")
WRONG_ARGUMENTS = Code("P211", "wrong-arguments", "wrong arguments")
UNKNOWN_ACTION = Code("P212", "unknown-action", "unknown action")
BAD_PATTERN = Code("P213", "bad-pattern", "malformed pattern")
UNUSED_PARAM = Code("P214", "unused-param", "nothing reads this parameter")
UNKNOWN_TARGET = Code("P215", "unknown-override", "this override names nothing in the plan")
UNKNOWN_MESH_DIM = Code("P303", "unknown-mesh-dim", "unknown mesh dim")

CODES = (
    UNKNOWN_BLOCK,
    UNKNOWN_KEY,
    DUPLICATE,
    WRONG_TYPE,
    OUT_OF_RANGE,
    UNKNOWN_NAME,
    WRONG_UNIT,
    MISSING,
    MISPLACED,
    WRONG_ARGUMENTS,
    UNKNOWN_ACTION,
    BAD_PATTERN,
    UNUSED_PARAM,
    UNKNOWN_TARGET,
    UNKNOWN_MESH_DIM,
)
