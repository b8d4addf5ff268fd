"""Facts about NeMo AutoModel."""

from dataclasses import replace

from ppsim.frameworks import torchtitan

FACTS = replace(torchtitan.FACTS, name="AutoModel", stops_early=True)
