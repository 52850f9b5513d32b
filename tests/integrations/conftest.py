import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when haystack is imported
os.environ["LANGSMITH_TRACING"] = "false"
