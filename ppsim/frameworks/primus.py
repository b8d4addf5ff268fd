"""Facts about Primus. Source: primus/core/pipeline_parallel/scheduler/schedule_table_factory.py."""

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-half", "v-min")  # the last two are modes of zbv-greedy
