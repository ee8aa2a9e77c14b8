"""Codes of what is wrong with a machine, or with how a process was started on it."""

from planc.diagnostics import Code, Severity

OUTSIDE_RANGE = Code(
    "P910", "package-outside-range", "an installed package is outside the range that planc works with"
)
MISSING = Code("P911", "package-missing", "a package that this needs is not installed")
UNTESTED = Code(
    "P912", "package-untested", "a package is newer than the one that planc is tested with", Severity.NOTE
)
BROKEN = Code("P913", "package-broken", "PyTorch is installed and cannot be imported")
MALFORMED_LAUNCH = Code(
    "P914", "malformed-launch", "the launcher's environment variables are incomplete or malformed"
)
MALFORMED_VARIABLE = Code(
    "P915", "malformed-variable", "an environment variable has a value that nothing can use"
)
IDLE_VARIABLE = Code(
    "P916", "idle-variable", "an environment variable has no effect, or an old name", Severity.WARNING
)
HARMFUL_VARIABLE = Code(
    "P917",
    "harmful-variable",
    "an environment variable slows a run down or hides its failures",
    Severity.WARNING,
)
PORT_TAKEN = Code("P918", "port-taken", "rank 0 cannot listen on the port where ranks are to meet")
TOO_FEW_DEVICES = Code("P919", "too-few-devices", "this machine has fewer devices than it should")
NO_BACKEND = Code("P920", "backend-unavailable", "the plan's backend does not work on this machine")
EMULATED_DTYPE = Code(
    "P921", "dtype-emulated", "the device has no arithmetic of its own for a dtype", Severity.WARNING
)
UNEQUAL_DEVICES = Code(
    "P922", "unequal-devices", "the devices of this machine do not work well together", Severity.WARNING
)
DISK_TOO_SMALL = Code("P923", "disk-too-small", "the run's folder has no room for what the plan saves")
UNWRITABLE = Code("P924", "run-folder-unwritable", "the run's folder cannot be written")
LOCAL_FOLDER = Code(
    "P925", "run-folder-local", "the run's folder is on a disk of this machine alone", Severity.WARNING
)
LOW_LIMIT = Code("P926", "low-limit", "the system allows less than the run may need", Severity.WARNING)
CLOCK_OFF = Code("P927", "clock-off", "this machine's clock is wrong", Severity.WARNING)
UNRESOLVED = Code(
    "P928", "address-unresolved", "the address where ranks are to meet is unknown here", Severity.WARNING
)
OTHER_DEVICE = Code(
    "P929",
    "other-device",
    "the devices are smaller than the one that the plan is meant for",
    Severity.WARNING,
)
NO_COMPILER = Code("P930", "compiler-missing", "torch.compile finds no compiler on this machine")
NO_INPUT = Code("P931", "input-missing", "files that a run reads are not on this machine")
BLOCKED = Code("P945", "run-folder-blocked", "an entry of the run folder would stop the run from saving")

CODES: tuple[Code, ...] = (
    OUTSIDE_RANGE,
    MISSING,
    UNTESTED,
    BROKEN,
    MALFORMED_LAUNCH,
    MALFORMED_VARIABLE,
    IDLE_VARIABLE,
    HARMFUL_VARIABLE,
    PORT_TAKEN,
    TOO_FEW_DEVICES,
    NO_BACKEND,
    EMULATED_DTYPE,
    UNEQUAL_DEVICES,
    DISK_TOO_SMALL,
    UNWRITABLE,
    LOCAL_FOLDER,
    LOW_LIMIT,
    CLOCK_OFF,
    UNRESOLVED,
    OTHER_DEVICE,
    NO_COMPILER,
    NO_INPUT,
    BLOCKED,
)
