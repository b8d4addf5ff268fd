"""Libraries that a core install leaves out, and the pip line that adds each."""

from importlib import import_module
from typing import Any

from ppsim.base.errors import ConfigError

EXTRA_OF = {
    "pandas": "notebook",
    "plotly": "notebook",
    "ortools": "solver",
    "distributed": "dask",
    "submitit": "slurm",
    "starlette": "explore",
    "uvicorn": "explore",
}


def need(module: str, purpose: str) -> Any:
    """The module, imported now; ConfigError with the pip line that adds its library, where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        raise ConfigError(f"{purpose} needs {library}: pip install 'ppsim[{EXTRA_OF[library]}]'") from None
