"""Codes of linking and resolving."""

from planc.diagnostics import Code, Severity

UNKNOWN_BLOCK = Code("P201", "unknown-block", "unknown block")
UNKNOWN_KEY = Code("P202", "unknown-key", "unknown key")
DUPLICATE = Code("P204", "duplicate", "duplicate definition")
WRONG_TYPE = Code("P205", "wrong-type", "wrong type of value")
OUT_OF_RANGE = Code("P206", "out-of-range", "value out of range")
UNKNOWN_NAME = Code("P207", "unknown-name", "unknown name")
WRONG_UNIT = Code("P208", "wrong-unit", "wrong unit")
MISSING = Code("P209", "missing", "missing required part")
MISPLACED = Code("P210", "misplaced-statement", "misplaced statement")
WRONG_ARGUMENTS = Code("P211", "wrong-arguments", "wrong arguments")
UNKNOWN_ACTION = Code("P212", "unknown-action", "unknown choice")
BAD_PATTERN = Code("P213", "bad-pattern", "malformed pattern")
UNUSED_PARAM = Code("P214", "unused-param", "unused parameter")
UNKNOWN_TARGET = Code("P215", "unknown-override", "unknown override target")
PRESET = Code("P217", "preset", "this file is a preset, not a plan")
UNKNOWN_MESH_DIM = Code("P303", "unknown-mesh-dim", "unknown mesh dim")

CANNOT_INCLUDE = Code("P231", "cannot-include", "can't read an included file")
NOT_BELOW_ROOT = Code("P232", "include-outside-root", "an included file is outside the plan's tree")
INCLUDE_CYCLE = Code("P233", "include-cycle", "the file includes itself")
TOO_MANY_FILES = Code("P234", "too-many-files", "the plan includes too many files")
INCLUDES_TOO_DEEP = Code("P235", "includes-too-deep", "the chain of `extends` is too long")
INCLUDES_TOO_LARGE = Code("P236", "includes-too-large", "the included files are too large")
UNKNOWN_IMPORT = Code("P237", "unknown-import", "unknown import")
UNKNOWN_FRAGMENT = Code("P238", "unknown-fragment", "unknown fragment")
WRONG_FRAGMENT = Code("P239", "wrong-fragment", "a fragment used in the wrong block")
UNUSED_IMPORT = Code("P240", "unused-import", "unused import")
BAD_EXTENSION = Code("P241", "bad-extension", "an extension that planc can't use")
UNUSED_EXTENSION = Code("P242", "unused-extension", "unused extension", Severity.WARNING)

RESOLVE_CODES = (
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
    UNUSED_EXTENSION,
    UNKNOWN_TARGET,
    UNKNOWN_MESH_DIM,
)

LINK_CODES = (
    PRESET,
    CANNOT_INCLUDE,
    NOT_BELOW_ROOT,
    INCLUDE_CYCLE,
    TOO_MANY_FILES,
    INCLUDES_TOO_DEEP,
    INCLUDES_TOO_LARGE,
    UNKNOWN_IMPORT,
    UNKNOWN_FRAGMENT,
    WRONG_FRAGMENT,
    UNUSED_IMPORT,
    BAD_EXTENSION,
)

CODES = (*RESOLVE_CODES, *LINK_CODES)
