"""Recipe to run a config: its YAML."""

from __future__ import annotations

import io
from typing import Any

from ppsim.config import Config


def config_yaml(config: Config) -> str:
    """Return the config as the text of a YAML file that ppsim can read."""
    from ruamel.yaml import YAML

    writer, text = YAML(), io.StringIO()
    writer.default_flow_style = False
    writer.width = 4096
    writer.dump(_without_nulls(dict(config.data)), text)
    return text.getvalue()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value
