"""Codes of problems with a machine or a launch."""

from planc.diagnostics import Code, Severity

OUTSIDE_RANGE = Code("P910", "package-outside-range", "unsupported version of a package")
MISSING = Code("P911", "package-missing", "required package is not installed")
UNTESTED = Code("P912", "package-untested", "package newer than the tested version", Severity.NOTE)
BROKEN = Code("P913", "package-broken", "PyTorch can't be imported")
MALFORMED_LAUNCH = Code("P914", "malformed-launch", "incomplete or malformed launch variables")
MALFORMED_VARIABLE = Code("P915", "malformed-variable", "malformed environment variable")
IDLE_VARIABLE = Code("P916", "idle-variable", "environment variable without effect", Severity.WARNING)
HARMFUL_VARIABLE = Code(
    "P917",
    "harmful-variable",
    "environment variable harms the run",
    Severity.WARNING,
)
PORT_TAKEN = Code("P918", "port-taken", "rank 0 can't listen on the rendezvous port")
TOO_FEW_DEVICES = Code("P919", "too-few-devices", "too few devices on this machine")
NO_BACKEND = Code("P920", "backend-unavailable", "the plan's backend is unavailable on this machine")
EMULATED_DTYPE = Code(
    "P921", "dtype-emulated", "the device has no native arithmetic for a dtype", Severity.WARNING
)
UNEQUAL_DEVICES = Code(
    "P922", "unequal-devices", "this machine's devices are unequal or sliced", Severity.WARNING
)
DISK_TOO_SMALL = Code("P923", "disk-too-small", "too little disk space for the plan's checkpoints")
UNWRITABLE = Code("P924", "run-folder-unwritable", "the run directory is not writable")
LOCAL_FOLDER = Code("P925", "run-folder-local", "the run directory is on a local disk", Severity.WARNING)
LOW_LIMIT = Code("P926", "low-limit", "system limit is too low for the run", Severity.WARNING)
CLOCK_OFF = Code("P927", "clock-off", "the system clock is wrong", Severity.WARNING)
UNRESOLVED = Code("P928", "address-unresolved", "the rendezvous address can't be resolved", Severity.WARNING)
OTHER_DEVICE = Code(
    "P929",
    "other-device",
    "devices have less memory than the plan's device",
    Severity.WARNING,
)
NO_COMPILER = Code("P930", "compiler-missing", "torch.compile can't build kernels on this machine")
NO_INPUT = Code("P931", "input-missing", "input files are missing on this machine")
BLOCKED = Code("P945", "run-folder-blocked", "an entry in the run directory blocks saving")
NO_PUSH = Code("P946", "push-impossible", "this machine can't push the plan's exports")

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
    NO_PUSH,
)
