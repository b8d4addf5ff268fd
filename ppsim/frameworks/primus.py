"""Facts about Primus, which runs Megatron-LM.

Source: primus/core/pipeline_parallel/scheduler/schedule_table_factory.py.
"""

from ppsim.frameworks import megatron
from ppsim.frameworks.facts import Facts

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-half", "v-min")  # the last two are modes of zbv-greedy
FACTS = Facts("Primus", megatron.CORE_FACTS.policies, megatron.HOST, megatron.HOST_SOURCE, messages=megatron.BUCKETS)
