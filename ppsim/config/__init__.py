"""The YAML config: read, checked, and turned into a schedule, costs and a run. Keys: docs/config.md."""

from ppsim.config.assembly import legal_microbatches
from ppsim.config.config import (
    AnyConfig,
    Config,
    ConfigSource,
    as_config,
    config_source,
    config_yaml,
    load_config,
    value_at,
)
from ppsim.config.schema import FILE_KEYS, network_fault

__all__ = [
    "FILE_KEYS", "AnyConfig", "Config", "ConfigSource", "as_config", "config_source", "config_yaml",
    "legal_microbatches", "load_config", "network_fault", "value_at",
]  # fmt: skip
