"""Facts about Primus, which runs Megatron-LM.

Source: primus/core/pipeline_parallel/scheduler/schedule_table_factory.py.
"""

from dataclasses import replace

from ppsim.frameworks import megatron

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-half", "v-min")  # the last two are modes of zbv-greedy
FACTS = replace(megatron.CORE_FACTS, name="Primus", since={})
