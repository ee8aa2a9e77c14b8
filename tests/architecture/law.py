"""The import law as data: the packages of planc, lowest first, and what each may import."""

from __future__ import annotations

SHARED = ("record", "__version__")
"""What every package may import."""

LAW: dict[str, tuple[str, ...]] = {
    "record": (),
    "outgoing": (),
    "strict_json": (),
    "source": (),
    "vocab": (),
    "tables": (),
    "devices": ("vocab",),
    "hub": ("vocab",),
    "highlight": (),
    "launchers": ("tables", "devices"),
    "diagnostics": ("source", "outgoing"),
    "syntax": ("source", "diagnostics"),
    "fmt": ("source", "diagnostics", "syntax"),
    "extend": (),
    "modeling": ("vocab",),
    "inventory": ("vocab", "hub", "modeling", "extend"),
    "styles": ("vocab", "inventory.schema"),
    "optimizers": ("vocab", "extend"),
    "data_sources": ("extend",),
    "pipelining": (),
    "plan": (
        *("source", "vocab", "devices", "hub", "diagnostics", "syntax", "styles"),
        *("inventory.adapters", "inventory.products", "inventory.schema", "inventory.routers", "optimizers"),
        *("data_sources", "pipelining", "extend"),
    ),
    "layouts": (
        "vocab",
        "styles",
        "inventory.adapters",
        "inventory.schema",
        "plan.bind",
        "plan.divided_heads",
    ),
    "checks": (
        *("source", "vocab", "tables", "devices", "diagnostics", "syntax", "styles", "plan", "layouts"),
        *("inventory.adapters", "inventory.schema", "inventory.routers", "inventory.matrices"),
        *("data_sources", "pipelining", "hub"),
    ),
    "graph": (
        *("source", "vocab", "strict_json", "devices", "styles", "optimizers", "data_sources", "pipelining"),
        "extend",
    ),
    "lower": (
        *("vocab", "styles", "optimizers", "plan", "layouts", "graph", "inventory.schema"),
        *("inventory.adapters", "inventory.routers", "inventory.matrices", "pipelining", "data_sources"),
        *("extend", "source"),
    ),
    "estimate": (
        *("vocab", "strict_json", "devices", "styles", "optimizers", "graph", "inventory.schema"),
        *(
            "inventory.adapters",
            "inventory.calls",
            "inventory.footprint",
            "inventory.products",
            "inventory.routers",
            "pipelining",
        ),
    ),
    "solve": (
        *("source", "vocab", "diagnostics", "styles", "plan", "layouts", "checks", "estimate.result"),
        *("inventory.schema", "inventory.routers"),
    ),
    "capacity": ("vocab", "tables", "devices", "diagnostics", "plan", "graph", "checks", "lower", "estimate"),
    "figures": ("vocab", "tables", "devices", "graph", "estimate"),
    "runtime": (
        *("source", "vocab", "outgoing", "strict_json", "tables", "devices", "hub", "modeling"),
        *("styles", "optimizers", "graph", "data_sources", "figures.plan", "pipelining", "extend"),
    ),
    "own_model": ("extend", "inventory", "runtime"),
    "data_view": ("source", "outgoing", "tables", "diagnostics", "data_sources", "graph", "runtime"),
    "deep_check": (
        *(
            "source",
            "vocab",
            "strict_json",
            "tables",
            "diagnostics",
            "graph",
            "estimate",
            "figures",
            "runtime",
        ),
    ),
    "verify": (
        *("vocab", "tables", "modeling", "plan", "graph", "lower", "runtime", "inventory.routers"),
        *("inventory.adapters", "inventory.small_config", "inventory.files", "inventory.load", "estimate"),
        *("optimizers", "pipelining", "data_sources", "extend"),
    ),
    "doctor": (
        *("source", "vocab", "tables", "hub", "diagnostics", "graph", "estimate", "runtime"),
        *("inventory.schema", "data_sources"),
    ),
    "show": (
        *("source", "vocab", "tables", "devices", "diagnostics", "syntax", "fmt", "styles", "plan"),
        *("graph", "lower", "estimate", "figures", "inventory.schema", "solve", "pipelining", "extend"),
    ),
    "api": (
        *("source", "devices", "diagnostics", "syntax", "inventory", "plan", "checks", "graph"),
        *("solve", "capacity", "data_view.codes", "deep_check", "hub.user_dirs"),
        "own_model",
    ),
    "diff": (
        *("source", "vocab", "tables", "diagnostics", "styles", "plan", "graph", "estimate", "figures"),
        *("api", "inventory.schema", "capacity.draft", "optimizers", "runtime.data.shares"),
    ),
    "report": (
        *("vocab", "strict_json", "tables", "devices", "diagnostics", "graph", "estimate", "figures"),
        *("runtime", "data_view", "deep_check", "show", "diff", "pipelining"),
    ),
    "tune": (
        *(
            "source",
            "vocab",
            "tables",
            "devices",
            "diagnostics",
            "syntax",
            "fmt",
            "plan",
            "lower",
            "estimate",
        ),
        *("figures", "inventory", "solve", "show", "api", "pipelining"),
    ),
    "import_configs": (
        *("source", "strict_json", "tables", "hub", "diagnostics", "syntax", "fmt", "plan", "layouts"),
        *("inventory.adapters", "inventory.schema"),
    ),
    "first_plan": (
        *("source", "tables", "devices", "diagnostics", "syntax", "fmt", "inventory", "plan", "tune"),
        *("layouts", "api", "vocab"),
    ),
    "lsp": (
        *("source", "diagnostics", "syntax", "fmt", "inventory", "styles", "plan", "graph", "figures"),
        *("show", "api", "capacity.draft", "hub.user_dirs"),
    ),
    "cli": (
        *("source", "vocab", "outgoing", "strict_json", "tables", "devices", "hub"),
        *("diagnostics", "syntax", "data_sources"),
        *("fmt", "inventory", "plan", "checks", "graph", "lower.data", "lower.evaluating", "estimate"),
        *("capacity.draft", "figures", "launchers", "runtime", "data_view", "deep_check", "verify"),
        *("doctor", "show", "api", "diff", "solve", "report", "tune", "import_configs", "first_plan", "lsp"),
    ),
    "python": (
        *("outgoing", "strict_json", "tables", "diagnostics", "inventory.files", "graph", "runtime"),
        *("api", "cli.running", "cli.support"),
    ),
    "run": ("cli", "python"),
    "rendezvous": ("cli",),
    "__main__": ("cli",),
}
"""What each package or module of planc's root may import, besides `SHARED` and itself.

Of a package with a dot in its name, that module alone may be imported. Every import goes up in this list."""

INSIDE: dict[str, dict[str, tuple[str, ...]]] = {
    "runtime": {
        **dict.fromkeys(("compilers", "cpus", "errors", "file_systems", "files", "loss_window"), ()),
        **dict.fromkeys(("numerics", "observer", "schedule", "throughput"), ()),
        "checkpoint_format": ("cpus", "files"),
        "collectives": ("numerics",),
        "failures": ("errors",),
        "model_files": ("errors",),
        "process": ("errors",),
        "callbacks": ("observer",),
        "stopping": ("errors", "numerics"),
        "trackers": ("files", "observer"),
        "fetch": ("errors", "model_files"),
        "interpreter": ("errors", "failures"),
        "ranks": ("errors", "files", "numerics", "observer", "process"),
        "run_directory": ("errors", "files", "numerics", "observer", "checkpoint_format"),
        "extensions": ("errors",),
        "own_process": (),
        "push": ("errors", "fetch", "files", "own_process", "run_directory"),
        "data": (
            *("cpus", "errors", "file_systems", "files", "checkpoint_format", "ranks", "extensions"),
            "own_process",
        ),
        "torch": (
            *("compilers", "errors", "files", "loss_window", "numerics", "observer", "schedule"),
            *("throughput", "checkpoint_format", "collectives", "model_files", "process", "stopping"),
            *("trackers", "interpreter", "ranks", "run_directory", "extensions", "data", "callbacks"),
            *("failures", "push"),
        ),
        "rehearsal": ("errors", "observer", "process", "interpreter", "ranks", "data", "torch"),
    },
    "runtime.torch": {
        "private": (),
        "copies": (),
        "dtypes": (),
        "run": ("copies",),
        "state": (),
        "agreement": ("run",),
        "parallel": ("private", "dtypes", "run", "state", "agreement"),
        "attention": ("private",),
        "dropout": ("copies", "run", "parallel", "attention"),
        "checkpoint": ("run", "state", "agreement", "parallel"),
        "weights": ("dtypes", "run", "state", "agreement", "parallel", "attention", "checkpoint"),
        "extensions": ("private", "run", "state", "agreement", "parallel"),
        "training": (
            *("private", "copies", "dtypes", "run", "state"),
            *("agreement", "parallel", "attention", "dropout", "checkpoint", "extensions"),
        ),
        "reporting": (
            *("private", "copies", "run", "state", "agreement", "parallel", "checkpoint", "weights"),
            *("extensions", "training"),
        ),
        "dispatch": (
            *("state", "agreement", "parallel", "attention", "dropout", "checkpoint", "weights"),
            *("extensions", "training", "reporting"),
        ),
        "handlers": (
            *("parallel", "dropout", "checkpoint", "weights", "extensions", "training"),
            *("reporting", "dispatch"),
        ),
        "backend": (
            *("run", "state", "agreement", "parallel", "checkpoint", "weights", "training"),
            *("reporting", "dispatch", "handlers"),
        ),
        "evaluating": ("state", "parallel", "checkpoint", "weights", "training", "backend"),
        "teaching": ("run", "state", "agreement", "training", "backend"),
        "sampling": (),
    },
}
"""The same law inside of a package: its rooms, lowest first, and which others each may import."""

WORKERS = ("planc/runtime/torch/", "planc/runtime/rehearsal/", "planc/verify/")

LIBRARIES: dict[str, tuple[str, ...]] = {
    "torch": (
        *("planc/inventory/probe/", "planc/modeling/", *WORKERS),
        *("planc/doctor/torch_probe.py", "planc/cli/running/session.py", "planc/cli/running/opening.py"),
        "planc/cli/running/evaluating.py",
    ),
    "transformers": (
        *("planc/inventory/probe/", "planc/modeling/", "planc/runtime/torch/", "planc/verify/"),
        *("planc/runtime/data/encoding/loaded.py", "planc/runtime/data/images.py"),
    ),
    "PIL": ("planc/runtime/data/image_files.py", "planc/runtime/data/images.py", "planc/verify/images.py"),
    "safetensors": ("planc/runtime/torch/", "planc/verify/ranks.py", "planc/verify/images.py"),
    "tokenizers": ("planc/runtime/data/encoding/",),
    "jinja2": ("planc/runtime/data/encoding/template.py",),
    "numpy": ("planc/runtime/data/", "planc/data_view/shown.py", *WORKERS),
    "datasets": ("planc/runtime/data/arrow_rows.py",),
    "pyarrow": ("planc/runtime/data/arrow_rows.py", "planc/runtime/data/content.py"),
    "lark": ("planc/syntax/",),
    "rich": ("planc/cli/",),
    "pygls": ("planc/lsp/server.py", "planc/lsp/protocol.py", "planc/lsp/client.py"),
    "lsprotocol": ("planc/lsp/server.py", "planc/lsp/protocol.py", "planc/lsp/client.py"),
    "cattrs": ("planc/lsp/client.py",),
    "pygments": ("planc/highlight/",),
    "yaml": ("planc/import_configs/leaves.py",),
    "tensorboard": ("planc/runtime/trackers/tensorboard.py",),
    "wandb": ("planc/runtime/trackers/wandb.py",),
    "pydantic": (
        "planc/graph/artifact.py",
        "planc/runtime/checkpoint_format/",
        "planc/runtime/data/prepared/",
    ),
}
"""Which files may import a library, by the start of their path."""
