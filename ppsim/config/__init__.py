"""The YAML config: read, checked, and turned into a schedule, costs and a run. Keys: docs/config.md."""

from ppsim.config.config import Config, load_config, make_config

__all__ = ["Config", "load_config", "make_config"]
