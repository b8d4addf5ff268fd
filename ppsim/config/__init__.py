"""The YAML config: read, checked, and turned into a schedule, costs and a run. Keys: docs/config.md."""

from ppsim.config.config import Config, Source, load_config, make_config, source_of

__all__ = ["Config", "Source", "load_config", "make_config", "source_of"]
